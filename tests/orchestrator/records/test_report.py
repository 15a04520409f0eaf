"""Receipt and report: what they say about a run."""

import html.parser

import pytest

from jobs.training.events import CheckpointRef
from orchestrator.decisions import select
from orchestrator.decisions.predict import Interval, Measurement
from orchestrator.records import receipt, report
from tests.builders import any_of, inventory, job, plan_of, prediction, sweep, trial

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


def test_a_resumed_run_is_not_compared() -> None:
    found = receipt.write_receipt("run", WINNER, fit(10.0, resumed_from=15), sweep_time_s=30)
    assert found.resumed
    assert found.time_error is None


def test_a_receipt_reads_as_predicted_against_actual() -> None:
    lines = report.receipt_text(receipt.write_receipt("run-1", WINNER, fit(110.0), 30)).splitlines()
    assert lines[0] == "receipt of run-1"
    assert lines[3].split() == ["time", "100.0", "s", "[100.0", "s,", "100.0", "s]", "110.0", "s"]
    assert lines[5].strip() == "+10.0% off, outside the predicted interval"
    resumed = receipt.write_receipt("run-1", WINNER, fit(10.0, resumed_from=15), 30)
    assert "training was resumed" in report.receipt_text(resumed)


class Page(html.parser.HTMLParser):
    """Collects what a browser would load and show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.circles: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links and plotted points."""
        values = dict(attrs)
        self.links += [v for k, v in values.items() if k in ("src", "href") and v]
        if tag == "circle":
            self.circles.append(values["class"] or "")

    def handle_data(self, data: str) -> None:
        """Gather text."""
        self.text += data


def render(**fields: object) -> Page:
    """A report of the run."""
    data = report.ReportData(run="reviews-1", metric="accuracy", plan=PLAN, winner=WINNER, **fields)
    return Page(report.render(data))


def test_the_report_stands_alone_and_shows_every_candidate() -> None:
    measured = Measurement(ID, Interval(0.1, 0.2, 0.3), 50.0, 25.0, 1.5, 100, 10, 2.0, 9.0)
    page = render(
        measurements=(measured,),
        trials=TRIALS,
        fit=fit(110.0),
        receipt=receipt.write_receipt("run", WINNER, fit(110.0), 30),
    )
    assert page.links == []
    assert all(candidate.id in page.text for candidate in PLAN.candidates)
    assert all(skipped.reason in page.text for skipped in PLAN.skipped)
    assert sorted(page.circles) == ["other", "winner"]
    assert "200 ms" in page.text


def test_a_report_before_training_leaves_those_parts_out() -> None:
    page = render()
    assert "training took" not in page.text
    assert ID in page.text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.21, "3.2 s"), (600, "10.0 min"), (9000, "2.50 h"), (None, "–")]
)
def test_times_are_shown_as_people_read_them(seconds: float | None, text: str) -> None:
    assert report.show_time(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(12.345, "$12.35"), (0.00127, "$0.00127"), (None, "no price")]
)
def test_costs_keep_enough_digits(usd: float | None, text: str) -> None:
    assert report.show_cost(usd) == text
