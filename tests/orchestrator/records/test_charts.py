"""What a report draws: shares, gaps and orders that follow from the measurements."""

from orchestrator.decisions.measurement import Phases
from orchestrator.records import charts
from tests.builders import any_of, inventory, job, measurement, plan_of, prediction, sweep

SPEC = job(
    train__precision="fp16",
    resources__any_of=any_of("T4:1", "T4:2"),
    prices={"T4": 1.0},
    sweep=sweep({"train.micro_batch_size": [8, 16]}),
)
PLAN = plan_of(SPEC, inventory(T4=2))
FOUND = (
    measurement("T4:1/8/fp16", 0.8),
    measurement("T4:1/16/fp16", 0.4),
    measurement("T4:2/8/fp16", 0.5, is_given_up=True, overheads=None, better="T4:1/16/fp16"),
    measurement("T4:2/16/fp16", 0.4, overheads=None, speed=None),
)


def test_a_heat_map_has_every_candidate_with_the_best_at_full_strength() -> None:
    rates, costs = charts.heat_maps(PLAN, FOUND)
    assert rates.columns == (8, 16)
    assert [name for name, _ in rates.rows] == ["T4:1 fp16", "T4:2 fp16"]
    slow, fast = rates.rows[0][1]
    assert (slow.text, fast.text) == ("40", "80")
    assert (slow.strength, fast.strength) == (0.5, 1.0)
    why = "given up: T4:1/16/fp16 is faster and costs no more"
    assert [cell.note for _, cells in rates.rows for cell in cells] == ["", "", why, ""]
    assert costs.rows[0][1][1].text == "$3.47"


def test_running_out_of_memory_and_not_measured_look_different() -> None:
    out = measurement("T4:1/16/fp16")
    out = type(out)(out.candidate, None, failure="tried to allocate")
    (rates, *_) = charts.heat_maps(PLAN, (FOUND[0], out))
    assert [cell.text for cell in rates.rows[0][1]] == ["40", "out of memory"]
    assert rates.rows[1][1][0].text == "–"


def test_candidates_rank_by_samples_a_dollar() -> None:
    bars = charts.ranking(PLAN, FOUND)
    assert bars[0].label == "T4:1/16/fp16"
    assert bars[0].share == 1.0
    assert bars[0].text == "0.288 million samples a dollar"


def test_scaling_compares_with_one_worker_at_the_same_micro_batch() -> None:
    bars = {bar.label: bar for bar in charts.scaling(PLAN, FOUND)}
    assert bars["T4:2/8/fp16"].text == "1.60x of one; 1.8x is usual"
    assert bars["T4:2/16/fp16"].share == 0.5


def test_the_saving_is_against_training_every_candidate() -> None:
    found = [measurement("T4:1/8/fp16", probe_s=36.0), measurement("T4:2/8/fp16", probe_s=36.0)]
    times = [prediction(m.candidate, time_s=3600.0, cost_usd=None) for m in found]
    text = charts.saving_text(PLAN, times, found)
    assert text.startswith("probes took 0.03 device hours; training every candidate")
    assert text.endswith("take 3")
    assert charts.saving_text(PLAN, [], []) == ""


def test_phases_are_drawn_against_the_longest() -> None:
    bars = charts.phase_bars(Phases(10.0, 5.0, 100.0, 20.0, 1.0, 0.0), lambda s: f"{s:g}")
    assert [bar.label for bar in bars][:3] == ["start", "setup", "steps"]
    assert [bar.share for bar in bars][:3] == [0.1, 0.05, 1.0]
