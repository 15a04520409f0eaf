"""What workers send and fetch in a step: all that is needed, before it is used."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jobs.spec.train import OptimizerSpec
from jobs.training.engine import flat_params, gradient_exchange
from jobs.training.engine.flat_params import FlatAdamW
from jobs.training.engine.gradient_exchange import WeightGather
from jobs.training.model import parallel
from jobs.training.model.weight import Weight
from jobs.training.world import World

WIDTH = 32


class Layer(torch.nn.Module):
    """Uses its inner layer with and without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Two products with one weight."""
        return self.inner(torch.nn.functional.linear(values, self.inner.weight))


class Model(torch.nn.Module):
    """Layers between a module that is called and one of which only the weight is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.last = torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """From first to last."""
        values = self.first(values)
        for layer in self.layers:
            values = layer(values)
        return torch.nn.functional.linear(values, self.last.weight)


@pytest.mark.parametrize("by_hand", [False, True], ids=["all", "by number"])
def test_a_weight_without_a_gradient_in_a_step_gets_none_of_an_earlier_one(by_hand: bool) -> None:  # noqa: FBT001
    """As an expert that no token of a batch is sent to."""
    sources = [torch.nn.Parameter(torch.ones(8)) for _ in range(3)]
    weights = [Weight(str(n), source.data, source) for n, source in enumerate(sources)]
    group = flat_params.FlatGroup(weights, OptimizerSpec(), World(0, 1, torch.device("cpu")))
    numbers = [range(3)] if not by_hand else [range(1), range(1, 3)]
    for used in ((0, 1, 2), (0, 2), (1,)):
        for number, source in enumerate(sources):
            source.grad = torch.full((8,), float(number + 1)) if number in used else None
        for each in numbers:
            group.take(each)
        taken = [group.part(group.gradients, number).mean().item() for number in range(3)]
        assert taken == [number + 1.0 if number in used else 0.0 for number in range(3)]


def test_moments_are_gathered_only_to_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    monkeypatch.setattr(flat_params, "SHARED_FROM_BYTES", 0)
    monkeypatch.setattr(
        flat_params, "all_gather", lambda whole, own: gathered.append(whole.data_ptr())
    )
    source = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    weights = [Weight("w", source.detach().float(), source)]
    world = World(0, 2, torch.device("cpu"))
    update = FlatAdamW(weights, OptimizerSpec(), steps=1, world=world)
    (group,) = update.groups
    update.synchronize(with_moments=False)
    assert gathered == [group.flat.data_ptr()]
    update.synchronize()
    assert gathered[1:] == [flat.data_ptr() for flat in (group.flat, group.first, group.second)]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; nothing is fetched, because there is no other worker."""
    told: list[str] = []

    class Work:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait(self) -> None:
            told.append(f"wait {self.name}")

    def fetch(whole: torch.Tensor, own: torch.Tensor, *, async_op: bool) -> Any:
        assert async_op
        assert whole.numel() == 2 * own.numel()
        number = sum(line.startswith("fetch") for line in told)
        told.append(f"fetch {number}")
        return Work(str(number))

    monkeypatch.setattr(gradient_exchange, "all_gather", fetch)
    monkeypatch.setattr(flat_params, "SHARED_FROM_BYTES", 0)
    monkeypatch.setattr(flat_params, "BUCKET_BYTES", 1)
    return told


def test_each_module_waits_for_its_own_weights(story: list[str]) -> None:
    model = Model()
    weights = [
        Weight(name, source.detach().float(), source) for name, source in model.named_parameters()
    ]
    optimizer = FlatAdamW(
        weights, OptimizerSpec(lr=1e-3), steps=3, world=World(0, 2, torch.device("cpu"))
    )
    layers = parallel.repeated_layers(model)
    refresh = WeightGather(optimizer, weights, model, layers)
    for number, module in enumerate([model.first, *layers, model.last]):
        module.register_forward_hook(lambda *_, n=number: story.append(f"used {n}"))

    def step() -> list[str]:
        story.clear()
        refresh.start()
        model(torch.ones(1, WIDTH, dtype=torch.bfloat16))
        refresh.finish()
        model(torch.ones(1, WIDTH, dtype=torch.bfloat16))  # a later pass waits for nothing
        return [line for line in story if not line.startswith("fetch")][:9]

    in_turn = [f"{what} {number}" for number in range(4) for what in ("wait", "used")]
    assert step() == [*in_turn, "wait 4"]
    # the last was used before it was waited for: from the next step on all is waited for at once
    assert step() == [*(f"wait {n}" for n in range(5)), *(f"used {n}" for n in range(4))]
    assert not refresh._works


class Words(torch.nn.Module):
    """Averages the words it is given, and may score all words by the same weights."""

    def __init__(self, *, scores: bool) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(64, WIDTH)
        self.scores = scores

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A number for each row."""
        mean = self.words(ids).mean(dim=1)
        return (mean @ self.words.weight.T if self.scores else mean).sum(dim=1)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("scores", [False, True])
def test_only_rows_in_use_are_exchanged_unless_others_have_gradients_too(*, scores: bool) -> None:
    model = Words(scores=scores)
    weight = model.words.weight
    weights = [Weight("words", weight, weight)]
    world = World(0, 1, torch.device("cpu"))
    optimizer = FlatAdamW(weights, OptimizerSpec(lr=1e-3), steps=3, world=world)
    exchanged = gradient_exchange.GradientExchange(optimizer, weights, in_16_bits=False)
    exchanged.attach(model, passes=1)
    sent: list[int] = []
    for ids in ([[3, 5, 3]], [[7, 7, 9]]):
        weight.grad = None
        exchanged.begin()
        exchanged.enable()
        model(torch.tensor(ids)).sum().backward()
        expected = weight.grad.clone()  # type: ignore[union-attr]
        sent.append(exchanged._buckets[0]._sent.numel())
        exchanged.finish()
        (group,) = optimizer.groups
        assert torch.equal(group.part(group.gradients, 0), expected)
    assert sent == ([64 * WIDTH] * 2 if scores else [3 * WIDTH] * 2)
