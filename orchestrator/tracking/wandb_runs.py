"""Writes a run to Weights & Biases: the run itself, and one of the same group for each trial."""

import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs.errors import RunError, first_line
from jobs.spec.job import WandbSpec
from orchestrator.decisions.search import TrialResult
from orchestrator.records.runs import Run
from orchestrator.tracking.tracker import Outcome, Params

SERVER = "https://api.wandb.ai"
"""Server that W&B uses unless WANDB_BASE_URL names another."""
KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
"""Variables that hold, or lead to, what W&B accepts as a login."""
STEP = "step"
"""Metric that the charts have on their horizontal axis; W&B's own counter never goes back, and a
resumed training does."""


def has_login() -> bool:
    """Whether W&B finds a login without asking: in the environment, or in ~/.netrc."""
    if any(os.environ.get(name) for name in KEYS):
        return True
    path = os.environ.get("NETRC", "~/.netrc")
    host = urlsplit(os.environ.get("WANDB_BASE_URL", SERVER)).hostname or ""
    try:
        return netrc.netrc(str(Path(path).expanduser())).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbRun:
    """A run of a W&B project; a resumed run of ours continues its run there."""

    name = "W&B"

    def __init__(self, spec: WandbSpec, run: Run, job: str, tags: Mapping[str, str]) -> None:
        try:
            import wandb
        except ImportError:
            raise RunError(
                "tracking.wandb needs the package wandb; pip install 'raywinnow[wandb]'"
            ) from None
        self._wandb, self._spec, self._job, self._id = wandb, spec, job, run.id
        self._tags = dict(tags)
        self._folder = run.folder
        try:
            self._run = self._begin(run.id, "run")
        except wandb.Error as error:
            raise RunError(f"tracking.wandb cannot be used: {first_line(error)}") from None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics; W&B sends them in a process of its own."""
        self._run.log({**values, STEP: step})

    def log_params(self, params: Params) -> None:
        """Record the configuration; that of a later winner replaces it."""
        self._run.config.update(dict(params), allow_val_change=True)

    def log_trial(self, trial: TrialResult, metric: str) -> None:
        """Record a trial as a run of the same group."""
        child = self._begin(f"{self._id}-{trial.id}", "trial")
        child.config.update({**trial.params, "candidate": trial.candidate})
        for step, value in trial.history:
            child.log({f"eval/{metric}": value, STEP: step})
        child.summary.update({f"eval/{name}": value for name, value in trial.metrics.items()})
        child.summary.update({"stopped_early": trial.stopped_early, "failure": trial.failure})
        child.finish(exit_code=1 if trial.failure else 0)

    def log_files(self, folder: str, paths: Sequence[Path]) -> None:
        """Upload an artifact, which W&B stores once however often it is sent."""
        kind = "model" if folder == "model" else "report"
        artifact = self._wandb.Artifact(f"{self._job}-{folder}", kind)
        for path in paths:
            add = artifact.add_dir if path.is_dir() else artifact.add_file
            add(str(path))
        self._run.log_artifact(artifact)

    def close(self, outcome: Outcome) -> None:
        """Send the rest and end the run as finished or failed."""
        self._run.finish(exit_code=0 if outcome == "FINISHED" else 1)

    def _begin(self, identity: str, kind: str) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        run = self._wandb.init(
            project=self._spec.project or self._job,
            entity=self._spec.entity,
            id=identity,
            name=identity,
            group=self._id,
            job_type=kind,
            tags=[f"{name}:{value}"[:64] for name, value in self._tags.items()],
            dir=str(self._folder),
            mode=self._spec.mode,
            resume="allow" if self._spec.mode == "online" else None,
            reinit="create_new",
            settings=self._wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True
            ),
        )
        run.define_metric("*", step_metric=STEP)
        return run
