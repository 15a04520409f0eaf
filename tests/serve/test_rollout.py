"""The gate stops a worse or slower version, and ignores differences that may be chance."""

import random
from typing import Any
from unittest.mock import Mock

import pytest

from jobs.spec.serve import RolloutSpec, SloSpec
from serve.deploy import routing
from serve.deploy.rollout import Traffic, grown, reasons_against
from serve.deploy.routing import Route
from serve.tasks.comparison import Comparison, compare_perplexities
from serve.tasks.text_classification.endpoint import LabelCounts, compare

GATE = RolloutSpec().gate
GOOD = Traffic(1000, 0, 10.0)


def against(counts: Comparison | None = None, new: Traffic = GOOD, **slo: Any) -> tuple[str, ...]:
    """Reasons against a new version, compared with a good one."""
    promise = SloSpec.model_validate(slo) if slo else None
    return reasons_against(GATE, promise, counts, GOOD, new)


def test_a_version_like_the_old_one_goes_on() -> None:
    assert against(LabelCounts(256, 250, 3, 3).comparison()) == ()
    assert against(LabelCounts(256, 256, 0, 0).comparison(), Traffic(0, 0, None)) == ()


def test_labels_flipped_on_a_tenth_are_seen() -> None:
    draw = random.Random(1)
    right = [draw.choice("ab") for _ in range(256)]
    old = [x if draw.random() < 0.9 else "b" for x in right]
    new = [x if draw.random() < 0.9 else ("a" if x == "b" else "b") for x in old]
    (reason,) = against(compare(old, new, right))
    assert "its accuracy changes by -0." in reason


def test_a_difference_that_may_be_chance_is_let_through() -> None:
    counts = LabelCounts(256, 246, only_old_right=6, only_new_right=2)
    assert counts.change < -0.01
    assert counts.is_chance
    assert against(counts.comparison()) == ()


@pytest.mark.parametrize(
    ("perplexity", "shown"), [(12.5, "12.5000, 1.25 times"), (1e304, "1.000e+304, 1e+303 times")]
)
def test_a_language_model_that_foresees_less_is_seen(perplexity: float, shown: str) -> None:
    assert reasons_against(GATE, None, compare_perplexities(10.0, 10.4), GOOD, GOOD) == ()
    (reason,) = reasons_against(GATE, None, compare_perplexities(10.0, perplexity), GOOD, GOOD)
    assert reason == f"its perplexity is {shown} the old one's 10.0000, which is not <=1.05"


def test_counts_go_on_when_haproxy_is_replaced() -> None:
    old, new = ("/run/a", 7), ("/run/a", 8)
    other = ("/run/b", 9)
    readings = [
        {old: (1000, 3), other: (10, 0)},
        {old: (1050, 4), other: (10, 0)},
        {new: (20, 5), other: (12, 1)},
        {new: (30, 5), other: (12, 1)},
    ]
    assert grown(readings) == (50 + 20 + 10 + 2, 1 + 5 + 1)
    assert grown(readings[:1]) == (0, 0)
    failing = Traffic(*grown([{old: (5000, 0)}, {new: (60, 30)}]), 10.0)
    (reason,) = reasons_against(GATE, None, None, GOOD, failing)
    assert reason.startswith("50.00% of its requests fail")


@pytest.mark.parametrize("model", ["reviews", "reviews--b", "a--0123456789ab--c"])
def test_an_application_s_name_says_whose_and_which_version_it_is(model: str) -> None:
    name = routing.application_of(model, "0123456789ab")
    assert (routing.model_of(name), routing.version_of(name)) == (model, "0123456789ab")
    assert (routing.model_of(model), routing.version_of(model)) == (model, None)


@pytest.mark.parametrize(
    ("new", "slo", "words"),
    [
        (Traffic(1000, 0, 60.0), {}, "6.0 times the old one's 10.0 ms"),
        (Traffic(1000, 0, 11.9), {}, None),
        (Traffic(1000, 0, 14.0), {"p95_latency": "12ms"}, "over the slo of 12 ms"),
        (Traffic(90, 0, 10.0, 70.0, 9.0), {"p95_ttft": "80ms", "p95_tpot": "10ms"}, None),
        (Traffic(90, 0, 10.0, 90.0, 9.0), {"p95_ttft": "80ms"}, "first token is 90.0 ms, over"),
        (Traffic(90, 0, 10.0, 90.0, 9.0), {"p95_tpot": "8ms"}, "output token is 9.0 ms, over"),
        (Traffic(1000, 30, 10.0), {}, "3.00% of its requests fail, and 0.00%"),
        (Traffic(1000, 30, 10.0), {"error_rate": "<5%"}, None),
        (Traffic(1000, 60, 10.0), {"error_rate": "<5%"}, "6.00% of its requests fail, which is"),
        (Traffic(10, 1, 10.0), {}, None),
        (Traffic(2, 2, None), {}, "answers none of the gate's requests, of 2 in all"),
    ],
)
def test_slow_and_failing_versions_are_stopped(
    new: Traffic, slo: dict[str, str], words: str | None
) -> None:
    found = against(None, new, **slo)
    assert (words in found[0]) if words else found == ()


def test_routes_become_maps_and_back() -> None:
    second = Route("two", rate=7, model="films")
    routes = {"/a": Route("one"), "/b/c": routing.with_canary(second, "three", 25)}
    stable, canary, weights, rates, models = routing.maps(routes)
    assert stable == {"/a/": "/_v/one", "/b/c/": "/_v/two"}
    assert (canary, weights) == ({"/b/c/": "/_v/three"}, {"/b/c/": "25"})
    assert (rates, models) == ({"/b/c/": "7"}, {"films": "/b/c/"})
    texts = [routing.text_of(table) for table in (stable, canary, weights, rates, models)]
    assert routing.parse(*texts) == routes
    assert routing.parse("", "", "", "", "") == {}


def test_versions_of_different_tasks_are_not_compared() -> None:
    from serve.deploy import release  # imports Ray

    old = Mock(version=Mock(task="text-classification"))
    new = Mock(version=Mock(task="text-classification/multi-label"))
    assert release._compare(old, new, {}) == (None, ())
