"""What becomes of a base's head, and adapters on a base, for token classification."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from jobs.spec.model import ModelSpec
from jobs.training.events import Evaluated, Event, Proven
from jobs.training.loop import train
from jobs.training.model import base
from tests import tiny
from tests.tasks import token_rows

pytestmark = pytest.mark.filterwarnings("ignore")
TASK = "token-classification"
NAMES = ("O", "B-a", "I-a")


def loaded(folder: Path, auto: Any, names: tuple[str, ...]) -> tuple[Any, Any]:
    """The base and what training makes of it."""
    labels = {"num_labels": len(names), "id2label": dict(enumerate(names))}
    place = tiny.save(folder, "bert", auto, **labels)
    return auto.from_pretrained(place), base.load_model(ModelSpec(base=place, task=TASK), NAMES)


def test_a_classifier_of_tokens_for_the_same_labels_keeps_its_head(tmp_path: Path) -> None:
    own, made = loaded(tmp_path, transformers.AutoModelForTokenClassification, NAMES[::-1])
    assert "its head is kept" in "".join(made.remarks)
    assert torch.equal(made.model.classifier.weight, own.classifier.weight.flip(0))


@pytest.mark.parametrize(
    ("auto", "names"),
    [
        (transformers.AutoModelForTokenClassification, ("O", "B-b", "I-b")),
        (transformers.AutoModelForSequenceClassification, NAMES),
        (transformers.AutoModelForSequenceClassification, ("0", "1")),
    ],
)
def test_other_heads_are_initialised_again(tmp_path: Path, auto: Any, names: Any) -> None:
    """A classifier of texts may have as many outputs, even of the same names."""
    own, made = loaded(tmp_path, auto, names)
    assert "initialised again" in "".join(made.remarks)
    assert made.model.classifier.out_features == len(NAMES)
    assert len(names) != len(NAMES) or not torch.equal(
        made.model.classifier.weight, own.classifier.weight
    )


@pytest.mark.slow
@pytest.mark.parametrize("merge", [True, False])
def test_adapters_are_trained_and_published(merge: bool, tiny_model: str, tmp_path: Path) -> None:  # noqa: FBT001
    """Only this loads a classifier of tokens with peft alone, as its card says."""
    token_rows.write(tmp_path)
    adapter = {"type": "lora", "r": 8, "merge": merge}
    model = ModelSpec(base=tiny_model, task=TASK, adapter=adapter)
    events: list[Event] = []
    config = token_rows.config(tmp_path, tiny_model, model=model)
    train(config, events.append, tmp_path / "checkpoints", proves=True)
    (proof,) = [event for event in events if isinstance(event, Proven)]
    assert proof.refusal == ""
    last = [event.metrics for event in events if isinstance(event, Evaluated)][-1]
    assert last["f1"] > 0.0
