"""Builds all parts of a training process once."""

import dataclasses
import importlib.util
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jobs.errors import TrainingError
from jobs.spec import task_registry
from jobs.training import first_tokens, references
from jobs.training.config import TrainingConfig
from jobs.training.corpus import Corpus
from jobs.training.data.encoding import Progress
from jobs.training.data.tokens import TokenSet, TokenStore
from jobs.training.engine.batch_plan import BatchPlan
from jobs.training.engine.capture import compiled, is_compiled
from jobs.training.engine.device_loader import DeviceLoader
from jobs.training.engine.engine import Engine
from jobs.training.engine.step import LOSSES_KEPT, TrainStep
from jobs.training.engine.update import Update
from jobs.training.model import (
    adapter,
    base,
    low_precision,
    parallel,
    parts,
    precision,
    quantized,
)
from jobs.training.model.library import as_model_error
from jobs.training.model.weight import Weight
from jobs.training.proofs import proven
from jobs.training.task import TaskTraining, training_of
from jobs.training.world import World

DEVICE_SHARE = 0.1
"""Share of a GPU's memory for the tokenised rows; larger data stay in pinned host memory."""

SHORT_ROW = 256
"""Longest row, in tokens, for which cuDNN's attention is off, because its tiles are made for longer
rows: on an H200, steps at about 20 tokens are 4 to 7 % faster with PyTorch's other kernel."""


@dataclass(frozen=True, slots=True)
class Session:
    """The parts of one training process."""

    config: TrainingConfig
    world: World
    corpus: Corpus
    model: Any
    """The unwrapped model, whose fp32 weights are saved."""
    eval_store: TokenStore
    engine: Engine
    training: TaskTraining
    """The task's losses, sums and scores, with what follows from this run's rows."""
    remarks: tuple[str, ...] = ()
    """Deviations from the job or from its base model, with reasons."""
    lacks_references: bool = False
    """Whether the base has to score all rows before the first step of a run on this machine."""
    base_weights: str = ""
    """Digest of the base's weights if an adapter is trained on them; else empty."""
    drawn: tuple[str, ...] = ()
    """Modules that the base lacks, whose first weights are drawn."""

    @property
    def update(self) -> Update:
        """The optimizer with clipping, loss scaling and guard."""
        return self.engine.step.update

    @property
    def batch_plan(self) -> BatchPlan:
        """The batches and learning rates of all steps."""
        return self.engine.step.batch_plan


def build_session(
    config: TrainingConfig,
    corpus: Corpus,
    world: World,
    *,
    has_references: bool = True,
    progress: Progress | None = None,
    settles: bool = True,
    revision: str | None = None,
) -> Session:
    """Builds model, optimizer and engine; the same seed gives the same weights in every process.

    Without `has_references`, losses that compare with the base compare with zeros; `progress` is
    told how many rows of how many the base has scored. Without `settles` the caller settles the
    engine. `revision` is a commit of a base on the hub, by default the newest.

    Raises:
        ModelError: if the base model cannot be loaded or used, or workers have read other weights.
        TrainingError: if a metric's package is not installed.
    """
    _check_metrics(config)
    if config.model.adapter and config.model.adapter.quantization:
        quantized.check_installed()
    precision.set_matmul_precision(config.precision)
    if world.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(config.data.max_length > SHORT_ROW)
    model, loaded = _model(config, corpus, world, revision)
    base.check_same(world.gather(loaded.weights), config.model.base)
    with parallel.recording_calls() as called:
        corpus, rows_remark = proven(corpus, model, config, world)
    training = first_tokens.tried(model, corpus, config, world)
    is_random = _checkpoint_layers(model, training, corpus, config, world)
    own = (corpus, training, model, config, world)
    # before weights are divided or trained
    corpus, lacks_references = _referenced(*own, computes=has_references, progress=progress)
    wrapped, weights = _distributed(model, loaded, config, world, called)
    step = _step(wrapped, weights, corpus.train, training, config, world)
    step = dataclasses.replace(step, keeps_random_states=is_random)
    remarks = (*loaded.remarks, rows_remark, training.remark, step.update.remark)
    return Session(
        config=config,
        world=world,
        corpus=corpus,
        model=model,
        eval_store=_store(corpus.eval, world),
        engine=Engine(step, settles=settles),
        training=training,
        remarks=tuple(filter(None, remarks)),
        lacks_references=lacks_references,
        base_weights=loaded.weights if config.model.adapter else "",
        drawn=loaded.fresh,
    )


def _step(
    wrapped: Any,
    weights: Sequence[Weight],
    tokens: TokenSet,
    training: TaskTraining,
    config: TrainingConfig,
    world: World,
) -> TrainStep:
    """Returns the optimizer step of a distributed model, whose gradients workers exchange."""
    layers = parallel.repeated_layers(wrapped)
    _compile(layers, config, world)
    plan = BatchPlan(config, tokens, world)
    update = Update(weights, config.optimizer, config.precision, world, plan.total_steps)
    if update.exchanges:
        update.attach(wrapped, layers, plan.passes)
    elif world.size > 1 and not parallel.is_sharded(config, world):
        wrapped = parallel.average_gradients(wrapped, world)
    reseed(config.seed, world)
    return TrainStep(
        config=config,
        world=world,
        model=wrapped,
        loader=DeviceLoader(_store(tokens, world), plan, world.device),
        batch_plan=plan,
        update=update,
        objective=training.loss,
        losses=torch.zeros(LOSSES_KEPT, 2, device=world.device),
        loss=torch.zeros((), device=world.device),
        counter=torch.zeros(1, dtype=torch.int64, device=world.device),
    )


def _checkpoint_layers(
    model: Any, training: TaskTraining, corpus: Corpus, config: TrainingConfig, world: World
) -> bool:
    """Lets the backward pass compute what happens inside of layers again, if the job asks for it.

    Returns whether layers draw random numbers, so that each keeps the random state it began with.
    """
    if not config.gradient_checkpointing:
        return False
    is_random = first_tokens.draws(training, model, corpus, config, world)
    clause = f"train.gradient_checkpointing has to be removed for {config.model.base}"
    with as_model_error(clause):
        model.gradient_checkpointing_enable(
            {"use_reentrant": False, "preserve_rng_state": is_random}
        )
        model.enable_input_require_grads()  # frozen embeddings would end the backward pass
    return is_random


def _distributed(
    model: Any,
    loaded: base.LoadedModel,
    config: TrainingConfig,
    world: World,
    called: Container[torch.nn.Module],
) -> tuple[Any, list[Weight]]:
    """Returns the model for the forward pass, replicated or sharded, and its trained weights."""
    if parallel.is_sharded(config, world):
        wrapped, weights = parallel.shard(model, config, world, called)
    else:
        wrapped, weights = parallel.replicate(model, config)
    heads = (*loaded.fresh, *training_of(config.model.task).heads)
    return wrapped, parts.with_rates(weights, model, heads, config.optimizer, config.model)


def _referenced(
    corpus: Corpus,
    training: TaskTraining,
    model: Any,
    config: TrainingConfig,
    world: World,
    *,
    computes: bool,
    progress: Progress | None,
) -> tuple[Corpus, bool]:
    """Returns the corpus with what the loss needs of the base, and whether that is to be computed.

    Without `computes`, and for losses that do not compare with the base, the corpus stays as it is.
    """
    if not training.has_references:
        return corpus, False
    if computes:
        return references.with_references(corpus, training, model, config, world, progress), False
    return corpus, not references.is_known(corpus, model, config)


def _compile(layers: Sequence[Any], config: TrainingConfig, world: World) -> None:
    """Compiles repeated layers on a GPU, if the job asks for it."""
    # with an adapter most memory is that of activations
    recomputes = config.model.adapter is not None and not config.gradient_checkpointing
    if is_compiled(config, world):
        for layer in layers:  # `forward` and not the call, because hooks differ between layers
            layer.forward = compiled(layer.forward, recomputes=recomputes)


def _check_metrics(config: TrainingConfig) -> None:
    """Raises TrainingError for a metric of a package that is not installed."""
    for metric in task_registry.find(config.model.task).metrics:
        module = metric.package.replace("-", "_")
        if module and metric.name in config.metrics and importlib.util.find_spec(module) is None:
            raise TrainingError(
                f"train.eval.metrics has {metric.name}, which {metric.package} computes, and it is"
                " not installed; pip install 'raywinnow[metrics]' on every node, or remove it"
            )


def _model(
    config: TrainingConfig, corpus: Corpus, world: World, revision: str | None = None
) -> tuple[Any, base.LoadedModel]:
    """Returns the model on its device, with its adapter, and what was loaded of its base."""
    torch.manual_seed(config.seed)  # draws what the base lacks
    is_sharded = parallel.is_sharded(config, world)
    # what an adapter leaves frozen needs no fp32 copy before it is cast
    is_frozen = config.model.adapter is not None and not is_sharded
    loaded = base.load_model(
        config.model,
        corpus.label_names,
        corpus.tokenizer,
        keeps_dtype=is_frozen,
        quantized_for=config.precision if is_frozen else None,
        device=world.device if is_frozen and world.device.type == "cuda" else None,
        revision=revision,
    )
    settle_generation(loaded.model, config, corpus)
    model = adapter.add_adapter(loaded, config.model)
    if not is_sharded:
        low_precision.cast_frozen(model, config.precision)
    return model.to(world.device).train(), loaded


def first_model(config: TrainingConfig, corpus: Corpus, world: World) -> Any:
    """Returns the model in host memory, as a new session of the configuration begins with it.

    Raises:
        ModelError: if the base model cannot be loaded or used.
    """
    return _model(config, corpus, dataclasses.replace(world, device=torch.device("cpu")))[0]


def settle_generation(model: Any, config: TrainingConfig, corpus: Corpus) -> None:
    """Sets how a loaded base ends its answers, and what else its task decides of them."""
    base.settle_generation(model, corpus.end_tokens, corpus.tokenizer)
    task = training_of(config.model.task)
    task.settle(model, config.data, corpus.train, corpus.tokenizer)


def reseed(seed: int, world: World, step: int = 0) -> None:
    """Sets a worker's random state: every worker needs its own, so that dropout masks differ."""
    torch.manual_seed(hash((seed, world.rank, step)) & 0x7FFFFFFF)


def _store(tokens: TokenSet, world: World) -> TokenStore:
    fits = True
    if world.device.type == "cuda":
        total = torch.cuda.get_device_properties(world.device).total_memory
        fits = tokens.size_bytes <= DEVICE_SHARE * total
    return TokenStore(tokens, world.device, on_device=fits)
