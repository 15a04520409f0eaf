"""Rules across fields: combinations that can never run, found before anything starts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from jobs.errors import PASSWORD, shown
from jobs.spec import paths
from jobs.spec.data import FORMATS
from jobs.spec.harness import MARK
from jobs.spec.job import JobSpec
from jobs.spec.model import LoraSpec
from jobs.spec.quantities import format_duration
from jobs.spec.serve import RULES_OF_ALL, AdaptersSpec
from jobs.spec.sweep import LogUniform, Uniform

Path = tuple[str | int, ...]
LEAST_SILENCE = timedelta(minutes=1)
"""Of workers that hang."""
OUTPUT_LAYERS = ("lm_head", "embed_out")
"""What transformers calls the output layers of language models."""
MOST_COLUMNS = 16_384
"""Of all adapters in one layer, which each token is multiplied with."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a job breaks: the field to change and a sentence saying why and how."""

    path: Path
    message: str


Rule = Callable[[JobSpec], Iterator[Violation]]


def violations(spec: JobSpec) -> Iterator[Violation]:
    """Every cross-field rule that the job breaks."""
    for rule in RULES:
        yield from rule(spec)


def global_batch_divides_over_workers(spec: JobSpec) -> Iterator[Violation]:
    """Each optimizer step spreads its samples evenly over all workers."""
    batch = spec.train.global_batch_size
    for place, placement in spec.resources.placements if spec.resources else ():
        workers = placement.accelerators.count
        if batch % workers:
            lower = batch - batch % workers
            choices = f"{lower} or {lower + workers}" if lower else str(workers)
            yield Violation(
                ("resources", *place, "accelerators"),
                f"global batch size {batch} is not divisible by {workers} workers; use {choices}",
            )


def micro_batch_fits_global_batch(spec: JobSpec) -> Iterator[Violation]:
    """A micro batch divides the share of the global batch of some placement."""
    micro, batch = spec.train.micro_batch_size, spec.train.global_batch_size
    if micro == "auto":
        return
    listed = spec.resources.placements if spec.resources else ()
    counts = [placement.accelerators.count for _, placement in listed] or [1]
    if not any(batch % (micro * count) == 0 for count in counts):
        shares = ", ".join(str(batch // count) for count in sorted(set(counts)))
        yield Violation(
            ("train", "micro_batch_size"),
            f"micro batch size {micro} does not divide the global batch of {batch} over any"
            f" placement (samples per worker: {shares}); use a divisor or auto",
        )


def placements_are_distinct(spec: JobSpec) -> Iterator[Violation]:
    """The same placement twice would be probed and paid for twice."""
    seen: set[tuple[str, bool | None]] = set()
    for place, placement in spec.resources.placements if spec.resources else ():
        key = (str(placement.accelerators).lower(), placement.spot)
        if key in seen:
            path = ("resources", *place, "accelerators")
            yield Violation(path, f"{placement.accelerators} is listed twice; remove one")
        seen.add(key)


def placements_are_one_list(spec: JobSpec) -> Iterator[Violation]:
    """Placements are either all candidates, or preferred in their order."""
    resources = spec.resources
    if resources and bool(resources.any_of) == bool(resources.ordered):
        message = "needs one of any_of (the sweep finds the best) and ordered (the first to be had)"
        yield Violation(("resources",), message)


def columns_match_task(spec: JobSpec) -> Iterator[Violation]:
    """The data section names the columns that its task needs."""
    for field, message in spec.data.violations():
        yield Violation(("data", field) if field else ("data",), message)
    yield from (Violation(path, message) for path, message in spec.data.violations_in(spec))


def served_models_are_whole(spec: JobSpec) -> Iterator[Violation]:
    """Most endpoints load one folder, so an adapter is merged into its base first."""
    adapter, takes = spec.model.adapter, "adapters" in spec.task.serve_fields
    is_alone = adapter is not None and not adapter.merge
    if spec.serve is not None and is_alone and not takes:
        message = f"an endpoint of {spec.task.name} serves whole models; set merge to true"
        yield Violation(("model", "adapter"), message)
    if spec.serve is not None and spec.serve.adapters is not None and not is_alone:
        message = "is for adapters that are not merged; remove it, or set merge to false"
        yield Violation(("serve", "adapters"), message)
    if spec.serve is not None and adapter is not None and is_alone:
        yield from _adapter_fits(spec.serve.adapters or AdaptersSpec(), adapter)


def _adapter_fits(limits: AdaptersSpec, adapter: LoraSpec) -> Iterator[Violation]:
    """Checks that a published adapter fits into the memory that `serve.adapters` sets aside."""
    named = [name for name in OUTPUT_LAYERS if name in adapter.target_modules]
    if named and not isinstance(adapter.target_modules, str):
        message = f"an endpoint adapts no output layer ({named[0]}); remove it or set merge to true"
        yield Violation(("model", "adapter", "target_modules"), message)
    if limits.rank is not None and limits.rank < adapter.r:
        message = f"{limits.rank} is less than model.adapter.r, {adapter.r}"
        yield Violation(("serve", "adapters", "rank"), message)
    columns = limits.slots * max(limits.rank or 0, adapter.r)
    if columns > MOST_COLUMNS:
        message = (
            f"{limits.slots} of rank {columns // limits.slots} are {columns:,} columns in each"
        )
        message += f" layer; at most {MOST_COLUMNS:,} are served"
        yield Violation(("serve", "adapters", "slots"), message)


def sources_can_be_read(spec: JobSpec) -> Iterator[Violation]:
    """Rows are read from files of a few formats, from saved folders and from the hub."""
    for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        for where, path in source.placed_paths:
            if message := paths.why_unreadable(path):
                yield Violation(("data", split, *where), f"{path} {message}")
        if not isinstance(source.path, str) and not source.is_file:
            message = f"a list holds files; each ends in {', '.join(FORMATS)}"
            yield Violation(("data", split, "path"), message)


def paths_hold_no_variables(spec: JobSpec) -> Iterator[Violation]:
    """A path is taken as it is written, so that a job means the same wherever it is read."""
    for path, text in _paths(spec):
        if message := paths.why_not_literal(text):
            field = ".".join(part for part in path if isinstance(part, str))
            yield Violation(path, f"{message}, or give the path by --set {field}=...")


def _paths(spec: JobSpec) -> Iterator[tuple[Path, str]]:
    """Every field that names a file, a folder, a bucket or a model."""
    yield ("model", "base"), spec.model.base
    for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
        for where, path in source.placed_paths:
            yield ("data", split, *where), path
    yield ("storage",), spec.storage
    harness = spec.train.eval.harness
    if harness and harness.include_path:
        yield ("train", "eval", "harness", "include_path"), harness.include_path
    if spec.tracking and spec.tracking.mlflow:
        yield ("tracking", "mlflow", "uri"), spec.tracking.mlflow.uri
    if spec.serve and spec.serve.auth and spec.serve.auth.tokens_file:
        yield ("serve", "auth", "tokens_file"), spec.serve.auth.tokens_file


def train_and_eval_differ(spec: JobSpec) -> Iterator[Violation]:
    """Rows that were trained on cannot judge."""
    if spec.data.train == spec.data.eval:
        yield Violation(("data", "eval"), "is the same as data.train; hold rows back to judge by")


def ranges_rise(spec: JobSpec) -> Iterator[Violation]:
    """A range has its lower end first; a logarithmic one starts above zero."""
    for name, space in (spec.sweep.search_space if spec.sweep else {}).items():
        path: Path = ("sweep", "search_space", name)
        if isinstance(space, LogUniform) and min(space.loguniform) <= 0:
            low = min(space.loguniform)
            yield Violation(path, f"loguniform starts at {low:g}; it must start above 0")
        elif isinstance(space, LogUniform | Uniform):
            low, high = space.loguniform if isinstance(space, LogUniform) else space.uniform
            if low >= high:
                message = f"range [{low:g}, {high:g}] does not rise; write the lower end first"
                yield Violation(path, message)


def replicas_rise(spec: JobSpec) -> Iterator[Violation]:
    """The fewest replicas are not more than the most."""
    if spec.serve and spec.serve.replicas.min > spec.serve.replicas.max:
        low, high = spec.serve.replicas.min, spec.serve.replicas.max
        message = f"min {low} is above max {high}; swap them or raise max"
        yield Violation(("serve", "replicas", "min"), message)


def rollout_steps_rise(spec: JobSpec) -> Iterator[Violation]:
    """Traffic only grows during a rollout, and ends with all of it."""
    steps = spec.serve.rollout.steps if spec.serve and spec.serve.rollout else (100,)
    if list(steps) != sorted(set(steps)) or steps[-1] != 100:
        path: Path = ("serve", "rollout", "steps")
        yield Violation(path, f"steps {list(steps)} must rise and end at 100")


def gate_suits_the_task(spec: JobSpec) -> Iterator[Violation]:
    """A gate that somebody wrote asks only for what its task has."""
    rollout = spec.serve.rollout if spec.serve else None
    if rollout is None or "gate" not in rollout.model_fields_set:
        return
    for number, rule in enumerate(rollout.gate):
        known = (*RULES_OF_ALL, *spec.task.gate_rules)
        harness = spec.train.eval.harness
        if MARK in rule.name and not (harness and harness.has_metric(rule.name)):
            task = shown(rule.name.partition(MARK)[0])
            message = f"{rule.name} needs the task {task} in train.eval.harness; add it there"
            yield Violation(("serve", "rollout", "gate", number), message)
        elif MARK not in rule.name and rule.name not in known:
            message = f"{rule.name} is not judged for {spec.task.name}; it has {', '.join(known)}"
            yield Violation(("serve", "rollout", "gate", number), message)


def offload_needs_sharding(spec: JobSpec) -> Iterator[Violation]:
    """Only sharded optimizer state can move to host memory."""
    if spec.train.cpu_offload and spec.train.strategy == "ddp":
        message = "cpu_offload needs strategy zero2 or zero3; ddp keeps state on the device"
        yield Violation(("train", "cpu_offload"), message)


def storage_names_a_bucket(spec: JobSpec) -> Iterator[Violation]:
    """A URL is one of S3, with a bucket; anything else is a folder."""
    scheme, mark, rest = spec.storage.partition("://")
    if mark and (scheme != "s3" or not rest.partition("/")[0]):
        what = f"{shown(spec.storage)} is neither a folder nor a bucket; write s3://bucket/prefix"
        yield Violation(("storage",), what)


def silence_is_not_a_hang_at_once(spec: JobSpec) -> Iterator[Violation]:
    """Starting, compiling and judging report nothing for a while."""
    if spec.train.hang_after < LEAST_SILENCE:
        value, least = format_duration(spec.train.hang_after), format_duration(LEAST_SILENCE)
        message = f"{value} of silence is no hang yet; use {least} or more"
        yield Violation(("train", "hang_after"), message)


def urls_hold_no_passwords(spec: JobSpec) -> Iterator[Violation]:
    """What a job file says is in every record of its runs."""
    for path, text in _texts(spec.model_dump(mode="json")):
        if PASSWORD.search(text):
            message = (
                "has a user or a password in its URL, which every record of a run would show; let"
                " the environment hold it, such as MLFLOW_TRACKING_USERNAME and _PASSWORD"
            )
            yield Violation(path, message)


def _texts(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))


RULES: tuple[Rule, ...] = (
    urls_hold_no_passwords,
    silence_is_not_a_hang_at_once,
    storage_names_a_bucket,
    global_batch_divides_over_workers,
    micro_batch_fits_global_batch,
    placements_are_distinct,
    placements_are_one_list,
    columns_match_task,
    paths_hold_no_variables,
    sources_can_be_read,
    train_and_eval_differ,
    ranges_rise,
    replicas_rise,
    rollout_steps_rise,
    gate_suits_the_task,
    offload_needs_sharding,
    served_models_are_whole,
)
