"""The commands that need no cluster, as a user calls them."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests import commands
from tests.builders import MINIMAL
from tests.commands import call as winnow


def cpu_s() -> float:
    """CPU time of ended child processes: others on this machine stretch the time on the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job, its data and an inventory."""
    (tmp_path / "job.yaml").write_text(MINIMAL, encoding="utf-8")
    for name in ("train.csv", "eval.csv"):
        (tmp_path / name).write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    nodes = {"nodes": [{"id": "a", "sku": "T4", "devices": 2}]}
    (tmp_path / "nodes.json").write_text(json.dumps(nodes), encoding="utf-8")
    return tmp_path


def in_a_process(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=folder,
        env=commands.own_process(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_first_job_can_be_written_and_is_never_overwritten(folder: Path) -> None:
    assert winnow(folder, "init", "first.yaml").returncode == 0
    done = winnow(folder, "validate", "first.yaml")
    assert done.returncode == 2  # its data are not there yet, and nothing else is wrong
    assert done.stderr.count("does not exist") == 2
    assert done.stderr.count("error:") == 2
    again = winnow(folder, "init", "first.yaml")
    assert (again.returncode, "exists already" in again.stderr) == (1, True)


def test_validate_says_all_that_is_wrong_without_a_traceback(folder: Path) -> None:
    assert winnow(folder, "validate", "job.yaml").returncode == 0
    (folder / "job.yaml").write_text(MINIMAL + "seed: x\nbugdet: {}\n", encoding="utf-8")
    done = winnow(folder, "validate", "job.yaml")
    assert done.returncode == 2
    assert "job.yaml:8:7: seed: 'x' is not a whole number" in done.stderr
    assert "unknown key; did you mean 'budget'?" in done.stderr
    assert "Traceback" not in done.stderr
    as_json = json.loads(winnow(folder, "validate", "job.yaml", "--json").stdout)
    assert [problem["line"] for problem in as_json["problems"]] == [8, 9]


def test_plan_needs_no_cluster_and_under_five_seconds(folder: Path) -> None:
    begin = cpu_s()
    done = in_a_process(folder, "plan", "job.yaml", "--inventory", "nodes.json", "--json")
    assert cpu_s() - begin < 5
    plan = json.loads(done.stdout)
    assert [c["placement"]["sku"] for c in plan["candidates"]] == ["T4"]
    shown = winnow(folder, "plan", "job.yaml", "--inventory", "nodes.json").stdout
    assert "T4:1/32/fp16" in shown


def test_a_sku_that_is_not_there_fails_the_plan_in_time_with_the_nearest(folder: Path) -> None:
    setting = "resources.any_of=[{accelerators: A100-80GB:1}]"
    begin = time.process_time()
    done = winnow(folder, "plan", "job.yaml", "--inventory", "nodes.json", "--set", setting)
    assert time.process_time() - begin < 5
    assert done.returncode == 1
    assert "no nodes for A100-80GB:1: the cluster has 2 x T4; closest is T4:1" in done.stderr


def test_a_name_that_fits_several_accelerators_is_told(folder: Path) -> None:
    settings = ["--set", "resources.any_of=[{accelerators: A100}, {accelerators: T4}]"]
    sentence = "A100 selects A100-40GB; write A100-80GB if you mean another model"
    assert f"note: {sentence}\n" in winnow(folder, "validate", "job.yaml", *settings).stdout
    as_json = winnow(folder, "validate", "job.yaml", *settings, "--json").stdout
    assert json.loads(as_json)["remarks"] == [sentence]
    planned = winnow(folder, "plan", "job.yaml", "--inventory", "nodes.json", *settings)
    assert f"note: {sentence}\n" in planned.stdout


def test_an_unknown_accelerator_is_left_out_and_the_rest_planned(folder: Path) -> None:
    nodes = [{"id": "a", "sku": "T4", "devices": 1}, {"id": "b", "sku": "RTX9999", "devices": 1}]
    (folder / "nodes.json").write_text(json.dumps({"nodes": nodes}), encoding="utf-8")
    done = winnow(folder, "plan", "job.yaml", "--inventory", "nodes.json")
    assert done.returncode == 0
    assert "T4:1/32/fp16" in done.stdout
    assert "RTX9999 of node b is left out" in done.stdout
    assert "RTX9999 of node b" in winnow(folder, "hardware", "--inventory", "nodes.json").stdout


def test_render_writes_defaults_and_what_auto_means(folder: Path) -> None:
    done = winnow(folder, "render", "job.yaml", "--inventory", "nodes.json")
    assert "# auto on T4:1: precision T4 has no bf16" in done.stdout
    assert "  global_batch_size: 32  # default\n" in done.stdout
    assert "every: 1epoch  # default" in done.stdout


def test_render_says_where_each_value_is_set(folder: Path) -> None:
    (folder / "base.yaml").write_text(f"{MINIMAL}train: {{epochs: 2}}\n", encoding="utf-8")
    (folder / "job.yaml").write_text(
        "extends: base.yaml\ntrain:\n  optimizer: {lr: '${LR}'}\nseed: ${SEED:-7}\n",
        encoding="utf-8",
    )
    (folder / ".env").write_text("# rates\nexport LR=2e-4\n", encoding="utf-8")
    settings = ("--set", "train.precision=fp32")
    shown = winnow(folder, "render", "job.yaml", *settings).stdout
    read = yaml.safe_load(shown)
    assert (read["train"]["optimizer"]["lr"], read["train"]["epochs"]) == (2e-4, 2.0)
    assert "    lr: 0.0002  # job.yaml:3, LR from .env:2\n" in shown
    assert "  epochs: 2.0  # base.yaml:8\n" in shown
    assert "  precision: fp32  # --set\n" in shown
    assert "seed: 7  # job.yaml:4, SEED by its default\n" in shown
    assert "    weight_decay: 0.01  # default\n" in shown
    found = json.loads(winnow(folder, "render", "job.yaml", "--json", *settings).stdout)
    assert found["origins"]["data.train.path"] == "base.yaml:5"
    assert found["origins"]["train.precision"] == "--set"


def test_render_counts_the_prices_that_were_fetched(folder: Path) -> None:
    limit = "resources={any_of: [{accelerators: T4:1}], max_hourly_cost: 0.01}"
    words = ("render", "job.yaml", "--inventory", "nodes.json", "--set", limit)
    assert "over max_hourly_cost" in winnow(folder, *words).stderr
    quote = {"sku": "T4", "on_demand_usd": 0.005, "spot_usd": None, "source": "", "date": ""}
    (folder / "home").mkdir(exist_ok=True)
    (folder / "home" / "prices.json").write_text(json.dumps([quote]), encoding="utf-8")
    assert "# auto on T4:1" in winnow(folder, *words).stdout


def test_hardware_lists_the_catalogue_beside_the_nodes(folder: Path) -> None:
    shown = winnow(folder, "hardware", "--inventory", "nodes.json").stdout
    assert "RTX4090" in shown
    found = json.loads(winnow(folder, "hardware", "--inventory", "nodes.json", "--json").stdout)
    assert found["nodes"][0]["sku"] == "T4"


def test_schema_is_json(folder: Path) -> None:
    assert json.loads(winnow(folder, "schema").stdout)["title"] == "Winnow job"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "job.yaml"], "no cluster is up; start one with `winnow up`"),
        (["submit", "job.yaml"], "no cluster is up"),
        (["deploy", "job.yaml"], "serve: is required to deploy"),
        (["deploy", "job.yaml", "--set", "serve.route=/a"], "no version of reviews is published"),
        (["run", "job.yaml", "--resume"], "no run of this job"),
        (["report"], "no run is in {folder}/.winnow"),
        (["up", "--simulate", "t5=1"], "accelerator 't5' is not known; did you mean T4?"),
        (["up", "--simulate", "t4=none"], "names no accelerators"),
        (["validate", "none.yaml"], "no such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    folder: Path, arguments: list[str], message: str
) -> None:
    done = winnow(folder, *arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if not line.endswith("…")]
    assert len(said) == 1
    assert message.replace("{folder}", str(folder)) in said[0]


def test_status_and_down_work_when_nothing_is_up(folder: Path) -> None:
    assert "no local cluster is up" in in_a_process(folder, "status").stdout
    assert json.loads(winnow(folder, "status", "--json").stdout)["runs"] == []
    assert "no local cluster was up" in winnow(folder, "down").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("serve", "sentiment"),
            "no version of sentiment is published in {folder}/.winnow; run the job",
        ),
        (
            ("serve", "sentiment", "--host", "0.0.0.0"),
            "--host 0.0.0.0 opens the endpoint to the network; name accepted tokens",
        ),
        (("load", "http://127.0.0.1:9/none"), "http://127.0.0.1:9/none cannot be reached"),
        (
            ("load", "http://127.0.0.1:9/none", "--token-from", "NOT_SET"),
            "--token-from names NOT_SET, which is not set",
        ),
        (("load", "http://127.0.0.1:9/none", "--texts", "nodes.txt"), "nodes.txt cannot be read"),
        (("serve", "sentiment", "--gpu"), "--gpu is set, but no driver reports a GPU here"),
        (("models", "show", "sentiment"), "no version of sentiment is published"),
        (("models", "rollback", "job.yaml"), "no other version of reviews was deployed before"),
    ],
)
def test_serving_commands_say_what_is_missing(
    folder: Path, words: tuple[str, ...], message: str
) -> None:
    done = winnow(folder, *words)
    assert done.returncode == 1
    assert message.replace("{folder}", str(folder)) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("load", "http://127.0.0.1:9/none", "--p95", "50"), "'50' has no clear unit"),
        (("load", "http://127.0.0.1:9/none", "--errors", "few"), "'few' is no limit"),
        (("serve", "sentiment", "--engine", "fast"), "'fast' is not one of openvino-int8"),
        (("serve", "sentiment", "--batch", "9999"), "9999 must be at most 4096"),
    ],
)
def test_wrong_options_are_told_of_before_anything_is_done(
    folder: Path, words: tuple[str, ...], message: str
) -> None:
    done = winnow(folder, *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_a_storage_without_models_lists_none(folder: Path) -> None:
    assert "no model is published" in winnow(folder, "models", "list").stdout
    assert json.loads(winnow(folder, "models", "list", "--json").stdout) == []


def test_prices_that_cannot_be_fetched_leave_the_known_ones(folder: Path) -> None:
    named = [name for name in os.environ if name.startswith("AWS_")]
    nowhere = str(folder / "none")
    environment = {
        **dict.fromkeys(named, ""),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": nowhere,
        "AWS_SHARED_CREDENTIALS_FILE": nowhere,
    }
    done = winnow(folder, "hardware", "--refresh-prices", environment=environment)
    assert done.returncode == 1
    assert "Unable to locate credentials" in done.stderr
    assert "A100-80GB" in done.stdout
    assert not (folder / "home" / "prices.json").exists()
