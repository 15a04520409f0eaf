"""Writes a run's metrics to TensorBoard files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.decisions.search import TrialResult
from orchestrator.tracking.tracker import Outcome, Params


class TensorBoard:
    """Writes event files for `tensorboard --logdir`."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        import tensorboardX  # takes a third of a second, which other commands need not wait for

        self._writer = tensorboardX.SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_params(self, params: Params) -> None:
        """Write nothing: the run's folder has them."""

    def log_trial(self, trial: TrialResult, metric: str) -> None:
        """Write nothing: the run's folder has them."""

    def log_files(self, folder: str, paths: Sequence[Path]) -> None:
        """Write nothing: the run's folder has them."""

    def close(self, _: Outcome) -> None:
        """Flush the file."""
        self._writer.close()
