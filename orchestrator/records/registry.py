"""Published model versions: folders named by their content, whole or absent."""

import hashlib
import json
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.errors import CheckpointError, RunError
from jobs.spec import JobSpec
from jobs.training import manifest
from jobs.training.events import CheckpointRef
from orchestrator.records import runs
from serve.version import ModelVersion

DEPLOYED = "deployed.txt"
"""File beside the versions of a model: ids in the order in which they came to answer."""
LATEST = "latest"
"""File beside the versions of a model with the id of the newest."""

CARD = """---
library_name: {library}
pipeline_tag: {pipeline}
base_model: {base}
---
# {name}

Fine-tuned from `{base}` by Winnow, run `{run}`, on {date}.

| metric | evaluation rows |
| --- | --- |
{metrics}

{labels}Inputs are cut at {max_length} tokens. Trained on `{train}`, judged on `{eval}`.

```python
{usage}
```
"""
PIPELINES = {"text-classification": "text-classification", "causal-lm": "text-generation"}
AUTO_CLASSES = {
    "text-classification": "AutoPeftModelForSequenceClassification",
    "causal-lm": "AutoPeftModelForCausalLM",
}
"""Classes of peft that load an adapter together with its base model."""


def publish(
    spec: JobSpec, checkpoint: CheckpointRef, labels: tuple[str, ...], *, run_id: str, storage: Path
) -> ModelVersion:
    """Copy a verified checkpoint's model into the registry, with card and manifest.

    Raises CheckpointError when the checkpoint is not whole.
    """
    manifest.verify(Path(checkpoint.path))
    folder = storage / "models" / spec.name
    partial = folder / f".partial-{run_id}"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(Path(checkpoint.path) / manifest.MODEL_DIR, partial)
    (partial / "README.md").write_text(_card(spec, checkpoint, labels, run_id), encoding="utf-8")
    version = ModelVersion(
        name=spec.name,
        id="",
        path="",
        labels=labels,
        is_pair=len(spec.data.text_columns) == 2,
        max_length=spec.data.max_length,
        task=spec.model.task,
        metrics=checkpoint.metrics,
    )
    job = spec.model_dump(mode="json", exclude_unset=True)
    details = {"version": asdict(version), "job": job, "run": run_id, "step": checkpoint.step}
    files = manifest.write(partial, details)
    identity = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]
    final = folder / identity
    if final.exists():
        shutil.rmtree(partial)
    else:
        partial.rename(final)
    runs.write_atomically(folder / LATEST, identity.encode())
    return read(storage, spec.name, identity)


def read(storage: Path, name: str, identity: str | None = None) -> ModelVersion:
    """A published version, by default the newest, after checking its files."""
    folder = storage / "models" / name
    try:
        chosen = identity or (folder / LATEST).read_text(encoding="utf-8").strip()
    except OSError:
        raise RunError(
            f"no version of {name} is published in {storage}; run the job first"
        ) from None
    if not (folder / chosen).is_dir():
        raise RunError(f"{name} has no version {chosen!r} in {storage}")
    return _version(folder / chosen, manifest.verify(folder / chosen))


def note_deployed(storage: Path, version: ModelVersion) -> None:
    """Remember that a version answers from now on."""
    if deployed(storage, version.name)[-1:] != [version.id]:
        with (storage / "models" / version.name / DEPLOYED).open("a", encoding="utf-8") as handle:
            handle.write(f"{version.id}\n")


def deployed(storage: Path, name: str) -> list[str]:
    """Ids of the versions that answered, the newest last."""
    path = storage / "models" / name / DEPLOYED
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def every(storage: Path) -> tuple[tuple[ModelVersion, datetime], ...]:
    """Every published version with when it was, newest first, its files not verified."""
    found = []
    for path in (storage / "models").glob("*/*/manifest.json"):
        folder = path.parent
        if folder.name.startswith("."):
            continue
        try:
            version = _version(folder, manifest.read(folder))
        except CheckpointError:
            continue
        found.append((version, datetime.fromtimestamp(path.stat().st_mtime, UTC)))
    return tuple(sorted(found, key=lambda pair: pair[1], reverse=True))


def _version(folder: Path, details: dict[str, Any]) -> ModelVersion:
    try:
        values = {**details["version"], "id": folder.name, "path": str(folder.resolve())}
        return ModelVersion(**{**values, "labels": tuple(values["labels"])})
    except (KeyError, TypeError):
        raise CheckpointError(f"{folder} has a manifest of another format") from None


def _card(spec: JobSpec, checkpoint: CheckpointRef, labels: tuple[str, ...], run_id: str) -> str:
    rows = [f"| {name} | {value:.4f} |" for name, value in checkpoint.metrics.items()]
    task, lora = spec.model.task, spec.model.adapter
    is_adapter = lora is not None and not lora.merge
    usage = (
        f'from transformers import pipeline\npipeline("{PIPELINES[task]}", "this/folder")("text")'
    )
    if is_adapter:
        loader = AUTO_CLASSES[task]
        usage = f'from peft import {loader}\nmodel = {loader}.from_pretrained("this/folder")'
    return CARD.format(
        base=spec.model.base,
        library="peft" if is_adapter else "transformers",
        pipeline=PIPELINES[task],
        usage=usage,
        name=spec.name,
        run=run_id,
        date=datetime.now(UTC).date(),
        metrics="\n".join(rows),
        labels=f"Labels: {', '.join(labels)}. " if labels else "",
        max_length=spec.data.max_length,
        train=Path(spec.data.train.path).name,
        eval=Path(spec.data.eval.path).name,
    )
