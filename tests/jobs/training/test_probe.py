"""A probe on this machine: carried through, stopped early for what is better, or compiled."""

import dataclasses
import getpass
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from jobs.training import evaluate
from jobs.training.config import TrainingConfig
from jobs.training.events import Event, Probed, Stepped, Unprobed
from jobs.training.loop import train
from jobs.training.probing import probe, stepper
from jobs.training.probing.probe import ProbeRequest, probe_all
from jobs.training.probing.timing import GiveUp, Limit, ProbeTiming
from jobs.training.probing.unprobed import beyond_slower
from jobs.training.step_times import StepTimes
from jobs.training.world import World
from orchestrator.decisions.measurement import summarise
from tests.builders import speed, training_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
BRIEF = ProbeTiming(
    warmup_s=0.0,
    warmup_limit_s=0.05,
    duration_s=0.05,
    limit_s=0.2,
    warmup_steps=1,
    steps=3,
    window_s=0.01,
    half_width=0.5,
)
UNHURRIED = dataclasses.replace(BRIEF, limit_s=60.0, steps=12)
"""Of a probe that stops early, for which a busy machine may take its time."""


def test_a_probe_that_stops_early_names_the_candidate_that_is_better(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    config = training_config(reviews, tiny_model)
    rule = GiveUp(frozenset({"fp32"}), outside=Limit(1e-9, "known"))
    requests = [
        ProbeRequest("patient", config, BRIEF, tmp_path / "scratch"),
        ProbeRequest("hasty", config, UNHURRIED, tmp_path / "scratch", give_up=rule),
    ]
    events: list[Event] = []
    probe_all(requests, events.append)
    patient, hasty = (event for event in events if isinstance(event, Probed))
    assert (patient.is_given_up, patient.better) == (False, "")
    assert patient.overheads is not None
    assert (hasty.is_given_up, hasty.better) == (True, "known")
    assert hasty.overheads is None
    assert sum(hasty.times.seconds) > 0
    assert hasty.steps_of_width.keys() <= patient.steps_of_width.keys()


def test_a_warm_up_ends_early_only_for_a_candidate_that_is_slower(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound by a forward pass, which CPUs alone have, is left out."""
    monkeypatch.setattr(probe, "_least_step_s", lambda *_: None)
    monkeypatch.setattr(probe, "_settle", lambda *_: None)
    monkeypatch.setattr(stepper, "GLANCE_S", 0.05)
    config = training_config(reviews, tiny_model)
    timing = dataclasses.replace(UNHURRIED, warmup_s=6.0, warmup_limit_s=60.0)
    rules = [GiveUp(frozenset({"fp32"}), Limit(step_s, "known")) for step_s in (60.0, 1e-9)]
    requests = [
        ProbeRequest(
            str(rule.outside), config, timing, tmp_path / "scratch", is_brief=True, give_up=rule
        )
        for rule in rules
    ]
    events: list[Event] = []
    probe_all(requests, events.append)
    faster, slower = (event for event in events if isinstance(event, Probed))
    assert (faster.is_given_up, slower.is_given_up) == (False, True)
    assert (faster.overheads, slower.overheads) == (None, None)  # brief ones time steps alone
    assert faster.probe_s > 6.0
    assert slower.probe_s < faster.probe_s
    assert slower.speed is not None
    assert slower.speed.steps == len(slower.times.seconds) >= 2
    assert 0 < slower.speed.step_s_p50 < 1


class WidthsInTurn:
    """A session on no device, and its clock: a step takes a millisecond per token of its rows."""

    def __init__(self, widths: list[int]) -> None:
        self._widths, self._now_s, self._done = widths, 0.0, list[Stepped]()
        self.engine = self.batch_plan = self
        self.world, self.config = World(0, 1, torch.device("cpu")), SimpleNamespace()
        self.config.global_batch_size = self.block = 1
        self.steps_per_epoch = len(widths)

    def steps_of_width(self) -> Counter[int]:
        return Counter(self._widths)

    def seek(self, _: int) -> None:
        pass

    def launch(self, first: int, last: int) -> None:
        for width in self._widths[first:last]:
            self._now_s += width / 1000
            self._done.append(Stepped(1, 0.0, 1, width, width, width / 1000))

    def collect(self, *, ahead: int) -> list[Stepped]:
        done, self._done = self._done, []
        return done if not ahead else []

    def monotonic(self) -> float:
        return self._now_s


@pytest.mark.parametrize(("factor", "ends"), [(2.0, False), (0.5, True)])
def test_a_few_wide_steps_end_no_warm_up(
    factor: float, *, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide rows come first, then so many narrow ones that the mean is a third of the wide ones'."""
    monkeypatch.setattr(stepper, "GLANCE_S", 0.05)
    widths = [30] * 9 + [5] * 27
    timing = dataclasses.replace(BRIEF, warmup_s=0.4, warmup_limit_s=5.0, duration_s=0.3)
    session: Any = WidthsInTurn(widths * 20)
    mean_s = sum(widths) / len(widths) / 1000
    monkeypatch.setattr(stepper, "time", session)
    found = stepper.Stepper(session, timing, lambda _: None, factor * mean_s)
    found.warm_up()
    assert found.measure()[1] is ends


def test_what_the_last_checkpoint_scores_is_timed(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is most of what follows the last evaluation on a CPU."""
    scored, now_s, own = [0], [0.0], evaluate.kept_scores

    def slow(scores: torch.Tensor, batch: Any) -> list[Any]:
        scored[0] += len(scores)
        now_s[0] += 0.01 * len(scores)
        return own(scores, batch)

    def monotonic() -> float:
        now_s[0] += 0.001
        return now_s[0]

    monkeypatch.setattr(evaluate, "kept_scores", slow)
    monkeypatch.setattr(probe, "time", SimpleNamespace(monotonic=monotonic))
    config = training_config(reviews, tiny_model)
    events: list[Event] = []
    probe_all([ProbeRequest("a", config, BRIEF, tmp_path / "scratch")], events.append)
    (probed,) = (event for event in events if isinstance(event, Probed))
    few, scored[0] = scored[0], 0
    train(config, events.append, tmp_path / "checkpoints")
    assert few < scored[0]
    assert probed.overheads
    assert probed.overheads.scoring_s == pytest.approx(0.01 * scored[0], rel=0.05)


def test_what_is_beyond_a_slower_micro_batch_is_not_probed(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger or smaller; another precision is another curve."""
    step_s = {"fp32/8": 1.0, "fp32/16": 1.5, "fp32/32": 9.0, "fp32/4": 1.4, "fp32/2": 9.0}
    step_s |= {"bf16/32": 2.0, "bf16/4": 9.0}
    probed = list[str]()

    def find(request: ProbeRequest, group: Any) -> Probed:
        name, own = request.candidate, request.config.precision
        probed.append(name)
        best = min((n for n in probed if n.startswith(own)), key=step_s.__getitem__)
        return made(name, step_s[name], "" if best == name else best)

    monkeypatch.setattr(probe, "_probe", find)
    rule = GiveUp(frozenset({"fp32"}))
    requests = [
        ProbeRequest(
            name,
            training_config(
                reviews,
                tiny_model,
                precision=name[:4],
                micro_batch_size=int(name[5:]),
            ),
            BRIEF,
            tmp_path,
            give_up=rule,
        )
        for name in step_s
    ]
    events: list[Event] = []
    probe_all(requests, events.append)
    assert probed == ["fp32/8", "fp32/16", "fp32/4", "bf16/32", "bf16/4"]
    assert [event for event in events if isinstance(event, Unprobed)] == [
        Unprobed("fp32/32", "fp32/16", "fp32/8"),
        Unprobed("fp32/2", "fp32/4", "fp32/8"),
    ]
    measured = [summarise(event) for event in events if isinstance(event, Unprobed)]
    assert measured[0].why_given_up == "not probed: fp32/16 is slower than fp32/8"
    assert [(m.step_s, m.is_reused, m.is_given_up) for m in measured] == [(None, False, False)] * 2
    events.clear()
    probed.clear()
    probe_all([dataclasses.replace(each, give_up=None) for each in requests], events.append)
    assert probed == list(step_s)


@pytest.mark.parametrize(
    "changes",
    [{"is_steady": False}, {"speed": speed(others_cpu_share=0.5)}, {"better": "elsewhere"}],
    ids=["unsteady", "disturbed", "of-another-placement"],
)
def test_what_may_not_be_slower_in_itself_says_nothing_of_others(
    reviews: Path, tiny_model: str, changes: dict[str, Any]
) -> None:
    sizes = {
        f"fp32/{n}": training_config(reviews, tiny_model, micro_batch_size=n) for n in (32, 16)
    }
    wanted = training_config(reviews, tiny_model, micro_batch_size=8)
    slower = made("fp32/16", 2.0, "fp32/32")
    for found, expected in ((slower, True), (dataclasses.replace(slower, **changes), False)):
        both = made("fp32/32", 1.0, ""), found
        known = dict(zip(sizes, zip(sizes.values(), both, strict=True), strict=True))
        assert (beyond_slower("fp32/8", wanted, known) is not None) == expected


def made(name: str, step_s: float, better: str) -> Probed:
    """What a probe of a candidate finds; with a better one it is given up."""
    return Probed(
        candidate=name,
        times=StepTimes((16,), (step_s,), (1,)),
        steps_of_width={16: 10},
        overheads=None,
        is_given_up=bool(better),
        is_steady=True,
        speed=speed(),
        train_rows=100,
        eval_rows=10,
        probe_s=1.0,
        better=better,
    )


def test_what_is_compiled_is_kept_where_all_processes_of_a_user_find_it() -> None:
    """Probe, trials and fit of a node are processes of one user."""
    assert inductor.fx_graph_cache
    assert functorch.enable_autograd_cache
    folder = Path(default_cache_dir())
    assert folder == Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["captured", "eager"])
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's own tracing
def test_compiling_is_a_part_of_capturing_and_read_from_the_cache_the_next_time(
    mode: str, reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    config = training_config(
        reviews, tiny_model, device="cuda", precision="bf16", capture=mode == "captured"
    )
    fast = dataclasses.replace(config, compile=True)
    (plain, _), (cold, _), (warm, read) = (probed(each, tmp_path) for each in (config, fast, fast))
    found = (plain, cold, warm)
    own, first, again = (each.overheads.capture_s for each in found if each.overheads)
    print(f"{mode}: {own} s, compiled {first} s, again {again} s with {read} kept graphs")  # noqa: T201
    assert all(each.speed and each.speed.mode.startswith(mode) for each in found)
    assert first > own + 1
    assert again < first
    assert read > 0
    assert cold.overheads
    assert cold.overheads.first_use_s < first - own
    assert max(cold.times.seconds) < first - own


def probed(config: TrainingConfig, folder: Path) -> tuple[Probed, int]:
    """The probe of a configuration, and how many compiled graphs it read from the cache."""
    torch._dynamo.reset()
    counters.clear()
    events: list[Event] = []
    probe_all([ProbeRequest("one", config, BRIEF, folder / "scratch")], events.append)
    read = counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]
    return next(event for event in events if isinstance(event, Probed)), sum(map(int, read))
