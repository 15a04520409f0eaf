"""Selects the cheapest way to serve within a latency limit."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.session import Connection
from jobs.spec.quantities import AcceleratorRequest
from jobs.spec.serve import ServeSpec
from orchestrator.cli.tune_serve import Tuned, places, why_none
from serve.engines.timing_curve import Curve
from serve.tools.cost_frontier import SIZES, options
from serve.version import ModelVersion

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


@pytest.mark.ray
def test_every_engine_is_timed_on_a_node_that_reads_the_model_from_where_it_is_kept(
    ray_cluster: Connection, version: ModelVersion, tmp_path: Path
) -> None:
    from cluster import discovery
    from serve.tools import engine_benchmark

    spec = ServeSpec.model_validate({"route": "/tuned", "precision": "fp32"})
    found = [place for place in places(spec, discovery.discover()) if place[0].name == "cpu"]
    elsewhere = replace(version, path=str(tmp_path / "not-here"))
    told: list[str] = []
    curves = engine_benchmark.curves(elsewhere, spec, found, told.append)
    assert told == ["timing engines on cpu:1"]
    assert [curve.engine for curve in curves] == ["openvino-fp32", "onnx-fp32", "torch-fp32"]
    for curve in curves:
        assert not curve.refusal
        assert curve.seconds
        assert tuple(curve.seconds) == SIZES
        assert curve.seconds[SIZES[-1]] / SIZES[-1] < curve.seconds[1]  # per text


def test_what_stands_in_the_way_is_said() -> None:
    asked = AcceleratorRequest("T4", 4)
    refused = CURVES[2]
    assert why_none(Tuned((), (), None), asked).startswith("no node here has T4:4")
    assert "(cpu:1 torch-fp32: it is slow)" in why_none(Tuned((refused,), (), None), asked)
    assert "p95_latency of 5 ms" in why_none(Tuned(CURVES, (), 5.0), asked)
