"""A probe on this machine: carried through, stopped early for what is better, or compiled."""

import dataclasses
import getpass
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from jobs.training.config import TrainingConfig
from jobs.training.events import Event, Probed
from jobs.training.probing import probe
from jobs.training.probing.probe import ProbeRequest, probe_all
from jobs.training.probing.timing import GiveUp, Limit, ProbeTiming
from tests.builders import training_config

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


def test_a_probe_that_stops_early_names_the_candidate_that_is_better(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    config = training_config(reviews, tiny_model)
    rule = GiveUp(frozenset({"fp32"}), outside=Limit(1e-9, "known"))
    requests = [
        ProbeRequest("patient", config, BRIEF, tmp_path / "scratch"),
        ProbeRequest("hasty", config, BRIEF, tmp_path / "scratch", give_up=rule),
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


def test_what_is_beyond_a_slower_micro_batch_is_not_probed(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session is built for it; another precision is another curve."""
    built = list[tuple[str, int]]()

    def build(config: TrainingConfig, *arguments: Any, **options: Any) -> Any:
        built.append((config.precision, config.micro_batch_size))
        return own(config, *arguments, **options)

    own = probe.build_session
    monkeypatch.setattr(probe, "build_session", build)
    requests = [
        ProbeRequest(
            f"{precision}/{size}",
            training_config(reviews, tiny_model, micro_batch_size=size, precision=precision),
            BRIEF,
            tmp_path / "scratch",
            give_up=GiveUp(frozenset({precision})),
        )
        for precision, size in (("fp32", 32), ("fp32", 8), ("fp32", 4), ("bf16", 4))
    ]
    events: list[Event] = []
    probe_all(requests, events.append)
    found = {event.candidate: event for event in events if isinstance(event, Probed)}
    assert built == [("fp32", 32), ("fp32", 8), ("bf16", 4)]
    slower, beyond = found["fp32/8"], found["fp32/4"]
    assert (slower.is_given_up, slower.better) == (True, "fp32/32")
    assert (beyond.is_given_up, beyond.better, beyond.speed) == (True, "fp32/32", None)
    assert beyond.times == slower.times
    assert 0 < beyond.probe_s < slower.probe_s
    assert not found["bf16/4"].is_given_up


def test_what_is_compiled_is_kept_where_all_processes_of_a_user_find_it() -> None:
    """Probe, trials and fit of a node are processes of one user."""
    assert inductor.fx_graph_cache
    assert functorch.enable_autograd_cache
    folder = Path(default_cache_dir())
    assert folder == Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["captured", "eager"])
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
