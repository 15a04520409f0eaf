"""Fixtures that several tests share: small data, a tiny model, one simulated Ray cluster."""

import csv
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import local

os.environ.update(local.LOOPBACK_SWITCH)  # read when ray is imported, which some test modules do

from cluster import session
from jobs.spec.quantities import AcceleratorRequest
from jobs.training.model import location as model_location
from tests.builders import MINILM

GOOD = ("superb", "moving", "delightful", "fresh", "brilliant")
BAD = ("dull", "awful", "tedious", "clumsy", "lifeless")
SIMULATED = ("A100-80GB:1", "L40S:2", "T4:4")

# Ray's own code warns about itself, and leaves sockets to the garbage collector when it stops
RAY_WARNINGS = (
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore::UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Ray's own warnings pass in tests that use Ray."""
    for item in items:
        if item.get_closest_marker("ray"):
            for warning in RAY_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv (160 rows) and eval.csv (50), made of words that decide the label."""
    folder = tmp_path_factory.mktemp("reviews")
    draw = random.Random(3)
    for name, count in (("train", 160), ("eval", 50)):
        rows = [("text", "label")]
        for index in range(count):
            words, label = ((GOOD, "positive"), (BAD, "negative"))[index % 2]
            rows.append((f"a {draw.choice(words)} film {'indeed ' * draw.randrange(5)}", label))
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows(rows)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT of two layers with random weights and the real tokenizer of MiniLM."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(folder)
    location = model_location.locate(MINILM)
    transformers.AutoTokenizer.from_pretrained(location).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[session.Connection]:
    """One local cluster with simulated accelerators for all tests that need Ray."""
    os.environ["WINNOW_HOME"] = str(tmp_path_factory.mktemp("home"))
    requests = [AcceleratorRequest(n.split(":")[0], int(n.split(":")[1])) for n in SIMULATED]
    local.start(requests)
    try:
        with session.connect(start=False) as connection:
            yield connection
    finally:
        local.stop()
