"""Losses of vectors: sentence-transformers' values, and one gradient on any number of workers."""

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from jobs.tasks.sentence_embedding import losses
from tests.jobs.training.workers import context

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS, WIDTH = 7, 12


def vectors(roles: int, rows: int = ROWS) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(rows, WIDTH, requires_grad=True) for _ in range(roles)]


class Given(torch.nn.Module):
    """Stands for a SentenceTransformer whose vectors are known."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The features themselves."""
        return features


@pytest.mark.parametrize("roles", [2, 3])
@pytest.mark.parametrize("dimensions", [(), (8, 4)])
def test_in_batch_negatives_are_those_of_sentence_transformers(
    roles: int, dimensions: tuple[int, ...]
) -> None:
    library = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    texts = vectors(roles)
    expected = library.MultipleNegativesRankingLoss(Given(), scale=20.0)
    features = [{"sentence_embedding": each} for each in texts]
    wanted = expected(features, None)
    for size in dimensions:
        cut = [{"sentence_embedding": each[:, :size]} for each in texts]
        wanted = wanted + expected(cut, None)
    found = losses.in_batch_negatives(texts, torch.ones(ROWS), scale=20.0, dimensions=dimensions)
    assert found.item() / ROWS == pytest.approx(wanted.item(), abs=1e-5)


def test_errors_of_cosines_are_those_of_sentence_transformers() -> None:
    library = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    texts, targets = vectors(2), torch.linspace(-1, 1, ROWS)
    expected = library.CosineSimilarityLoss(Given())
    wanted = expected([{"sentence_embedding": each} for each in texts], targets)
    found = losses.cosine_errors(texts, targets, ())
    assert found.mean().item() == pytest.approx(wanted.item(), abs=1e-6)


@pytest.mark.parametrize("roles", [2, 3])
def test_filler_rows_change_neither_the_loss_nor_a_gradient(roles: int) -> None:
    texts, weights = vectors(roles), torch.tensor([1.0] * 5 + [0.0] * 2)
    losses.in_batch_negatives(texts, weights, scale=20.0, dimensions=(4,)).backward()
    alone = [each.detach()[:5].clone().requires_grad_() for each in texts]
    whole = losses.in_batch_negatives(alone, torch.ones(5), scale=20.0, dimensions=(4,))
    whole.backward()
    for padded, real in zip(texts, alone, strict=True):
        assert padded.grad is not None
        assert real.grad is not None
        torch.testing.assert_close(padded.grad[:5], real.grad)
        assert padded.grad[5:].abs().max() == 0


def gradients(encoder: torch.nn.Module, texts: list[torch.Tensor], weights: torch.Tensor) -> Any:
    """The loss, and the gradient of each weight of an encoder of texts."""
    found = [encoder(each) for each in texts]
    loss = losses.in_batch_negatives(found, weights, scale=20.0, dimensions=(4,))
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in encoder.parameters())]


def encoder_of() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)
    ).double()


def work(rank: int, workers: int, port: int, place: str) -> None:
    """Computes the gradient of a worker's rows; rank 0 saves the sum over workers."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    each = -(-ROWS // workers)
    own = slice(rank * each, (rank + 1) * each)
    rows = each * workers
    texts = [text.detach().double()[own] for text in vectors(3, rows)]
    weights = (torch.arange(rows) < ROWS).double()[own]
    found = gradients(encoder_of(), texts, weights)
    for value in found:
        dist.all_reduce(value)
    if rank == 0:
        torch.save(found, place)
    dist.destroy_process_group()


@pytest.mark.workers
@pytest.mark.parametrize("workers", [2, 3])
def test_the_gradient_of_workers_is_that_of_one_with_the_whole_batch(
    workers: int, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = str(tmp_path / "gradients.pt")
    group = [context.Process(target=work, args=(r, workers, port, place)) for r in range(workers)]
    for process in group:
        process.start()
    for process in group:
        process.join(300)
    assert [process.exitcode for process in group] == [0] * workers
    found = torch.load(place)
    rows = -(-ROWS // workers) * workers
    texts = [text.detach().double()[:ROWS] for text in vectors(3, rows)]
    expected = gradients(encoder_of(), texts, torch.ones(ROWS, dtype=torch.float64))
    assert max(float(value.abs().max()) for value in expected[1:]) > 0.01
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one.numpy() - other.numpy()).max() < 1e-9
