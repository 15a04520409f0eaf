"""Proves that a saved model gives anybody who loads it the scores that it had in training."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jobs.errors import first_line
from jobs.spec.train import Precision
from jobs.training import eval_sample
from jobs.training.config import Device
from jobs.training.events import Proven

SCRIPT = Path(__file__).with_name("plain_scores.py")
TIMEOUT_S = 600
"""Longest time that the proof may take."""
OUT_OF_MEMORY = "out of memory"
"""What torch says on a GPU that training still fills; the proof is then made on the CPU."""
BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2, "fp16": 5e-2}
"""Largest difference of a score by the precision of the last evaluation: of a probability, or of a
response's loss as a share of it."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What plain transformers made of the rows."""

    alone: Sequence[Sequence[float]]
    together: Sequence[Sequence[float]]
    retokenised: int


def prove(folder: Path, precision: Precision, device: Device) -> Proven:
    """Score the rows beside a model in a process without our code, and compare.

    `precision` is the one that the kept scores were made in. The verdict is in the result; nothing
    is raised for a model that fails.
    """
    begin = time.monotonic()
    rows = eval_sample.read(folder)
    difference, refusal = 0.0, "it was saved without evaluation rows"
    if rows:
        plain, refusal = _score(folder, device)
        if device == "cuda" and OUT_OF_MEMORY in refusal:
            plain, refusal = _score(folder, "cpu")
        if plain:
            difference, refusal = compare(rows, plain, BOUNDS[precision])
    return Proven(len(rows), difference, refusal, time.monotonic() - begin)


def _score(folder: Path, device: Device) -> tuple[Plain | None, str]:
    """Scores, or why there are none."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as elsewhere:  # where no package of ours is to be found
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(SCRIPT), str(folder), device],
                cwd=elsewhere,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"it could not be loaded and scored within {TIMEOUT_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        return None, f"plain transformers cannot load or run it: {first_line(lines[-1])}"
    return Plain(**json.loads(done.stdout)), ""


def compare(rows: Sequence[eval_sample.SampleRow], plain: Plain, bound: float) -> tuple[float, str]:
    """The largest difference of a score, and why the model must not be published; else empty."""
    expected = np.array([row.scores for row in rows])
    is_loss = expected.shape[1] == 1
    scale = np.maximum(np.abs(expected), 1.0) if is_loss else np.ones(1)
    far = {
        name: float((np.abs(np.array(found) - expected) / scale).max())
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
    return far[worst], refusal
