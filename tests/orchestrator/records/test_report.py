"""Receipt and report: what they say about a run."""

import dataclasses
import html.parser
import json
import re
from pathlib import Path

import pytest

from jobs.training import quality
from jobs.training.events import BestKept, CheckpointRef, Proven
from jobs.training.quality import Curve, Point, QualityReport, Table
from orchestrator.decisions import select
from orchestrator.records import receipt, receipt_text, report, summary
from orchestrator.records.accuracy import accuracy
from tests.builders import (
    any_of,
    inventory,
    job,
    measurement,
    plan_of,
    prediction,
    speed,
    sweep,
    trial,
)

SPEC = job(
    resources__any_of=any_of("T4:1", "V100-16GB:1"),
    sweep=sweep({"train.precision": ["fp16", "bf16"], "train.optimizer.lr": [1e-5, 1e-4]}),
)
PLAN = plan_of(SPEC, inventory(T4=1, V100_16GB=1))
ID = PLAN.candidates[0].id
TRIALS = (trial(ID, 1e-5, 0.8), trial(ID, 1e-4, 0.9))
WINNER = select.select(SPEC, PLAN, [prediction(ID, time_s=100, cost_usd=1.0)], TRIALS)


def fit(duration_s: float, resumed_from: int = 0) -> receipt.FitResult:
    """A fit of 20 steps."""
    reference = CheckpointRef("/x", 20, {"accuracy": 0.91})
    losses = tuple((step, 1 / step) for step in range(1, 21))
    return receipt.FitResult(reference, ("a", "b"), 20, duration_s, resumed_from, losses, ())


def test_a_receipt_compares_predicted_with_actual() -> None:
    found = receipt.write_receipt("run", WINNER, fit(110.0), sweep_time_s=30)
    assert found.time_error == pytest.approx(0.1)
    assert found.is_within_interval is False
    assert found.actual_cost_usd == pytest.approx(0.526 * 110 / 3600)


def test_what_the_proof_costs_is_not_compared_with_a_prediction_that_has_none() -> None:
    """It is paid for all the same."""
    proven = dataclasses.replace(fit(100.0), proof=Proven(200, 1e-7, "", 20.0))
    found = receipt.write_receipt("run", WINNER, proven, 0.0, 0.25)
    assert found.actual_cost_usd == pytest.approx(0.526 * 100 / 3600)
    assert found.proof_cost_usd == pytest.approx(0.526 * 20 / 3600)
    assert summary._cost_usd(found) == pytest.approx(0.25 + 0.526 * 120 / 3600)
    assert "up to 1e-07 (20.0 s, $0.00292)" in receipt_text.receipt_text(found)


def test_a_resumed_run_is_not_compared() -> None:
    found = receipt.write_receipt("run", WINNER, fit(10.0, resumed_from=15), sweep_time_s=30)
    assert found.resumed
    assert found.time_error is None


def test_a_run_that_its_budget_stopped_is_not_compared() -> None:
    stopped = dataclasses.replace(fit(50.0), stopped_at=10)
    assert receipt.write_receipt("run", WINNER, stopped, 30).time_error is None


@pytest.mark.parametrize(
    ("is_early", "text"),
    [
        (True, "ended early after step 15, 3 evaluations without a better one: the model is that"),
        (False, "training  the model is that of step 12, the best by f1"),
    ],
)
def test_a_receipt_says_whose_weights_the_model_has(*, is_early: bool, text: str) -> None:
    best = BestKept(15, 12, "f1", 3, is_early=is_early)
    found = receipt.write_receipt("run", WINNER, dataclasses.replace(fit(50.0), best=best), 30)
    assert (found.time_error is None) == is_early
    assert text in receipt_text.receipt_text(found)


def test_a_receipt_tells_what_disturbed_the_fit() -> None:
    busy = dataclasses.replace(fit(110.0), speed=speed(others_cpu_share=0.5))
    found = receipt.write_receipt("run", WINNER, busy, 30)
    assert found.disturbances == ("other processes used 50% of the CPUs",)


def test_accuracy_is_of_comparable_receipts_by_accelerator() -> None:
    fits = [fit(110.0), fit(80.0), fit(10.0, resumed_from=15)]
    whole, t4 = accuracy([receipt.write_receipt("run", WINNER, found, 30) for found in fits])
    assert (whole.sku, t4.sku) == ("all", "T4")
    assert t4.fits == 2
    assert t4.mape == pytest.approx((10 / 110 + 20 / 80) / 2)
    assert t4.bias == pytest.approx((10 / 110 - 20 / 80) / 2)
    assert t4.coverage == 0.0
    assert t4.probed_memory_mape is None


def test_nothing_to_compare_is_no_accuracy() -> None:
    assert accuracy([]) == ()


def test_a_receipt_reads_as_predicted_against_actual() -> None:
    written = receipt.write_receipt("run-1", WINNER, fit(110.0), 30)
    lines = receipt_text.receipt_text(written).splitlines()
    assert lines[0] == "receipt of run-1"
    assert lines[3].split() == ["time", "100.0", "s", "[100.0", "s,", "100.0", "s]", "110.0", "s"]
    assert lines[5].strip() == "+10.0% off, outside the predicted interval"
    resumed = receipt.write_receipt("run-1", WINNER, fit(10.0, resumed_from=15), 30)
    assert "training was resumed" in receipt_text.receipt_text(resumed)


class Page(html.parser.HTMLParser):
    """Collects what a browser would load and show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.points: list[str] = []
        """Classes of plotted points, and of those that explain them."""
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links and plotted points."""
        values = dict(attrs)
        self.links += [v for k, v in values.items() if k in ("src", "href") and v]
        if tag in ("circle", "path"):
            self.points.append(values["class"] or "")

    def handle_data(self, data: str) -> None:
        """Gather text."""
        self.text += data


def render(**fields: object) -> Page:
    """A report of the run."""
    data = report.ReportData(run="reviews-1", metric="accuracy", plan=PLAN, winner=WINNER, **fields)
    return Page(report.render(data))


def test_the_report_stands_alone_and_shows_every_candidate() -> None:
    measured = measurement(ID, 0.2)
    page = render(
        measurements=(measured,),
        trials=TRIALS,
        fit=fit(110.0),
        receipt=receipt.write_receipt("run", WINNER, fit(110.0), 30),
    )
    assert page.links == []
    assert all(candidate.id in page.text for candidate in PLAN.candidates)
    assert all(skipped.reason in page.text for skipped in PLAN.skipped)
    assert sorted(page.points) == sorted(["other", "winner", "other", "pareto", "winner"])
    assert "200 ms" in page.text


def test_tables_curves_and_mistakes_of_the_model_are_shown_as_text() -> None:
    counts = (("a", 8, 2), ("b", 1, 9))
    confusion = Table("Confusion matrix", ("label", "a", "b"), counts, is_matrix=True)
    worst = Table("Worst mistakes", ("text", "loss"), (("<script>alert(1)</script>", 4.25),))
    curve = Curve("Calibration", "score", "share", (Point(0.2, 0.1, 40), Point(0.9, 0.8, 10)))
    found = QualityReport((confusion, worst), (curve,), {"a": 0.25})
    judged = dataclasses.replace(fit(110.0), quality=found)
    page = render(fit=judged)
    for shown in ("Confusion matrix", "Worst mistakes", "<script>alert(1)</script>", "4.25"):
        assert shown in page.text
    assert page.points.count("pareto") == 2 + 1  # one explains them
    data = report.ReportData("r", "accuracy", PLAN, WINNER, fit=judged)
    value = json.loads(report.to_json(data))
    assert value["fit"]["quality"]["thresholds"] == {"a": 0.25}


def test_a_report_is_read_back_and_one_of_another_format_is_none(tmp_path: Path) -> None:
    found = QualityReport((Table("t", ("a",), (("x",), (1,), (0.5,))),), (), {"a": 0.25})
    quality.write(found, tmp_path)
    assert quality.read(tmp_path) == found
    (tmp_path / quality.FILE).write_text('{"tables": 3}', encoding="utf-8")
    assert quality.read(tmp_path) is None
    assert quality.read(tmp_path / "missing") is None


def test_the_same_is_there_for_programs() -> None:
    measured = measurement(ID, 0.2)
    data = report.ReportData(
        run="reviews-1",
        metric="accuracy",
        plan=PLAN,
        winner=WINNER,
        measurements=(measured,),
        trials=TRIALS,
    )
    value = json.loads(report.to_json(data))
    assert value["measurements"][0]["candidate"] == ID
    assert len(value["plan"]["candidates"]) == len(PLAN.candidates)
    assert len(value["trials"]) == len(TRIALS)
    assert value["heat_maps"]
    assert value["receipt"] is None
    assert isinstance(value["advice"], list)


def test_receipt_and_report_show_values_of_any_size_in_few_characters() -> None:
    reference = CheckpointRef("/x", 20, {"perplexity": 1e304})
    huge = dataclasses.replace(fit(110.0), checkpoint=reference, losses=((1, 1e300), (2, 1e9)))
    trials = tuple(
        dataclasses.replace(tried, history=((1, 1e303), (2, 1e304 * (1 + index))))
        for index, tried in enumerate(TRIALS)
    )
    found = receipt.write_receipt("run", WINNER, huge, 30)
    assert receipt_text.receipt_text(found).endswith("quality   perplexity 1.000e+304")
    page = render(trials=trials, fit=huge, receipt=found)
    assert "1.000e+304" in page.text
    assert not re.search(r"\d{12}", page.text)


def test_its_first_paragraph_tells_the_run_in_plain_sentences() -> None:
    found = dataclasses.replace(
        receipt.write_receipt("run", WINNER, fit(110.0), 30), sweep_cost_usd=0.25
    )
    data = report.ReportData(
        "r", "accuracy", PLAN, WINNER, (measurement(ID, 0.2),), (), TRIALS, fit(110.0), found
    )
    cost = found.actual_cost_usd or 0.0
    assert report.lead(data) == (
        "Winnow measured 1 of 2 combinations of accelerator, precision and batch size and compared"
        f" 2 short trainings. {WINNER} was chosen ({WINNER.reason}). Training took 110.0 s and"
        f" cost ${cost:.3g}. The time was 10% longer than predicted. The comparison before it"
        " took 30.0 s and cost $0.25. On the evaluation rows the model reaches accuracy 0.9100."
    )
    unpriced = dataclasses.replace(found, actual_cost_usd=None, resumed=True, stopped_at=7)
    assert (
        "The last part of training, after it was resumed, took 110.0 s. It stopped at step 7, when"
        " its budget was used up."
    ) in report.lead(dataclasses.replace(data, receipt=unpriced))
    before = report.ReportData("r", "accuracy", PLAN, WINNER)
    assert report.lead(before) == f"{WINNER} was chosen ({WINNER.reason})."


def test_a_report_before_training_leaves_those_parts_out() -> None:
    page = render()
    assert "training took" not in page.text
    assert ID in page.text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.21, "3.2 s"), (600, "10.0 min"), (9000, "2.50 h"), (None, "–")]
)
def test_times_are_shown_as_people_read_them(seconds: float | None, text: str) -> None:
    assert receipt_text.show_time(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(12.345, "$12.35"), (0.00127, "$0.00127"), (None, "no price")]
)
def test_costs_keep_enough_digits(usd: float | None, text: str) -> None:
    assert receipt_text.show_cost(usd) == text
