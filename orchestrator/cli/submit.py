"""`winnow submit`: runs a job on a cluster through Ray's job API."""

import contextlib
import hashlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster import access, local
from jobs.errors import ClusterError, first_line
from jobs.loader.variables import DOTENV
from jobs.spec import JobSpec
from orchestrator.cli.options import AsJson, InsecureLocal, JobFile, out, print_json
from orchestrator.execution import quiet_libraries
from orchestrator.loading import load_job
from orchestrator.records import inputs, owner, runs
from raywinnow import COMMAND, paths

STOP_WAIT_S = 120
"""How long a stopped job may take to save and end."""
POLL_S = 1.0
EXCLUDED = [".git", ".venv", ".winnow", "__pycache__", DOTENV]
"""Names that are not sent to the cluster: the job file that is sent needs no variables."""
MODULES = ["/*.py", "/*/__init__.py"]
"""Not sent either, unless Winnow itself is: Ray puts the folder first on the import path of every
worker, where a user's `serve.py` or `datasets.py` would hide a package."""


def submit(
    job: JobFile,
    address: Annotated[
        str | None, typer.Option(help="Ray's job API, such as http://head:8265.")
    ] = None,
    insecure_local: InsecureLocal = False,
    wait: Annotated[bool, typer.Option(help="Print the log until the job ends.")] = True,
    as_json: AsJson = False,
) -> None:
    """Send the job and its folder to a Ray cluster; the same job and data are sent only once."""
    spec = load_job(job, None)
    identity = submission_id(spec)
    where = _job_api(address, insecure_local=insecure_local)
    with _client(where) as client:
        state = _state(client, identity)
        if state in ("FAILED", "STOPPED"):
            client.delete_job(identity)
            state = None
        if state is None:
            _send(client, identity, job, insecure_local=insecure_local)
        state = _follow(client, identity, quiet=as_json) if wait else _state(client, identity)
    if as_json:
        print_json({"submission_id": identity, "status": state})
    else:
        out().print(f"job {identity}: {state}")
    if state in ("FAILED", "STOPPED"):
        raise ClusterError(f"job {identity} ended as {state}; its log says why")


def submission_id(spec: JobSpec) -> str:
    """Returns an id that is equal for equal job, data, base model and code."""
    job = f"{runs.digest(spec)} {inputs.digest(inputs.inputs_of(spec))}"
    return f"{spec.name}-{hashlib.sha256(job.encode()).hexdigest()[:12]}"


def _job_api(address: str | None, *, insecure_local: bool) -> str:
    """Returns the address of Ray's job API, and sets this process's environment for it."""
    cluster = local.at(address) if address else local.running()
    if cluster is not None:
        address = cluster.dashboard_url
        os.environ.update(local.environment())
    if address is None:
        raise ClusterError("no cluster is up; name one with --address or start one with winnow up")
    access.require_tokens(address, insecure_local=insecure_local)
    quiet_libraries()
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # data files are often ignored by git
    return address


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    """Yield a client of Ray's job API; its errors inside the block become ClusterError."""
    import ray.exceptions
    import ray.job_submission

    try:
        yield ray.job_submission.JobSubmissionClient(address)
    except ray.exceptions.AuthenticationError:
        raise ClusterError(f"{address} refuses the token; {access.TOKEN_HINT}") from None
    except BrokenPipeError:
        raise  # stdout is closed
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(f"Ray's job API at {address}: {first_line(error)}") from None


def _state(client: Any, identity: str) -> str | None:
    try:
        return str(client.get_job_status(identity).value)
    except RuntimeError as error:
        if "status code 404" not in str(error):
            raise
        return None  # Ray does not know the id


def _send(client: Any, identity: str, job: Path, *, insecure_local: bool) -> None:
    try:
        with staged(job) as folder:
            client.submit_job(
                submission_id=identity,
                entrypoint=entrypoint(job, insecure_local=insecure_local),
                runtime_env={
                    "working_dir": str(folder),
                    "excludes": excluded(folder),
                    "env_vars": {
                        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S),
                        owner.VARIABLE: owner.owner(),
                    },
                },
            )
    except (RuntimeError, ValueError) as error:
        if _state(client, identity) is None:
            reason = str(error).strip().splitlines()[-1]
            raise ClusterError(f"Ray's job API refused the job: {reason}") from None


@contextlib.contextmanager
def staged(job: Path) -> Iterator[Path]:
    """Yields a folder with links to all that is beside a job file, and with the job in full.

    What the job extends and the variables in it need not be on the cluster.
    """
    text = runs.to_job_file(load_job(job, None, is_elsewhere=True))
    with tempfile.TemporaryDirectory(prefix="winnow-") as name:
        folder = Path(name)
        for path in job.parent.resolve().iterdir():
            if path.name != job.name:
                (folder / path.name).symlink_to(path)
        (folder / job.name).write_text(text, encoding="utf-8")
        yield folder


def entrypoint(job: Path, *, insecure_local: bool) -> str:
    """Returns the shell command that runs the job in its folder on the cluster."""
    flag = " --insecure-local" if insecure_local else ""
    return f"{COMMAND} run {shlex.quote(job.name)} --resume --or-new{flag}"


def excluded(folder: Path) -> list[str]:
    """Patterns of what is not sent of a job's folder."""
    return EXCLUDED if paths.holds_winnow(folder) else [*EXCLUDED, *MODULES]


def _follow(client: Any, identity: str, *, quiet: bool) -> str | None:
    shown = 0
    while True:
        state = _state(client, identity)
        text = client.get_job_logs(identity)
        if not quiet and len(text) > shown:
            sys.stdout.write(text[shown:])
            sys.stdout.flush()
        shown = len(text)
        if state not in ("PENDING", "RUNNING"):
            return state
        time.sleep(POLL_S)
