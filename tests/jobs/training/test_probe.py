"""A probe on this machine: carried through, and stopped early with the name of what is better."""

from pathlib import Path

import pytest

from jobs.training.events import Event, Probed
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
