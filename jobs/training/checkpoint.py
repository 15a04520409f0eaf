"""Training state on disk: copied off the device, written beside its place, hashed, renamed."""

import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from jobs.errors import CheckpointError
from jobs.spec.train import LOWER_IS_BETTER
from jobs.training import manifest
from jobs.training.events import CheckpointRef, Saved
from jobs.training.model import adapter, base
from jobs.training.model.parallel import full
from jobs.training.model.weight import Weight
from jobs.training.session import Session, reseed

OPTIMIZER_FILE, RANDOM_FILE, SCALARS_FILE = (
    "optimizer.safetensors",
    "random.safetensors",
    "state.json",
)
ADAPTER_DIR = "adapter"
"""Beside a merged model: the adapter alone, to resume from."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps for each weight."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Everything that is written, on the host."""

    reference: CheckpointRef
    weights: Tensors
    optimizer: Tensors
    random: Tensors
    scalars: dict[str, float]


class Checkpoints:
    """A folder of checkpoints that one thread of the main worker writes, one after another."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[CheckpointRef] | None = None

    def save(self, step: int, metrics: dict[str, float]) -> list[Saved]:
        """Copy the state after `step` steps and write it in the background; all workers call this.

        Waits for the write before it, and returns what that finished.
        """
        finished = self.finish()
        place = str(self._folder / f"step-{step:08d}")
        snapshot = _take(self._session, CheckpointRef(place, step, metrics))
        if self._session.world.is_main:
            self._pending = self._writer.submit(_write, snapshot, self._session)
        return finished

    def finish(self) -> list[Saved]:
        """Wait for the write that is under way; raises CheckpointError when it failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        try:
            reference = pending.result()
        except OSError as error:
            raise CheckpointError(
                f"a checkpoint in {self._folder} cannot be written: {error.strerror or error};"
                " free space there, then run again with --resume"
            ) from None
        return [Saved(reference.step, reference.path)]


def latest(folder: Path) -> CheckpointRef | None:
    """The newest checkpoint that is whole; torn or altered ones are passed over."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            details = manifest.verify(path)
        except CheckpointError:
            continue
        return CheckpointRef(str(path), details["step"], details["metrics"])
    return None


def restore(session: Session, reference: CheckpointRef) -> None:
    """Load weights, optimizer, loss scale and random states; the files were verified before."""
    folder = Path(reference.path)
    _load_weights(session, folder / manifest.MODEL_DIR)
    moments = safetensors.torch.load_file(folder / OPTIMIZER_FILE)
    update = session.update
    for weight in update.weights:
        state = update.state(weight)
        for name in MOMENTS:
            found = moments[f"{weight.name}.{name}"]
            state[name].copy_(found if name == "step" else _own_part(weight, found, session))
    scalars = json.loads((folder / SCALARS_FILE).read_text(encoding="utf-8"))
    update.loss_scale.fill_(scalars["loss_scale"])
    update.good_steps.fill_(scalars["good_steps"])
    _restore_random(session, reference.step, safetensors.torch.load_file(folder / RANDOM_FILE))


def _take(session: Session, reference: CheckpointRef) -> _Snapshot:
    """Every worker gives its part of sharded tensors and its random state."""
    update, keeps = session.update, session.world.is_main
    weights = {
        name: _to_host(full(tensor), keeps=keeps)
        for name, tensor in _saved_weights(session).items()
    }
    optimizer = {}
    for weight in update.weights:
        state = update.state(weight)
        for name in MOMENTS:
            value = state[name] if name == "step" else _whole(weight, state[name], session)
            optimizer[f"{weight.name}.{name}"] = _to_host(value, keeps=keeps)
    scalars = {"loss_scale": float(update.loss_scale), "good_steps": float(update.good_steps)}
    random = {
        f"{kind}.{rank}": state
        for rank, states in enumerate(session.world.gather(_random_states(session)))
        for kind, state in states.items()
    }
    if session.world.device.type == "cuda":
        torch.cuda.synchronize()
    return _Snapshot(reference, weights, optimizer, random, scalars)


def _write(snapshot: _Snapshot, session: Session) -> CheckpointRef:
    final = Path(snapshot.reference.path)
    partial = final.with_name(f".partial-{final.name}")
    for left in final.parent.glob(".partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir(parents=True)
    _write_model(snapshot, session, partial / manifest.MODEL_DIR)
    safetensors.torch.save_file(snapshot.optimizer, partial / OPTIMIZER_FILE)
    safetensors.torch.save_file(snapshot.random, partial / RANDOM_FILE)
    (partial / SCALARS_FILE).write_text(json.dumps(snapshot.scalars), encoding="utf-8")
    manifest.write(partial, asdict(snapshot.reference))
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _tidy(final.parent, session.config.checkpoint.keep, session.config.metrics[0])
    return snapshot.reference


def _write_model(snapshot: _Snapshot, session: Session, folder: Path) -> None:
    """A folder that transformers loads, or peft where only an adapter is trained."""
    folder.mkdir()
    weights = {name: tensor.contiguous() for name, tensor in snapshot.weights.items()}
    model = session.model
    if adapter.has_adapter(model):
        lora, is_last = session.config.model.adapter, _is_last(snapshot, session)
        if lora is not None and lora.merge and is_last:
            _write_merged(snapshot, session, folder)
            folder = folder.with_name(ADAPTER_DIR)
            folder.mkdir()
        model.peft_config["default"].save_pretrained(folder)
        name = "adapter_model.safetensors"
    else:
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
        name = "model.safetensors"
    safetensors.torch.save_file(weights, folder / name, metadata={"format": "pt"})
    session.corpus.tokenizer.save_pretrained(folder)


def _is_last(snapshot: _Snapshot, session: Session) -> bool:
    return snapshot.reference.step == session.schedule.total_steps


def _write_merged(snapshot: _Snapshot, session: Session, folder: Path) -> None:
    """The base model again, in fp32, with the adapter's update added to its weights."""
    spec = session.config.model
    model = adapter.add_adapter(base.load_model(spec, session.corpus.label_names), spec)
    adapter.load_adapter_state(model, snapshot.weights)
    model.merge_and_unload().save_pretrained(folder)
    session.corpus.tokenizer.save_pretrained(folder)


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
    """Tells tensors apart by their memory."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.data_ptr() or id(tensor)


def _load_weights(session: Session, folder: Path) -> None:
    model = session.model
    if adapter.has_adapter(model):
        beside = folder.with_name(ADAPTER_DIR)  # where the model folder holds a merged model
        place = beside if beside.exists() else folder
        saved = safetensors.torch.load_file(place / "adapter_model.safetensors")
        adapter.load_adapter_state(model, saved)
    else:
        saved = safetensors.torch.load_file(folder / "model.safetensors")
        own = model.state_dict()
        with torch.no_grad():
            for name, tensor in saved.items():
                _copy_into(own[name], tensor, session)
    session.update.refresh_copies()


def _copy_into(own: torch.Tensor, saved: torch.Tensor, session: Session) -> None:
    if isinstance(own, DTensor):
        whole = saved.to(session.world.device)
        part = distribute_tensor(whole, own.device_mesh, own.placements).to_local()
        own.to_local().copy_(part)
    else:
        own.copy_(saved)


def _whole(weight: Weight, part: torch.Tensor, session: Session) -> torch.Tensor:
    source = weight.source
    if not isinstance(source, DTensor):
        return part
    found = DTensor.from_local(
        part.to(session.world.device),
        source.device_mesh,
        source.placements,
        shape=source.shape,
        stride=source.stride(),
    )
    return found.full_tensor()


def _own_part(weight: Weight, whole: torch.Tensor, session: Session) -> torch.Tensor:
    source = weight.source
    if not isinstance(source, DTensor):
        return whole
    placed = whole.to(session.world.device)
    return distribute_tensor(placed, source.device_mesh, source.placements).to_local()


def _to_host(tensor: torch.Tensor, *, keeps: bool) -> torch.Tensor:
    """A copy that later steps do not touch; workers that write nothing keep nothing."""
    if not keeps:
        return torch.empty(0)
    on_gpu = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
    return host.copy_(tensor.detach(), non_blocking=True)


def _random_states(session: Session) -> Tensors:
    states = {"cpu": torch.get_rng_state()}
    if session.world.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_random(session: Session, step: int, saved: Tensors) -> None:
    """Each worker's own state; other ones, drawn from the step, when their number changed."""
    world = session.world
    if sum(name.startswith("cpu.") for name in saved) != world.size:
        reseed(session.config.seed, world, step)
        return
    torch.set_rng_state(saved[f"cpu.{world.rank}"])
    if world.device.type == "cuda" and f"cuda.{world.rank}" in saved:
        torch.cuda.set_rng_state(saved[f"cuda.{world.rank}"])


def _tidy(folder: Path, keep: int, metric: str) -> None:
    """Keep the newest ones, and the best of those that were judged."""
    paths = sorted(folder.glob("step-*"), reverse=True)
    scores = {path: _score(path, metric) for path in paths}
    judged = [path for path in paths if scores[path] is not None]
    sign = -1 if metric in LOWER_IS_BETTER else 1
    best = max(judged, key=lambda path: sign * (scores[path] or 0.0), default=None)
    for path in paths[keep:]:
        if path != best:
            shutil.rmtree(path, ignore_errors=True)


def _score(path: Path, metric: str) -> float | None:
    try:
        details: dict[str, Any] = json.loads((path / manifest.MANIFEST).read_text(encoding="utf-8"))
        return float(details["metrics"][metric])
    except (OSError, ValueError, KeyError):
        return None
