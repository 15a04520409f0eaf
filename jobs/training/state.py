"""The content of a checkpoint: copied from a session to the host, and restored into a session."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
import torch
from torch.distributed.tensor import DTensor

from jobs.errors import CheckpointError, TrainingError
from jobs.storage import manifest
from jobs.training import eval_sample, quality, random_states
from jobs.training.config import learning_digest
from jobs.training.events import CheckpointRef
from jobs.training.model import adapter, base, parallel, quantized
from jobs.training.quality import QualityReport
from jobs.training.session import Session, reseed, settle_generation

OPTIMIZER_FILE, RANDOM_FILE, SCALARS_FILE = (
    "optimizer.safetensors",
    "random.safetensors",
    "state.json",
)
ADAPTER_DIR = "adapter"
"""Folder of the adapter beside a merged model, to resume from."""
TRAINED_FILE = "trained.safetensors"
"""Weights that are trained in another form than the model folder has them, to resume from."""
ROWS, LEARNING = "rows", "learning"
"""Keys of the digests of the rows, and of the settings that decide learning, in SCALARS_FILE."""

Tensors = dict[str, torch.Tensor]
EMPTY: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a checkpoint in host memory."""

    reference: CheckpointRef
    weights: Tensors
    optimizer: Tensors
    random: Tensors
    scalars: dict[str, float]
    scores: list[Any] | None = None
    """Scores of the sampled evaluation rows in the last checkpoint; None in earlier ones."""
    quality: QualityReport | None = None
    """Report of the last evaluation, if the task has one."""

    @property
    def is_last(self) -> bool:
        """Whether it is the last checkpoint, whose model may be published."""
        return self.scores is not None


def take(
    session: Session,
    reference: CheckpointRef,
    scores: list[Any] | None = None,
    quality: QualityReport | None = None,
    others: Mapping[str, float] = EMPTY,
) -> Snapshot:
    """Copies the state of a session to the host; every worker must call this.

    Only the main worker's snapshot holds the tensors. `others` are numbers that are kept besides.
    """
    update, keeps = session.update, session.world.is_main
    update.synchronize()
    weights = {
        name: _to_host(parallel.full(tensor), keeps=keeps)
        for name, tensor in _saved_weights(session).items()
    }
    optimizer, device = {}, session.world.device
    for weight in update.weights:
        for name, value in update.state(weight).items():
            whole = parallel.whole_of(weight.source, value, device) if value.dim() else value
            optimizer[f"{weight.name}.{name}"] = _to_host(whole, keeps=keeps)
    scale = {"loss_scale": float(update.loss_scale), "good_steps": float(update.good_steps)}
    random = {
        f"{kind}.{rank}": state
        for rank, states in enumerate(session.world.gather(random_states.read(device)))
        for kind, state in states.items()
    }
    if device.type == "cuda":
        torch.cuda.synchronize()
    return Snapshot(reference, weights, optimizer, random, {**scale, **others}, scores, quality)


def write(snapshot: Snapshot, session: Session, folder: Path) -> None:
    """Writes a snapshot's files."""
    _write_model(snapshot, session, folder / manifest.MODEL_DIR)
    safetensors.torch.save_file(snapshot.optimizer, folder / OPTIMIZER_FILE)
    safetensors.torch.save_file(snapshot.random, folder / RANDOM_FILE)
    scalars = {**snapshot.scalars, **_digests(session)}
    (folder / SCALARS_FILE).write_text(json.dumps(scalars), encoding="utf-8")


def restore(session: Session, reference: CheckpointRef) -> dict[str, float]:
    """Restores weights, optimizer, loss scale and random states from verified files.

    Returns the numbers of the checkpoint, among them those that `take` got.

    Raises:
        TrainingError: if the checkpoint was trained on other rows or with other settings, and the
            job does not accept it.
        CheckpointError: if the checkpoint lacks a trained weight.
    """
    folder = Path(reference.path)
    scalars = json.loads((folder / SCALARS_FILE).read_text(encoding="utf-8"))
    if not session.config.accepts_changes:
        _check_unchanged(scalars, session, reference)
    _load_weights(session, folder / manifest.MODEL_DIR)
    saved = safetensors.torch.load_file(folder / OPTIMIZER_FILE)
    update, device = session.update, session.world.device
    for weight in update.weights:
        for name, value in update.state(weight).items():
            found = saved.get(f"{weight.name}.{name}")
            if found is None:
                raise CheckpointError(
                    f"the checkpoint of step {reference.step} does not hold the {name} of"
                    f" {weight.name}, which is trained now; start a new run"
                )
            value.copy_(parallel.own_part(weight.source, found, device) if value.dim() else found)
    update.loss_scale.fill_(scalars["loss_scale"])
    update.good_steps.fill_(scalars["good_steps"])
    _restore_random(session, reference.step, safetensors.torch.load_file(folder / RANDOM_FILE))
    return {name: value for name, value in scalars.items() if name not in (ROWS, LEARNING)}


def _digests(session: Session) -> dict[str, str]:
    return {ROWS: session.corpus.digest, LEARNING: learning_digest(session.config)}


def _check_unchanged(
    scalars: Mapping[str, Any], session: Session, reference: CheckpointRef
) -> None:
    """Raises TrainingError if a checkpoint is of other rows, settings or weights of the base.

    Those of older releases do not say.
    """
    how = {
        ROWS: "on other rows than the job names now",
        LEARNING: "with another optimizer, schedule, length, batch size, precision or seed than the"
        " job names now",
    }
    changed = [how[key] for key, own in _digests(session).items() if scalars.get(key, own) != own]
    if reference.base_weights and reference.base_weights != session.base_weights:
        changed.append(f"on weights of {session.config.model.base} that have changed since")
    if changed:
        raise TrainingError(
            f"the checkpoint of step {reference.step} was trained {changed[0]}; start a new run, or"
            " continue with --accept-changes"
        )


def _write_model(snapshot: Snapshot, session: Session, folder: Path) -> None:
    """Writes a folder that transformers can load, or peft for an adapter."""
    folder.mkdir()
    weights = {name: tensor.contiguous() for name, tensor in snapshot.weights.items()}
    model = session.model
    if adapter.has_adapter(model):
        lora = session.config.model.adapter
        if lora is not None and lora.merge and snapshot.is_last:
            _write_merged(snapshot, session, folder)
            folder = folder.with_name(ADAPTER_DIR)
            folder.mkdir()
        model.peft_config["default"].save_pretrained(folder)
        bare = adapter.unwrapped(model)
        if bare.can_generate():
            bare.generation_config.save_pretrained(folder)
        name = "adapter_model.safetensors"
    else:
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
        name = "model.safetensors"
    published = session.training.published(weights)
    safetensors.torch.save_file(published, folder / name, metadata={"format": "pt"})
    trained = {name: weights[name] for name in weights if published[name] is not weights[name]}
    if trained:
        safetensors.torch.save_file(trained, folder.parent / TRAINED_FILE)
    _write_beside(snapshot, session, folder)


def _write_merged(snapshot: Snapshot, session: Session, folder: Path) -> None:
    """Writes the base model in fp32 with the adapter merged into its weights."""
    spec = session.config.model
    corpus = session.corpus
    revision = session.model.peft_config["default"].revision
    loaded = base.load_model(spec, corpus.label_names, corpus.tokenizer, revision=revision)
    if loaded.weights != session.base_weights:
        raise TrainingError(
            f"the weights of {spec.base} have changed while the adapter was trained; bring them"
            " back, and run again with --resume"
        )
    model = adapter.add_adapter(loaded, spec)
    adapter.load_adapter_state(model, snapshot.weights)
    if spec.adapter and spec.adapter.quantization:
        _round_as(model, session.model)
    _untie(model)
    merged = model.merge_and_unload()
    with torch.no_grad():
        for name, tensor in session.training.published(dict(merged.state_dict())).items():
            merged.state_dict()[name].copy_(tensor)
    settle_generation(merged, session.config, corpus)
    merged.save_pretrained(folder)
    _write_beside(snapshot, session, folder)


def _round_as(model: Any, trained: Any) -> None:
    """Gives the base of a model the weights that the adapter was trained with."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in quantized.whole_weights(trained):
            own[name].copy_(weight)


def _untie(model: Any) -> None:
    """Gives an adapted output layer its own weight, because merging would change the embedding."""
    embedding = base.token_embeddings(model)
    for module in model.modules():
        layer = getattr(module, "base_layer", None)
        if isinstance(layer, torch.nn.Linear) and layer.weight is embedding:
            layer.weight = torch.nn.Parameter(layer.weight.detach().clone())
            for config in (model.config, model.config.get_text_config()):
                config.tie_word_embeddings = False


def _saved_weights(session: Session) -> Tensors:
    state = session.model.state_dict()
    if adapter.has_adapter(session.model):
        return adapter.adapter_state(session.model, state)
    seen: set[int] = set()  # tied weights are written once, as transformers does
    return {
        name: tensor
        for name, tensor in state.items()
        if not (id_of(tensor) in seen or seen.add(id_of(tensor)))  # type: ignore[func-returns-value]
    }


def id_of(tensor: torch.Tensor) -> int:
    """Returns an id of a tensor's memory; tied weights have the same id."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.data_ptr() or id(tensor)


def _load_weights(session: Session, folder: Path) -> None:
    model = session.model
    place = folder.with_name(TRAINED_FILE)
    trained = safetensors.torch.load_file(place) if place.exists() else {}
    if adapter.has_adapter(model):
        beside = folder.with_name(ADAPTER_DIR)  # exists if the model folder holds a merged model
        place = beside if beside.exists() else folder
        saved = safetensors.torch.load_file(place / "adapter_model.safetensors") | trained
        adapter.load_adapter_state(model, saved)
    else:
        saved = safetensors.torch.load_file(folder / "model.safetensors") | trained
        own = model.state_dict()
        with torch.no_grad():
            for name, tensor in saved.items():
                parallel.copy_into(own[name], tensor, session.world.device)
    session.update.refresh_copies()


def _to_host(tensor: torch.Tensor, *, keeps: bool) -> torch.Tensor:
    """Copies a tensor to the host; returns an empty tensor for workers that write nothing."""
    if not keeps:
        return torch.empty(0)
    on_gpu = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
    return host.copy_(tensor.detach(), non_blocking=True)


def _restore_random(session: Session, step: int, saved: Tensors) -> None:
    """Restores each worker's random state; seeds by the step if the number of workers changed."""
    world = session.world
    kinds = {name.split(".")[0] for name in saved}
    if sum(name.startswith("cpu.") for name in saved) != world.size:
        reseed(session.config.seed, world, step)
        return
    own = {kind: saved[f"{kind}.{world.rank}"] for kind in kinds}
    random_states.write(own, world.device)


def _write_beside(snapshot: Snapshot, session: Session, folder: Path) -> None:
    """Writes the tokenizer, and the sampled evaluation rows if there are scores."""
    corpus = session.corpus
    corpus.tokenizer.save_pretrained(folder)
    session.training.write_beside(folder, session.model)
    if snapshot.scores is not None:
        rows = eval_sample.rows_of(corpus.eval, snapshot.scores, corpus.sample_texts)
        eval_sample.write(rows, folder)
    if snapshot.quality is not None:
        quality.write(snapshot.quality, folder)
