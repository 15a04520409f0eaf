"""Rules across fields about metrics: those that are computed, optimised and limited."""

from collections.abc import Iterator

from jobs.errors import shown
from jobs.spec.job import JobSpec
from jobs.spec.rules import Path, Rule, Violation


def violations(spec: JobSpec) -> Iterator[Violation]:
    """Every rule about metrics that the job breaks."""
    for rule in RULES:
        yield from rule(spec)


def metrics_match_task(spec: JobSpec) -> Iterator[Violation]:
    """Each metric can be computed for the task."""
    for index, name in enumerate(spec.train.eval.metrics or ()):
        if spec.task.metric(name) is None:
            yield Violation(("train", "eval", "metrics", index), spec.task.no_metric(name))


def objective_is_one_known_value(spec: JobSpec) -> Iterator[Violation]:
    """Exactly one of cost, time or a computed metric is optimised."""
    if spec.sweep is None:
        return
    objective = spec.sweep.objective
    path: Path = ("sweep", "objective")
    if (objective.minimize is None) == (objective.maximize is None):
        yield Violation(path, "needs exactly one of minimize and maximize")
    if objective.minimize not in (None, "cost", "time"):
        yield from _metric_has_goal(spec, "minimize", objective.minimize)
    if objective.maximize is not None:
        yield from _metric_has_goal(spec, "maximize", objective.maximize)


def _metric_has_goal(spec: JobSpec, field: str, name: str) -> Iterator[Violation]:
    """The metric is computed, and better in the direction of the objective."""
    path, metric = ("sweep", "objective", field), spec.task.metric(name)
    if metric is None and field == "maximize":
        yield Violation(path, spec.task.no_metric(name))
    elif name not in spec.metrics:
        known = ", ".join(spec.metrics)
        also = "cost, time or a metric of" if field == "minimize" else "among"
        yield Violation(path, f"{shown(name)} is not {also} train.eval.metrics ({known})")
    elif metric and not field.startswith(metric.goal):
        better, other = ("lower", "minimize") if metric.goal == "min" else ("higher", "maximize")
        yield Violation(path, f"{name} is better when {better}; write `{other}: {name}`")


def limits_name_known_values(spec: JobSpec) -> Iterator[Violation]:
    """Limits are on cost, time or a computed metric, in that value's unit."""
    metrics = spec.metrics
    for name, bound in (spec.sweep.objective.subject_to if spec.sweep else {}).items():
        path: Path = ("sweep", "objective", "subject_to", name)
        if name not in ("cost", "time", *metrics):
            known = ", ".join(("cost", "time", *metrics))
            message = f"is not among {known}; add it to train.eval.metrics"
            yield Violation(path, message if spec.task.metric(name) else spec.task.no_metric(name))
        elif (name == "time") != bound.is_duration:
            example = "'<=30m'" if name == "time" else "'<=2.50'" if name == "cost" else "'>=0.9'"
            message = f"'{bound}' has the wrong unit for {name}; write it like {example}"
            yield Violation(path, message)
        elif (metric := spec.task.metric(name)) and bound.value > metric.highest:
            most = f"{name} is never above {metric.highest:g}"
            yield Violation(path, f"{most}, so '{bound}' cannot be judged; write a share or %")


RULES: tuple[Rule, ...] = (
    metrics_match_task,
    objective_is_one_known_value,
    limits_name_known_values,
)
