"""Decides and drives: from a job to a plan, a sweep, a winner, a model and an endpoint.

`import orchestrator as winnow` has the functions of `orchestrator.api` and the values that they
take and return. Each is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from raywinnow import paths

paths.load()  # a notebook's folder may hold a `serve.py`

if TYPE_CHECKING:
    from cluster.inventory import Inventory
    from jobs.errors import WinnowError
    from jobs.spec import JobSpec
    from jobs.training.events import CheckpointRef
    from orchestrator.api import (
        deploy,
        plan,
        predict,
        publish,
        receipt,
        run,
        sweep,
        train,
    )
    from orchestrator.decisions.plan import Plan
    from orchestrator.decisions.search import TrialResult
    from orchestrator.decisions.select import Winner
    from orchestrator.decisions.sweep import Sweep
    from orchestrator.loading import load_job
    from orchestrator.records.outcome import Outcome
    from orchestrator.records.receipt import FitResult, Receipt
    from serve.deploy.endpoint import Endpoint
    from serve.tasks.answers import Answer, Label
    from serve.version import ModelVersion

_OTHERS = {
    "cluster.inventory": ("Inventory",),
    "jobs.errors": ("WinnowError",),
    "jobs.spec": ("JobSpec",),
    "jobs.training.events": ("CheckpointRef",),
    "orchestrator.decisions.plan": ("Plan",),
    "orchestrator.decisions.search": ("TrialResult",),
    "orchestrator.decisions.select": ("Winner",),
    "orchestrator.decisions.sweep": ("Sweep",),
    "orchestrator.loading": ("load_job",),
    "orchestrator.records.outcome": ("Outcome",),
    "orchestrator.records.receipt": ("FitResult", "Receipt"),
    "serve.deploy.endpoint": ("Endpoint",),
    "serve.tasks.answers": ("Answer", "Label"),
    "serve.version": ("ModelVersion",),
}
_MODULES = {name: module for module, names in _OTHERS.items() for name in names}
"""Modules of public names that `orchestrator.api` does not have."""

__all__ = [
    "Answer",
    "CheckpointRef",
    "Endpoint",
    "FitResult",
    "Inventory",
    "JobSpec",
    "Label",
    "ModelVersion",
    "Outcome",
    "Plan",
    "Receipt",
    "Sweep",
    "TrialResult",
    "Winner",
    "WinnowError",
    "deploy",
    "load_job",
    "plan",
    "predict",
    "publish",
    "receipt",
    "run",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that has it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "orchestrator.api")), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
