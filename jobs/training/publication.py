"""Proves that a saved model gives anybody who loads it the scores that it had in training."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jobs.errors import first_line
from jobs.spec.task import Task
from jobs.spec.train import Precision
from jobs.training import eval_sample
from jobs.training.config import Device
from jobs.training.events import Event, Proven, Proving

SCRIPT = Path(__file__).with_name("plain_scores.py")
TIMEOUT_S = 600
"""Longest time that the proof may take."""
TOLD_EVERY_S = 20.0
"""How often is told that the proof goes on: who hears nothing takes the workers to hang."""
ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")
"""How the line of a traceback begins that names the error."""
FAR = 1e9
"""Stands for a difference that is no number."""
BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2, "fp16": 5e-2}
"""Largest difference of a score by the precision of the last evaluation; a loss differs by a share
of it."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What plain transformers made of the rows."""

    alone: Sequence[Sequence[float]]
    together: Sequence[Sequence[float]]
    retokenised: int


def prove(
    folder: Path, task: Task, precision: Precision, device: Device, tell: Callable[[Event], None]
) -> Proven | None:
    """Score the rows beside a model in a process without our code, and compare.

    `precision` is the one that the kept scores were made in; `tell` hears now and then that it goes
    on. The verdict is in the result, which is None for a checkpoint of a release that kept no
    scores.
    """
    begin = time.monotonic()
    rows = eval_sample.read(folder)
    if not rows or not rows[0].scores:
        return None
    plain, refusal = _score(folder, task, device, tell)
    if plain is None and device == "cuda":  # which training may still fill
        plain, refusal = _score(folder, task, "cpu", tell)
    difference = 0.0
    if plain:
        difference, refusal = compare(
            rows, plain, BOUNDS[precision], is_loss=task.activation == "token-loss"
        )
    return Proven(len(rows), difference, refusal, time.monotonic() - begin)


def _score(
    folder: Path, task: Task, device: Device, tell: Callable[[Event], None]
) -> tuple[Plain | None, str]:
    """Scores, or why there are none."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", str(SCRIPT), str(folder), device]
    command += [task.auto_class, task.activation]
    pipe = subprocess.PIPE
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as elsewhere,  # where no package of ours is to be found
        subprocess.Popen(
            command, cwd=elsewhere, env=environment, stdout=pipe, stderr=pipe, text=True
        ) as process,
    ):
        while True:
            try:
                out, err = process.communicate(timeout=TOLD_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                tell(Proving(time.monotonic() - begin))
            if time.monotonic() - begin > TIMEOUT_S:
                process.kill()
                return None, f"it could not be loaded and scored within {TIMEOUT_S} s"
    if process.returncode:
        lines = err.strip().splitlines() or [f"the process ended with {process.returncode}"]
        named = [line for line in lines if ERROR.match(line)] or lines
        return None, f"plain transformers cannot load or run it: {first_line(named[-1])}"
    return Plain(**json.loads(out.splitlines()[-1])), ""


def compare(
    rows: Sequence[eval_sample.SampleRow], plain: Plain, bound: float, *, is_loss: bool
) -> tuple[float, str]:
    """The largest difference of a score, and why the model must not be published; else empty."""
    expected = np.array([row.scores for row in rows])
    scale = np.maximum(np.abs(expected), 1.0) if is_loss else np.ones_like(expected)
    far = {
        name: float((np.abs(np.array(found) - expected[: len(found)]) / scale[: len(found)]).max())
        for name, found in (("alone", plain.alone), ("beside others", plain.together))
    }
    worst = max(far, key=lambda name: np.nan_to_num(far[name], nan=np.inf))
    refusal = ""
    if plain.retokenised:
        refusal = f"its tokenizer makes other tokens of {plain.retokenised} of {len(rows)} texts"
    elif not far[worst] <= bound:
        kind = "loss" if is_loss else "score"
        refusal = (
            f"a {kind} of a row {worst} is {far[worst]:.3g} away from training, and {bound:g} is"
            " the most that rounding explains"
        )
    return min(FAR, float(np.nan_to_num(far[worst], nan=FAR))), refusal
