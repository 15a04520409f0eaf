"""Checks that a saved model gives every user the same scores as in training."""

import contextlib
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
from typing import Any

import numpy as np

from jobs.errors import first_line
from jobs.spec.task import Task
from jobs.spec.train import Precision
from jobs.training import eval_sample
from jobs.training.config import Device
from jobs.training.events import Event, Proven, Proving

SCRIPT = Path(__file__).with_name("plain_scores.py")
TIMEOUT_S = 600
"""Longest duration of the check."""
KILL_S = 10.0
"""How long a killed process is waited for."""
PROGRESS_EVERY_S = 20.0
"""Interval of `Proving` events: without events, the caller would treat the workers as hanging."""
ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")
"""Matches the line of a traceback that names the error."""
NOT_A_NUMBER = 1e9
"""Reported in place of a difference that is NaN."""
BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2, "fp16": 5e-2}
"""Largest difference of a score by the precision of the last evaluation; relative for losses above
1, and in standard deviations for numbers of a regression."""


@dataclass(frozen=True, slots=True)
class PlainScores:
    """Scores of the sampled rows from transformers without this project's code."""

    alone: Sequence[Any]
    """Scores of the first rows, computed one by one."""
    together: Sequence[Any]
    """Scores of all rows, computed in padded batches."""
    retokenised: int
    """Number of texts that are tokenised otherwise than in training."""


class Prover:
    """Compares a saved model's scores with training's, in a process without this project's code.

    The process takes seconds to import transformers, so that it can begin before there is a model.
    """

    def __init__(self, task: Task, device: Device) -> None:
        self._task, self._device = task, device
        self._process: subprocess.Popen[str] | None = None
        self._elsewhere = contextlib.ExitStack()

    def __enter__(self) -> "Prover":
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._elsewhere.close()

    def begin(self) -> None:
        """Start the process, which then waits for a model, unless it has begun or cannot begin."""
        with contextlib.suppress(OSError):  # raised again where there is a model to prove
            self._process = self._process or self._start(self._device)

    def prove(
        self, folder: Path, precision: Precision, report: Callable[[Event], None]
    ) -> Proven | None:
        """Compares the scores of the rows in a model's folder with those of training.

        `precision` is the precision of the saved scores. `report` receives `Proving` events.
        Returns None for a model that was saved without scores, by an older release.
        """
        begin, task = time.monotonic(), self._task
        rows = eval_sample.read(folder)
        if not rows or not rows[0].scores:
            return None
        self._process = self._process or self._start(self._device)
        plain, refusal = self._score(folder, report)
        if plain is None and self._device == "cuda":  # whose memory training may still use
            self._process = self._start("cpu")
            plain, refusal = self._score(folder, report)
        difference = 0.0
        if plain:
            difference, refusal = compare(
                rows,
                plain,
                BOUNDS[precision],
                is_loss=task.activation == "token-loss",
                is_vector=task.activation == "vector",
                has_unit=task.activation == "identity",
            )
        return Proven(len(rows), difference, refusal, time.monotonic() - begin)

    def _start(self, device: Device) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        # so that no package of this project is found
        elsewhere = self._elsewhere.enter_context(tempfile.TemporaryDirectory())
        command = [sys.executable, "-P", str(SCRIPT), device]
        command += [self._task.auto_class, self._task.activation]
        return subprocess.Popen(
            command,
            cwd=elsewhere,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _kill(self) -> None:
        """Ends the process; one that a device's driver holds is not waited for."""
        process, self._process = self._process, None
        if process:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=KILL_S)

    def _score(
        self, folder: Path, report: Callable[[Event], None]
    ) -> tuple[PlainScores | None, str]:
        """Returns the scores, or None with the reason; the process ends."""
        process = self._process
        assert process
        begin = time.monotonic()
        given: str | None = str(folder.absolute())
        while True:
            try:
                out, err = process.communicate(given, timeout=PROGRESS_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                given = None
                report(Proving(time.monotonic() - begin))
            if time.monotonic() - begin > TIMEOUT_S:
                self._kill()
                return None, f"it could not be loaded and scored within {TIMEOUT_S} s"
        self._process = None
        if process.returncode:
            lines = err.strip().splitlines() or [f"the process ended with {process.returncode}"]
            named = [line for line in lines if ERROR.match(line)] or lines
            return None, f"plain transformers cannot load or run it: {first_line(named[-1])}"
        return PlainScores(**json.loads(out.splitlines()[-1])), ""


def compare(
    rows: Sequence[eval_sample.SampleRow],
    plain: PlainScores,
    bound: float,
    *,
    is_loss: bool,
    is_vector: bool = False,
    has_unit: bool = False,
) -> tuple[float, str]:
    """Returns the largest difference of a score, and why the model must not be published.

    The reason is empty if all differences are at most `bound`. Scores that are vectors are compared
    by their cosines with the vectors of all rows, and scores that have the unit of the labels in
    standard deviations of these.
    """
    expected = [np.ravel(row.scores) for row in rows]
    if is_vector:
        vectors = np.array([row.scores for row in rows])
        alone, together = (
            eval_sample.similarities(np.array(found), vectors).tolist()
            for found in (plain.alone, plain.together)
        )
        plain = PlainScores(alone, together, plain.retokenised)
        expected = list(eval_sample.similarities(vectors, vectors))
    unit = np.array(eval_sample.spread_of(rows)) if has_unit else np.ones(1)

    def difference(found: Sequence[Any]) -> float:
        own = np.concatenate(expected[: len(found)])
        scale = np.maximum(np.abs(own), 1.0) if is_loss else np.ones_like(own)
        others = np.concatenate([np.ravel(scores) for scores in found])
        if own.shape != others.shape:  # the tokenizer makes other tokens of a text
            return np.inf
        return float((np.abs(others - own) / scale / np.resize(unit, own.shape)).max())

    far = {"alone": difference(plain.alone), "beside others": difference(plain.together)}
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
    return min(NOT_A_NUMBER, float(np.nan_to_num(far[worst], nan=NOT_A_NUMBER))), refusal
