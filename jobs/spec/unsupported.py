"""Parts of the format that a task's endpoint does not honour: refused, or they would mislead."""

from collections.abc import Callable, Iterator

from jobs.spec.job import JobSpec
from jobs.spec.rules import Violation
from jobs.spec.serve import ServeSpec
from jobs.spec.task import ServeField

USES: dict[ServeField, Callable[[ServeSpec], bool]] = {
    "engine": lambda serve: serve.engine != "auto",
    "grpc": lambda serve: serve.grpc,
    "fronts": lambda serve: serve.fronts not in ("auto", 0),
    "adapters": lambda serve: serve.adapters is not None,
    "max_context": lambda serve: serve.max_context is not None,
    "slo.p95_ttft": lambda serve: serve.slo is not None and serve.slo.p95_ttft is not None,
    "slo.p95_tpot": lambda serve: serve.slo is not None and serve.slo.p95_tpot is not None,
}
"""Fields of the serve section that not every task honours, and whether a job uses them."""


def unsupported(spec: JobSpec) -> Iterator[Violation]:
    """Fields in use that the task's endpoint does not honour."""
    for name, is_used in USES.items():
        if spec.serve and is_used(spec.serve) and name not in spec.task.serve_fields:
            message = f"is not supported yet for {spec.model.task}; remove it or change it"
            yield Violation(("serve", *name.split(".")), message)
