"""Judges a model's folder by tasks of lm-evaluation-harness, in a process of its own.

Imports no torch.
"""

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.errors import TrainingError, first_line
from jobs.spec.harness import HarnessSpec, metric_name
from jobs.training.config import Device

PACKAGE = "lm_eval"
SCRIPT = Path(__file__).with_name("harness_script.py")
LOOK_UP_S = 300.0
"""Longest duration of looking up tasks by their names."""
PROGRESS_EVERY_S = 5.0
"""Interval of `HarnessProgress` events: without events, the workers would count as hanging."""
PROGRESS = re.compile(rb"Running (\w+) requests:[^\r\n]*?(\d+)/(\d+) \[")
"""Matches the progress bar of lm_eval."""
OF_A_GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables of a worker group, by which lm_eval would wait for the other workers."""


@dataclass(frozen=True, slots=True)
class HarnessProgress:
    """The harness has sent some requests of one kind to the model."""

    done: int = 0
    total: int = 0
    """0 before the first request."""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class HarnessResult:
    """What the tasks of lm-evaluation-harness measured of a published model."""

    values: dict[str, float] = field(default_factory=dict)
    """By our name of each metric, such as gsm8k/exact_match/strict-match."""
    errors: dict[str, float] = field(default_factory=dict)
    """Standard errors of those that have one."""
    rows: dict[str, int] = field(default_factory=dict)
    """Number of rows by task."""
    seconds: float = 0.0
    """Wall time, including the start of its worker group."""
    failure: str = ""
    """Why there are no values; empty if there are."""


@dataclass(frozen=True, slots=True)
class HarnessTask:
    """A task, group or tag as lm_eval knows it by its name."""

    is_known: bool
    meant: tuple[str, ...] = ()
    """Names of tasks that resemble an unknown one."""
    metrics: tuple[str, ...] | None = None
    """Our names of its metrics; empty if only its members have some, None if only running it tells.
    """
    is_unsafe: bool = False
    """Whether it executes code that the model writes."""


def describe(spec: HarnessSpec) -> dict[str, HarnessTask]:
    """Returns what each task of a job is; takes up to 20 s.

    Raises:
        TrainingError: if lm_eval cannot be run.
    """
    found = _run("describe", _settings(spec), spec, LOOK_UP_S, _ignore)
    return {name: _task(name, values) for name, values in found.items()}


def evaluate(
    spec: HarnessSpec,
    folder: Path,
    device: Device,
    limit_s: float | None,
    report: Callable[[HarnessProgress], None],
) -> HarnessResult:
    """Returns the numbers of a model's folder, or why there are none.

    `limit_s` is the longest duration in seconds. `report` receives events while it lasts.
    """
    begin = time.monotonic()
    settings = {**_settings(spec), "folder": str(folder), "device": device}
    try:
        found = _run("evaluate", settings, spec, limit_s, report)
    except TrainingError as error:
        return HarnessResult(seconds=time.monotonic() - begin, failure=str(error))
    return HarnessResult(
        values=_named(found, "values"),
        errors=_named(found, "errors"),
        rows={name: task["rows"] for name, task in found.items()},
        seconds=time.monotonic() - begin,
    )


def _settings(spec: HarnessSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude={"max_duration"})


def _task(name: str, values: Mapping[str, Any]) -> HarnessTask:
    if "meant" in values:
        return HarnessTask(is_known=False, meant=tuple(values["meant"]))
    keys = values["keys"]
    metrics = None if keys is None else tuple(metric_name(name, key) for key in keys)
    return HarnessTask(is_known=True, metrics=metrics, is_unsafe=values["is_unsafe"])


def _named(found: Mapping[str, Any], kind: str) -> dict[str, float]:
    return {
        metric_name(name, key): value
        for name, task in found.items()
        for key, value in task[kind].items()
    }


def _run(
    action: str,
    settings: Mapping[str, Any],
    spec: HarnessSpec,
    limit_s: float | None,
    report: Callable[[HarnessProgress], None],
) -> dict[str, Any]:
    """Returns what the script writes; raises TrainingError if it fails."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise TrainingError(f"{PACKAGE} is missing; pip install 'raywinnow[eval]' on every node")
    with tempfile.TemporaryDirectory() as place:
        inputs, output = Path(place) / "settings.json", Path(place) / "found.json"
        inputs.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-P", str(SCRIPT), action, str(inputs), str(output)]
        said = _communicate(command, spec.include_path or place, limit_s, report)
        written: dict[str, Any] = {"failure": said}
        if output.exists():
            written = json.loads(output.read_bytes())
    if "found" in written:
        found: dict[str, Any] = written["found"]
        return found
    text = first_line(RuntimeError(written["failure"]))
    if written.get("is_data"):
        raise TrainingError(
            f"the rows of its tasks cannot be read ({text}); let each node reach them or have them"
            " in its cache, or name tasks of local files in train.eval.harness.include_path"
        )
    hint = ""
    if "out of memory" in written["failure"]:
        hint = f"; set train.eval.harness.batch_size below {spec.batch_size}"
    raise TrainingError(f"lm_eval failed: {text}{hint}")


def _communicate(
    command: list[str],
    folder: str,
    limit_s: float | None,
    report: Callable[[HarnessProgress], None],
) -> str:
    """Waits for the process, and returns how it ended.

    Raises:
        TrainingError: if it takes longer than `limit_s` seconds.
    """
    hidden = ("PYTHONPATH", *OF_A_GROUP)
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    begin, pipe = time.monotonic(), subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe
    ) as process:
        assert isinstance(process.stderr, io.BufferedReader)
        reader = _Reader(process.stderr)
        try:
            while process.poll() is None:
                left_s = float("inf") if limit_s is None else begin + limit_s - time.monotonic()
                if left_s <= 0:
                    raise TrainingError(f"it took longer than the {limit_s:.0f} s that it may take")
                try:
                    process.wait(min(PROGRESS_EVERY_S, left_s))
                except subprocess.TimeoutExpired:
                    report(reader.progress)
        finally:
            process.kill()
            reader.join(timeout=PROGRESS_EVERY_S)
    return (
        f"its process ended with {process.returncode}, and wrote last: {reader.last or 'nothing'}"
    )


class _Reader(threading.Thread):
    """Reads the errors of the process, in which lm_eval shows its progress."""

    def __init__(self, stream: io.BufferedReader) -> None:
        super().__init__(daemon=True)
        self._stream, self.progress, self.last = stream, HarnessProgress(), ""
        self.start()

    def run(self) -> None:
        """Read until the process ends."""
        rest = b""
        while chunk := self._stream.read1():
            *parts, rest = re.split(rb"[\r\n]", rest + chunk)
            for part in (*parts, rest):  # a bar is rewritten in its line, which has no end yet
                if match := PROGRESS.search(part):
                    self.progress = HarnessProgress(int(match[2]), int(match[3]), match[1].decode())
            lines = [part.decode(errors="replace").strip() for part in parts if part.strip()]
            self.last = lines[-1] if lines else self.last


def _ignore(_: HarnessProgress) -> None:
    """Ignores progress."""
