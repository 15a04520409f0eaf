"""Rules across fields about metrics: those that are computed, optimised and limited."""

from collections.abc import Iterator

from jobs.errors import listed, shown
from jobs.spec import task_registry
from jobs.spec.harness import MARK
from jobs.spec.job import JobSpec
from jobs.spec.quantities import format_duration
from jobs.spec.rules import Path, Rule, Violation


def violations(spec: JobSpec) -> Iterator[Violation]:
    """Every rule about metrics that the job breaks."""
    for rule in RULES:
        yield from rule(spec)


def metrics_match_task(spec: JobSpec) -> Iterator[Violation]:
    """Each metric can be computed for the task."""
    for index, name in enumerate(spec.train.eval.metrics or ()):
        if spec.task.metric(name) is None:
            yield Violation(("train", "eval", "metrics", index), no_metric(spec, name))


def no_metric(spec: JobSpec, name: str) -> str:
    """Returns a sentence that refuses a name that is not a metric of every evaluation."""
    harness = spec.train.eval.harness
    task = name.partition(MARK)[0]
    if harness and harness.has_metric(name):
        return (
            f"{shown(name)} is known after training alone, because the harness judges the published"
            " model; name it in sweep.objective.subject_to or in serve.rollout.gate"
        )
    if harness and name in harness.tasks:
        return f"{shown(name)} is a task of the harness; name one of its metrics, as in {name}/acc"
    if MARK in name:
        return f"{shown(name)} needs the task {shown(task)} in train.eval.harness; add it there"
    return spec.task.no_metric(name)


def harness_metrics(spec: JobSpec) -> Iterator[tuple[Path, str]]:
    """Metrics of the harness that a limit or the gate of a rollout names, with their fields."""
    for name in spec.sweep.objective.subject_to if spec.sweep else ():
        if MARK in name:
            yield ("sweep", "objective", "subject_to", name), name
    rollout = spec.serve.rollout if spec.serve else None
    for number, rule in enumerate(rollout.gate if rollout else ()):
        if MARK in rule.name:
            yield ("serve", "rollout", "gate", number), rule.name


def harness_leaves_time(spec: JobSpec) -> Iterator[Violation]:
    """What is kept for the harness is a part of the budget."""
    most = spec.budget.max_duration if spec.budget else None
    if most is not None and spec.train.eval.harness_s >= most.total_seconds():
        message = f"is all of budget.max_duration ({format_duration(most)}); leave time to train"
        yield Violation(("train", "eval", "harness", "max_duration"), message)


def harness_needs_a_language_model(spec: JobSpec) -> Iterator[Violation]:
    """The harness judges models that continue a text."""
    if spec.train.eval.harness and not spec.task.is_decoder:
        able = listed([task.name for task in task_registry.every() if task.is_decoder])
        message = f"{spec.task.name} has no language model to judge; remove it (it is for {able})"
        yield Violation(("train", "eval", "harness"), message)


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
    if metric is None and (field == "maximize" or MARK in name):
        yield Violation(path, no_metric(spec, name))
    elif name not in spec.metrics:
        known = ", ".join(spec.metrics)
        also = "cost, time or a metric of" if field == "minimize" else "among"
        yield Violation(path, f"{shown(name)} is not {also} train.eval.metrics ({known})")
    elif metric and not field.startswith(metric.goal):
        better, other = ("lower", "minimize") if metric.goal == "min" else ("higher", "maximize")
        yield Violation(path, f"{name} is better when {better}; write `{other}: {name}`")


def limits_name_known_values(spec: JobSpec) -> Iterator[Violation]:
    """Limits are on cost, time or a computed metric, in that value's unit."""
    metrics, harness = spec.metrics, spec.train.eval.harness
    for name, bound in (spec.sweep.objective.subject_to if spec.sweep else {}).items():
        path: Path = ("sweep", "objective", "subject_to", name)
        is_of_harness = harness is not None and harness.has_metric(name)
        if name not in ("cost", "time", *metrics) and not is_of_harness:
            known = ", ".join(("cost", "time", *metrics))
            message = f"is not among {known}; add it to train.eval.metrics"
            yield Violation(path, message if spec.task.metric(name) else no_metric(spec, name))
        elif (name == "time") != bound.is_duration:
            example = "'<=30m'" if name == "time" else "'<=2.50'" if name == "cost" else "'>=0.9'"
            message = f"'{bound}' has the wrong unit for {name}; write it like {example}"
            yield Violation(path, message)
        elif (metric := spec.task.metric(name)) and bound.value > metric.highest:
            most = f"{name} is never above {metric.highest:g}"
            yield Violation(path, f"{most}, so '{bound}' cannot be judged; write a share or %")


RULES: tuple[Rule, ...] = (
    metrics_match_task,
    harness_needs_a_language_model,
    harness_leaves_time,
    objective_is_one_known_value,
    limits_name_known_values,
)
