"""Rules across fields of the train section: optimizer, schedule and early stopping."""

from collections.abc import Iterator

from jobs.errors import listed, shown
from jobs.spec import task_registry
from jobs.spec.job import JobSpec
from jobs.spec.metric_rules import no_metric
from jobs.spec.rules import Rule, Violation
from jobs.spec.task import LOSS
from jobs.spec.train import DEFAULT_MOMENTUM

FALLING = ("linear", "cosine", "polynomial")
"""Schedules that fall to a rate that a job may choose."""
WHOLE_MATRICES = ("adafactor", "muon")
"""Optimizers that need whole matrices, and not a worker's share of them."""


def violations(spec: JobSpec) -> Iterator[Violation]:
    """Every rule of the train section that the job breaks."""
    for rule in RULES:
        yield from rule(spec)


def optimizer_has_its_options(spec: JobSpec) -> Iterator[Violation]:
    """Momentum belongs to the optimizers that have one."""
    optimizer = spec.train.optimizer
    path = ("train", "optimizer")
    if optimizer.momentum is not None and optimizer.name not in DEFAULT_MOMENTUM:
        names = " and ".join(DEFAULT_MOMENTUM)
        message = f"{optimizer.name} takes no momentum; remove it (it is for {names})"
        yield Violation((*path, "momentum"), message)
    if optimizer.nesterov and optimizer.name == "muon":
        message = "muon always uses Nesterov's momentum; remove nesterov"
        yield Violation((*path, "nesterov"), message)
    elif optimizer.nesterov and optimizer.name != "sgd":
        message = f"{optimizer.name} takes no nesterov; remove it (it is for sgd)"
        yield Violation((*path, "nesterov"), message)
    elif optimizer.nesterov and not optimizer.momentum_or_default:
        message = "Nesterov's momentum needs a momentum above 0; set momentum to 0.9"
        yield Violation((*path, "nesterov"), message)


def optimizer_suits_the_strategy(spec: JobSpec) -> Iterator[Violation]:
    """A sharded weight is no whole matrix."""
    name, strategy = spec.train.optimizer.name, spec.train.strategy
    if name in WHOLE_MATRICES and strategy != "ddp":
        message = f"{name} needs whole matrices, which {strategy} divides; use adamw or sgd, or ddp"
        yield Violation(("train", "optimizer", "name"), message)


def schedule_has_its_options(spec: JobSpec) -> Iterator[Violation]:
    """Power and floor belong to the schedules that have them."""
    schedule = spec.train.lr_schedule
    path = ("train", "lr_schedule")
    if schedule.power is not None and schedule.type != "polynomial":
        message = f"a {schedule.type} schedule has no power; write type: polynomial, or remove it"
        yield Violation((*path, "power"), message)
    if schedule.floor and schedule.type not in FALLING:
        message = f"a {schedule.type} schedule has no floor; use {', '.join(FALLING)}"
        yield Violation((*path, "floor"), message)


def early_stopping_has_its_metric(spec: JobSpec) -> Iterator[Violation]:
    """Training ends by a value that evaluations compute."""
    stopping = spec.train.early_stopping
    known = (*spec.metrics, LOSS.name)
    if stopping and stopping.metric is not None and stopping.metric not in known:
        message = (
            f"{shown(stopping.metric)} is not among {', '.join(known)}; add it to"
            " train.eval.metrics"
        )
        if spec.task.metric(stopping.metric) is None:
            message = no_metric(spec, stopping.metric)
        yield Violation(("train", "early_stopping", "metric"), message)


def adapters_can_be_loaded(spec: JobSpec) -> Iterator[Violation]:
    """An adapter alone is loaded by peft's class for the task."""
    adapter = spec.model.adapter
    if adapter and not adapter.merge and not spec.task.adapter_type:
        message = f"peft loads no adapter of {spec.task.name}; set model.adapter.merge to true"
        yield Violation(("model", "adapter"), message)


def quantized_bases_can_be_trained(spec: JobSpec) -> Iterator[Violation]:
    """Decoders alone are quantized, on workers that hold them whole, and published merged."""
    adapter = spec.model.adapter
    if adapter is None or adapter.quantization is None:
        return
    message = ""
    if not spec.task.is_decoder:
        able = listed([task.name for task in task_registry.every() if task.is_decoder])
        message = f"{spec.task.name} has no quantized base; it is for {able}"
    elif spec.train.strategy != "ddp":
        message = (
            f"train.strategy {spec.train.strategy} shards weights, and quantized ones are held"
            " whole; set it to ddp"
        )
    elif not adapter.merge:
        message = "an adapter of a quantized base does not suit the base itself; set merge to true"
    if message:
        yield Violation(("model", "adapter", "quantization"), message)


RULES: tuple[Rule, ...] = (
    optimizer_has_its_options,
    optimizer_suits_the_strategy,
    schedule_has_its_options,
    early_stopping_has_its_metric,
    adapters_can_be_loaded,
    quantized_bases_can_be_trained,
)
