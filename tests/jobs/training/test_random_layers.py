"""Layers that a base leaves out at random, and other numbers that a model draws on the host."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.spec.model import ModelSpec
from jobs.training import random_states
from jobs.training.model import base
from tests.tasks import swaps

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["m2m_100", "bart"])
def test_no_layer_is_left_out(kind: str, tmp_path: Path) -> None:
    place = swaps.base_of(tmp_path, kind, encoder_layerdrop=0.5, decoder_layerdrop=0.5)
    found = base.load_model(ModelSpec(base=place, task="seq2seq", dropout=0.0), ())
    assert found.remarks == (base.LAYER_DROP,)
    model, ids = found.model.train(), torch.arange(5, 13)[None]
    logits = [model(input_ids=ids, labels=ids).logits for _ in range(8)]
    assert all(each.equal(logits[0]) for each in logits)


def test_a_base_that_keeps_its_layers_has_no_remark(tmp_path: Path) -> None:
    place = swaps.base_of(tmp_path, "bart")
    assert base.load_model(ModelSpec(base=place, task="seq2seq"), ()).remarks == ()


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand([])])
def test_numbers_drawn_on_the_host_are_seen(draw: Callable[[], object]) -> None:
    before = random_states.of_host()
    assert random_states.of_host() == before
    draw()
    assert random_states.of_host() != before
