"""Training state on disk: written beside its place, hashed, renamed when whole."""

import shutil
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
import torch

from jobs.errors import CheckpointError
from jobs.training import manifest
from jobs.training.events import CheckpointRef
from jobs.training.session import Session

STATE_FILE = "training_state.pt"


def save(session: Session, step: int, metrics: dict[str, float], folder: Path) -> CheckpointRef:
    """Save the state after `step` optimizer steps; every worker calls this, the main one writes."""
    generators = session.world.gather(_random_state(session))
    reference = CheckpointRef(str(folder / f"step-{step:08d}"), step, metrics)
    if session.world.is_main:
        partial = folder / f".partial-{step:08d}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        session.model.save_pretrained(partial / manifest.MODEL_DIR)
        session.corpus.tokenizer.save_pretrained(partial / manifest.MODEL_DIR)
        state = {
            "optimizer": session.optimizer.state_dict(),
            "scaler": session.scaler.state_dict(),
            "generators": generators,
        }
        torch.save(state, partial / STATE_FILE)
        manifest.write(partial, asdict(reference))
        shutil.rmtree(reference.path, ignore_errors=True)
        partial.rename(reference.path)
        _keep_newest(folder, session.config.checkpoint.keep)
    session.world.agree(value=0)  # nobody goes on before the checkpoint is whole
    return reference


def restore(session: Session, reference: CheckpointRef) -> None:
    """Load weights, optimizer, scaler and random state; the checkpoint was verified before."""
    folder = Path(reference.path)
    safetensors.torch.load_model(session.model, folder / manifest.MODEL_DIR / "model.safetensors")
    state = torch.load(folder / STATE_FILE, weights_only=True, map_location="cpu")
    session.optimizer.load_state_dict(state["optimizer"])
    session.scaler.load_state_dict(state["scaler"])
    if session.world.size == len(state["generators"]):
        own = state["generators"][session.world.rank]
        torch.set_rng_state(own["cpu"])
        if session.world.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda"])


def latest(folder: Path) -> CheckpointRef | None:
    """The newest checkpoint that is whole; torn or altered ones are passed over."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            details = manifest.verify(path)
        except CheckpointError:
            continue
        return CheckpointRef(str(path), details["step"], details["metrics"])
    return None


def _keep_newest(folder: Path, count: int) -> None:
    for path in sorted(folder.glob("step-*"), reverse=True)[count:]:
        shutil.rmtree(path, ignore_errors=True)


def _random_state(session: Session) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if session.world.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return states
