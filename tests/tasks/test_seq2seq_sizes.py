"""What encoder-decoder models take: memory and operations of sources and targets."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cluster import memory_estimate
from jobs.spec import task_registry
from jobs.training.corpus import load_corpus
from jobs.training.data.longest_row import longest_row, longest_target
from jobs.training.data.tokens import TokenStore
from jobs.training.flops import flops_of
from jobs.training.model.counting import shape_of
from jobs.training.model.shape import KNOWN_SHAPES, PIECE_LOGITS
from jobs.training.session import build_session
from jobs.training.world import World
from orchestrator.decisions.plan import make_plan
from tests.builders import inventory, job
from tests.tasks import swaps

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = World(0, 1, torch.device("cpu"))
T5 = dataclasses.replace(KNOWN_SHAPES["t5-base"], scores_vocabulary=True)
GIB = 2**30


def expected(tokens: int, targets: int, vocabulary: int = T5.vocabulary, rows: int = 64) -> float:
    return memory_estimate.estimate(
        dataclasses.replace(T5, vocabulary=vocabulary),
        micro_batch_size=rows,
        tokens=tokens,
        precision="fp32",
        device="cuda",
        eval_batch=1,
        target_tokens=targets,
    ).expected_gib


def test_targets_and_not_sources_score_the_vocabulary() -> None:
    def scored(tokens: int, targets: int, rows: int) -> float:
        twice = expected(tokens, targets, 2 * T5.vocabulary, rows)
        return twice - expected(tokens, targets, rows=rows)

    # of 8 rows in training and one in an evaluation, which needs memory of its own
    copies = 8 * memory_estimate.LOGITS + memory_estimate.EVAL_LOGITS
    of_each = copies * 4 * T5.vocabulary / GIB
    assert scored(128, 96, 8) - scored(128, 32, 8) == pytest.approx(64 * of_each)
    assert scored(512, 96, 8) == pytest.approx(scored(128, 96, 8))
    # tokens beyond a piece add none
    in_piece = PIECE_LOGITS // (96 * 2 * T5.vocabulary)
    assert scored(128, 96, 8) < scored(128, 96, in_piece // 2)
    assert scored(128, 96, 4 * in_piece) == pytest.approx(scored(128, 96, 8 * in_piece))
    # a decoder's layer keeps more for each token than an encoder's
    assert expected(128, 192) - expected(128, 128) > expected(192, 128) - expected(128, 128)


def test_layers_of_encoder_and_decoder_are_told_apart(tmp_path: Path) -> None:
    base = swaps.base_of(tmp_path, "bart", encoder_layers=3, decoder_layers=1)
    shape = shape_of(base, task_registry.find(swaps.TASK))
    assert shape is not None
    assert (shape.layers, shape.decoder_layers, shape.scores_vocabulary) == (4, 1, True)


def test_operations_are_those_that_torch_counts(tmp_path: Path) -> None:
    swaps.write(tmp_path)
    base = swaps.base_of(tmp_path, "bart", encoder_layers=3, decoder_layers=1)
    config = swaps.config_of(tmp_path, base)
    session = build_session(config, load_corpus(config), CPU)
    tokens, rows = session.corpus.train, torch.arange(16)
    width = int(tokens.lengths[:16].max())
    store = TokenStore(tokens, CPU.device)
    session.model.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        session.engine.step.objective(session.model, store.gather(rows, width), torch.ones(16))
    found = flops_of(session)
    # the counter sees padded targets, and ours are of mean length
    padded = tokens.ragged["target_ids"].width / tokens.ragged["target_ids"].lengths.mean()
    ours = 16 * width * (found.per_token + found.per_pair * width) + 16 * found.per_sample * padded
    assert 3 * counter.get_total_flops() == pytest.approx(ours, rel=0.2)


def test_plans_know_the_longest_source_with_its_prefix_and_the_longest_target(
    tmp_path: Path,
) -> None:
    swaps.write(tmp_path)
    base = swaps.base_of(tmp_path, "bart")
    data = swaps.data_of(tmp_path, max_target_length=4096)
    values = data.model_dump(mode="json", exclude_unset=True)
    spec = job(model={"base": base, "task": swaps.TASK}, data=values)
    source, target = longest_row(spec), longest_target(spec)
    corpus = load_corpus(swaps.config_of(tmp_path, base, data=data))
    assert source == corpus.train.lengths.max()
    assert target == corpus.train.ragged["target_ids"].lengths.max()
    shape = shape_of(base, spec.task)
    known = make_plan(spec, inventory(T4=1), shape, source, targets=target).candidates[0]
    unknown = make_plan(spec, inventory(T4=1), shape, source).candidates[0]
    assert known.memory is not None
    assert unknown.memory is not None
    assert known.memory.expected_gib < unknown.memory.expected_gib
