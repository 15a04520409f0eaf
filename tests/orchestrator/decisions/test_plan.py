"""What a plan tries and skips, and the shipped examples on five kinds of GPU."""

import time
import tracemalloc
from pathlib import Path

import pytest

from cluster.inventory import Node, sort_out
from jobs.errors import InfeasibleError
from jobs.loader import load
from jobs.training.model.counting import shape_of
from orchestrator.decisions.plan import make_plan
from tests.builders import BERT_BASE, any_of, inventory, job, plan_of, sweep

ROOT = Path(__file__).parents[3]
CLUSTER = inventory(A100_80GB=1, L40S=2, RTX4090=1, T4=4, V100_32GB=2, cpu=2)


def test_candidates_are_the_product_of_placements_batches_and_precisions() -> None:
    spec = job(
        train__global_batch_size=64,
        resources__any_of=any_of("L40S:2", "A100-80GB:1"),
        sweep=sweep({"train.micro_batch_size": [16, 32], "train.precision": ["fp32", "bf16"]}),
    )
    ids = [candidate.id for candidate in plan_of(spec, CLUSTER).candidates]
    assert len(ids) == 8
    assert ids[0] == "L40S:2/16/fp32"
    assert plan_of(spec, CLUSTER).candidate("A100-80GB:1/16/bf16").accumulation == 4


def test_probes_begin_with_the_precision_that_auto_takes() -> None:
    space = {"train.micro_batch_size": [8, 16], "train.precision": ["bf16", "fp32"]}
    for name, own, other in (("cpu:2", "fp32", "bf16"), ("L40S:2", "bf16", "fp32")):
        spec = job(resources__any_of=any_of(name), sweep=sweep(space))
        ids = [candidate.id for candidate in plan_of(spec, CLUSTER).probing_order]
        assert ids == [f"{name}/{n}/{precision}" for precision in (own, other) for n in (16, 8)]


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        ({"train.precision": ["fp32", "bf16"]}, "T4 has no bf16; it has fp32, fp16"),
        ({"train.micro_batch_size": [8, 24]}, "micro batch 24 x 4 workers does not divide"),
        ({"train.micro_batch_size": [8, 512]}, "needs at least"),
    ],
)
def test_combinations_that_cannot_run_are_skipped_with_the_reason(
    space: dict[str, list[object]], reason: str
) -> None:
    spec = job(
        data__max_length=512,
        train__global_batch_size=2048,
        train__precision="fp32",
        resources__any_of=any_of("T4:4"),
        sweep=sweep(space),
    )
    plan = plan_of(spec, CLUSTER)
    assert len(plan.candidates) == 1
    assert reason in plan.skipped[0].reason


def test_auto_is_decided_for_each_placement_with_its_reason() -> None:
    spec = job(train__global_batch_size=256, resources__any_of=any_of("T4:4", "A100-80GB:1"))
    t4, a100 = plan_of(spec, CLUSTER).candidates
    assert (t4.precision, t4.micro_batch_size) == ("fp16", 64)
    assert (a100.precision, a100.micro_batch_size) == ("bf16", 256)
    assert "T4 has no bf16" in t4.reason
    assert "the largest that fits 80 GiB" in a100.reason


def test_auto_micro_batch_leaves_headroom() -> None:
    spec = job(
        data__max_length=512,
        train__global_batch_size=256,
        train__precision="fp32",
        resources__any_of=any_of("T4:1"),
    )
    candidate = plan_of(spec, CLUSTER).candidates[0]
    assert candidate.memory is not None
    assert candidate.memory.high_gib <= 16
    assert candidate.micro_batch_size * candidate.accumulation == 256


def test_placements_over_the_hourly_limit_are_skipped() -> None:
    spec = job(
        resources__any_of=any_of("A100-80GB:1", "T4:1"),
        resources__max_hourly_cost=1.0,
    )
    plan = plan_of(spec, CLUSTER)
    assert [c.placement.name for c in plan.candidates] == ["T4:1"]
    assert plan.skipped[0].reason == "costs 3.67 USD per hour, over max_hourly_cost 1"


def test_without_resources_one_device_of_each_kind_is_a_candidate() -> None:
    plan = make_plan(job(), inventory(T4=4, cpu=2), None)
    names = {candidate.placement.name for candidate in plan.candidates}
    assert names == {"T4:1", "cpu:1"}


@pytest.mark.parametrize("resources", [None, {"any_of": any_of("T4:1", "L4:1")}])
def test_unknown_accelerators_are_left_out_of_the_plan_of_the_rest(
    resources: dict[str, object] | None,
) -> None:
    nodes = sort_out([Node("a", "T4", 1), Node("b", "RTX9999", 2), Node("c", "T4-MIG-1g", 7)])
    plan = plan_of(job(resources=resources), nodes)
    assert [candidate.placement.name for candidate in plan.candidates] == ["T4:1"]
    assert [skipped.id for skipped in plan.skipped][:2] == ["RTX9999:2", "T4-MIG-1g:7"]
    assert "RTX9999 of node b is left out" in plan.skipped[0].reason


def test_only_unknown_accelerators_are_an_error_that_names_them() -> None:
    with pytest.raises(InfeasibleError, match="nothing in this job can run here: RTX9999 of node"):
        plan_of(job(), sort_out([Node("b", "RTX9999", 2)]))


def test_a_plan_remarks_on_names_that_fit_several_accelerators() -> None:
    spec = job(resources__any_of=any_of("A100:1"), train__compile=False)
    plan = plan_of(spec, inventory(A100_40GB=1))
    assert plan.remarks == ("A100 selects A100-40GB; write A100-80GB if you mean another model",)
    assert plan.only(plan.placements[0], "is preferred").remarks == plan.remarks


def test_nothing_that_can_run_is_an_error_with_every_reason() -> None:
    spec = job(resources__any_of=any_of("H100-SXM:8", "V100-16GB:1"))
    with pytest.raises(InfeasibleError, match="nothing in this job can run here") as caught:
        plan_of(spec, CLUSTER)
    assert "no nodes for H100-SXM:8" in str(caught.value)
    assert "no nodes for V100-16GB:1" in str(caught.value)


def test_a_model_of_unknown_size_is_planned_without_a_verdict() -> None:
    plan = make_plan(job(), inventory(T4=1), None)
    assert plan.candidates[0].verdict == "unknown"
    assert plan.candidates[0].micro_batch_size == 32


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_shipped_jobs_can_be_planned(path: Path) -> None:
    spec = load(path)
    plan = make_plan(spec, CLUSTER, shape_of(spec.model.base))
    assert plan.candidates
    assert all(candidate.verdict in ("fits", "tight") for candidate in plan.candidates)


def test_two_hundred_candidates_are_planned_in_a_moment() -> None:
    spec = job(
        train__global_batch_size=4096,
        resources__any_of=any_of("A100-80GB:1", "L40S:2", "RTX4090:1", "T4:4", "V100-32GB:2"),
        sweep=sweep(
            {
                "train.micro_batch_size": [2**n for n in range(11)],
                "train.precision": ["fp32", "tf32", "fp16", "bf16"],
            }
        ),
    )
    tracemalloc.start()
    begin = time.perf_counter()
    plan = make_plan(spec, CLUSTER, BERT_BASE)
    elapsed, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan.candidates) + len(plan.skipped) == 220
    assert elapsed < 5
    assert peak < 300 * 2**20


def test_a_device_of_one_s_own_costs_its_purchase_and_its_power() -> None:
    """1,752 USD over four years half in use, and 400 W at 0.25 USD a kilowatt hour."""
    spec = job(
        resources__any_of=any_of("RTX4090:2"),
        prices={"rtx-4090": 9.0},
        owned={"RTX4090": {"purchase": 1752.0, "power_w": 400.0, "usd_per_kwh": 0.25}},
    )
    plan = make_plan(spec, inventory(RTX4090=2), BERT_BASE)
    assert plan.placements[0].price_usd_per_hour == pytest.approx(2 * (0.1 + 0.1))


def test_rows_that_are_cut_are_told() -> None:
    spec = job(data__max_length=64, resources__any_of=any_of("RTX4090:2"), train__compile=False)
    whole, cut = (make_plan(spec, inventory(RTX4090=2), BERT_BASE, n) for n in (64, 1200))
    assert whole.remarks == ()
    assert cut.remarks == (
        "the longest training row has about 1,200 tokens; rows are truncated to 64 tokens"
        " (data.max_length)",
    )
