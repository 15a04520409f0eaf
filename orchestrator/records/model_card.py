"""The model card of a published version: its README."""

from pathlib import Path

from jobs.spec import JobSpec
from jobs.spec.data import SourceSpec
from jobs.spec.harness import MARK
from jobs.spec.quantities import format_metric
from jobs.spec.task import Task
from jobs.training import quality
from jobs.training.events import CheckpointRef

CARD = """---
library_name: {library}
pipeline_tag: {pipeline}
base_model: {base}
---
# {name}

Fine-tuned from `{base}` by Winnow, run `{run}`.

| metric | evaluation rows |
| --- | --- |
{metrics}
{harness}
{labels}Inputs are cut at {max_length} tokens. Trained on `{train}`, judged on `{eval}`.

```python
{usage}
```
"""

HARNESS = ("", "| task of lm-evaluation-harness | value |", "| --- | --- |")
"""Head of the card's table of the harness."""


def text_of(
    spec: JobSpec,
    base: str,
    checkpoint: CheckpointRef,
    labels: tuple[str, ...],
    run_id: str,
    *,
    has_thresholds: bool = False,
) -> str:
    """Returns a version's model card, in Markdown: base, metrics, labels, and code that loads it.

    `base`: how the job's base is named for readers. `has_thresholds`: whether labels have the
    scores from which on they are given.
    """
    metrics = checkpoint.metrics.items()
    rows = {name: f"| {name} | {format_metric(value)} |" for name, value in metrics}
    judged = [row for name, row in rows.items() if MARK in name]
    own = [row for name, row in rows.items() if MARK not in name]
    task, lora = spec.task, spec.model.adapter
    is_adapter = lora is not None and not lora.merge
    thresholds = (
        f"`{quality.FILE}` has the score from which on each label is given. "
        if has_thresholds
        else ""
    )
    return CARD.format(
        base=base,
        library="peft" if is_adapter else task.library,
        pipeline=task.pipeline,
        usage=_of_adapter(task, labels) if is_adapter else _of_model(task),
        name=spec.name,
        run=run_id,
        metrics="\n".join(own),
        harness="\n".join([*HARNESS, *judged, ""]) if judged else "",
        labels=f"Labels: {', '.join(labels)}. {thresholds}" if labels else "",
        max_length=spec.data.max_length,
        train=_names(spec.data.train),
        eval=_names(spec.data.eval),
    )


def _of_model(task: Task) -> str:
    """Returns Python that answers with a whole model."""
    options = "".join(f', {name}="{value}"' for name, value in task.pipeline_options)
    call = f'pipeline("{task.pipeline}", "this/folder"{options})("text")'
    return task.usage or f"from transformers import pipeline\n{call}"


def _of_adapter(task: Task, labels: tuple[str, ...]) -> str:
    """Returns Python that loads an adapter with its base."""
    loader = task.peft_class
    of_labels = (
        f", num_labels={len(labels)}, pad_token_id=tokenizer.pad_token_id,"
        " ignore_mismatched_sizes=True"
    )
    settings = of_labels if labels else ""
    return (
        f"from peft import {loader}\nfrom transformers import AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("this/folder")\n'
        f'model = {loader}.from_pretrained("this/folder"{settings})'
    )


def _names(source: SourceSpec) -> str:
    return ", ".join(Path(path).name for path in source.paths)
