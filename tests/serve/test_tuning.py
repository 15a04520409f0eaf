"""The cheapest way to serve that keeps a latency."""

import pytest

from serve.tuning import Curve, options

CURVES = (
    Curve("T4:1", "torch-fp16", seconds={1: 0.002, 64: 0.016}),
    Curve("A100-80GB:1", "torch-fp16", seconds={1: 0.001, 64: 0.004}),
    Curve("cpu:1", "torch-fp32", refusal="it is slow"),
    Curve("cpu:1", "openvino-bf16", seconds={1: 0.003, 64: 0.1}),
)
PRICES = {"T4:1": 0.5, "A100-80GB:1": 4.0, "cpu:1": 0.05}


def test_the_cheapest_comes_first_and_what_was_refused_never() -> None:
    found = options(CURVES, PRICES, None)
    assert len(found) == 6
    assert (found[0].accelerators, found[0].max_batch_size) == ("cpu:1", 64)
    assert found[0].usd_per_million == pytest.approx(0.05 / 3600 / 640 * 1e6)
    assert [o.usd_per_million for o in found] == sorted(o.usd_per_million or 0 for o in found)


@pytest.mark.parametrize(
    ("limit_ms", "best"),
    [(250, ("cpu:1", 64)), (40, ("T4:1", 64)), (11, ("cpu:1", 1)), (9, ("T4:1", 1)), (5, None)],
)
def test_a_latency_rules_out_what_would_break_it(
    limit_ms: float, best: tuple[str, int] | None
) -> None:
    found = options(CURVES, PRICES, limit_ms)
    assert all(option.latency_ms <= limit_ms for option in found)
    assert (found and (found[0].accelerators, found[0].max_batch_size)) == (best or ())


def test_without_prices_the_fastest_comes_first() -> None:
    found = options(CURVES, {**PRICES, "cpu:1": None}, None)
    assert found[0].accelerators == "A100-80GB:1"
    assert {o.usd_per_million is None for o in found if o.accelerators == "cpu:1"} == {True}
