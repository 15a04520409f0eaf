"""Joining speed and quality, and choosing among what keeps the limits."""

import math
from dataclasses import replace

import pytest

from cluster.inventory import Inventory, Node
from jobs.errors import InfeasibleError
from jobs.spec import JobSpec
from orchestrator.decisions import search, select
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.resolve import training_config
from orchestrator.decisions.search import Range, TrialResult
from tests.builders import any_of, inventory, job, plan_of, prediction, sweep, trial

SPACE = {
    "train.micro_batch_size": [16],
    "train.precision": ["fp16", "fp32"],
    "train.optimizer.lr": [1e-5, 1e-4],
}
LR = "train.optimizer.lr"
CHEAP, FAST = "T4:1/16/fp16", "T4:2/16/fp16"
PREDICTIONS = (
    prediction(CHEAP, time_s=100, cost_usd=1.0),
    prediction(FAST, time_s=60, cost_usd=1.2),
)
CHEAP_TRIAL, SAFE_TRIAL = 1e-5, 1e-4
TRIALS = (trial(CHEAP, 1e-5, 0.88), trial(CHEAP, 1e-4, 0.92))


def case(**objective: object) -> tuple[object, Plan]:
    """A job with an objective, and its plan."""
    spec = job(resources__any_of=any_of("T4:1", "T4:2"), sweep=sweep(SPACE, objective=objective))
    return spec, plan_of(spec, inventory(T4=2))


@pytest.mark.parametrize(
    ("objective", "winner"),
    [
        ({"minimize": "cost"}, (CHEAP, 1e-4)),
        ({"minimize": "time"}, (FAST, 1e-4)),
        ({"maximize": "accuracy"}, (CHEAP, 1e-4)),
        ({"minimize": "cost", "subject_to": {"time": "<=90s"}}, (FAST, 1e-4)),
        ({"minimize": "time", "subject_to": {"cost": "<=1.1"}}, (CHEAP, 1e-4)),
        ({"minimize": "cost", "subject_to": {"accuracy": "<0.9"}}, (CHEAP, 1e-5)),
    ],
)
def test_the_objective_decides_among_what_keeps_the_limits(
    objective: dict[str, object], winner: tuple[str, float]
) -> None:
    spec, plan = case(**objective)
    found = select.select(spec, plan, PREDICTIONS, TRIALS)
    assert (found.candidate.id, found.params["train.optimizer.lr"]) == winner


@pytest.mark.parametrize("objective", [{"minimize": "cost"}, {"maximize": "accuracy"}])
def test_a_tie_goes_to_the_lower_loss_and_never_to_a_diverged_trial(
    objective: dict[str, object],
) -> None:
    spec, plan = case(**objective)

    def chosen(*losses: float) -> float:
        trials = [
            replace(trial(CHEAP, 10.0**-place, 0.9), metrics={"accuracy": 0.9, "loss": loss})
            for place, loss in enumerate(losses)
        ]
        return losses[-int(math.log10(select.select(spec, plan, PREDICTIONS, trials).params[LR]))]

    assert chosen(0.5, 0.3, 0.4) == 0.3
    assert chosen(3450.0, 0.5) == 0.5
    better = replace(trial(CHEAP, 1e-2, 0.95), metrics={"accuracy": 0.95, "loss": 3450.0})
    found = select.select(spec, plan, PREDICTIONS, (*TRIALS, better))
    assert found.params[LR] == 1e-4


def test_limits_on_time_and_cost_that_nothing_keeps_end_the_run() -> None:
    spec, plan = case(minimize="cost", subject_to={"time": "<=10s"})
    with pytest.raises(InfeasibleError, match="time 100 is not <=10s; time 60 is not <=10s"):
        select.select(spec, plan, PREDICTIONS, TRIALS)


def test_a_quality_limit_that_short_trials_miss_lets_the_best_go_on() -> None:
    spec, plan = case(minimize="cost", subject_to={"accuracy": ">=0.95"})
    found = select.select(spec, plan, PREDICTIONS, TRIALS)
    assert found.params["train.optimizer.lr"] == 1e-4
    assert "no trial reached" in found.reason


def test_the_pareto_front_holds_what_nothing_beats() -> None:
    spec, plan = case(minimize="cost")
    front = {o.id for o in select.select(spec, plan, PREDICTIONS, TRIALS).options if o.is_pareto}
    assert front == {f"{CHEAP} lr=0.0001", f"{FAST} lr=0.0001"}


def test_quality_of_one_precision_says_nothing_about_another() -> None:
    spec, plan = case(minimize="cost")
    other = prediction("T4:1/16/fp32", time_s=1, cost_usd=0.01)
    found = select.select(spec, plan, (*PREDICTIONS, other), TRIALS)
    assert found.candidate.id == CHEAP
    assert all("fp32" not in option.candidate for option in found.options)


def test_quality_trials_run_where_a_sample_is_cheapest() -> None:
    _, plan = case(minimize="time")
    assert select.quality_candidate(plan, PREDICTIONS).id == CHEAP


def test_without_prices_quality_trials_run_where_it_is_fastest() -> None:
    _, plan = case(minimize="time")
    unpriced = [prediction(p.candidate, time_s=p.time_s.mean, cost_usd=None) for p in PREDICTIONS]
    assert select.quality_candidate(plan, unpriced).id == FAST


def test_when_every_candidate_ran_out_of_memory_the_job_says_so() -> None:
    spec, plan = case(minimize="time")
    with pytest.raises(InfeasibleError, match="every candidate ran out of memory; lower train"):
        select.quality_candidate(plan, ())
    with pytest.raises(InfeasibleError, match="every candidate ran out of memory; lower train"):
        select.select(spec, plan, (), ())  # of a sweep that searches no field of learning


def test_without_a_sweep_the_cheapest_placement_is_taken() -> None:
    spec = job(resources__any_of=any_of("T4:2", "T4:1"))
    found = select.select_unmeasured(plan_of(spec, inventory(T4=2)))
    assert found.candidate.placement.name == "T4:1"
    assert found.prediction is None


def test_speed_fields_are_left_to_the_probes() -> None:
    spec, _ = case(minimize="cost")
    assert search.quality_space(spec) == {"train.optimizer.lr": (1e-5, 1e-4)}


@pytest.mark.parametrize(("trials", "points"), [(2, 2), (8, 2), (1, None)])
def test_lists_are_tried_in_full_when_the_trials_suffice(trials: int, points: int | None) -> None:
    grid = search.full_grid({"train.optimizer.lr": (1e-5, 1e-4)}, trials)
    assert (len(grid) if grid is not None else None) == points
    assert search.full_grid({"train.optimizer.lr": Range(1e-5, 1e-4, is_log=True)}, trials) is None


def test_a_trial_gets_its_share_of_the_run_and_several_evaluations() -> None:
    spec = job(train__epochs=3, sweep=sweep(SPACE, trial_share=0.5))
    budget = search.trial_budget(spec, train_rows=3200)
    assert (budget.epochs, budget.steps, budget.eval_every.value) == (1.5, 150, 38)
    assert budget.grace_steps == 76


@pytest.mark.parametrize(("evaluation_steps", "every"), [(7.0, 38), (8.0, 75)])
def test_a_trial_is_evaluated_less_often_where_that_would_take_long(
    evaluation_steps: float, every: int
) -> None:
    """It can be stopped after half of its steps all the same."""
    spec = job(train__epochs=3, sweep=sweep(SPACE, trial_share=0.5))
    budget = search.trial_budget(spec, 3200, evaluation_steps)
    assert budget.eval_every.value == every
    assert 75 <= budget.grace_steps <= 76
    patient = job(
        train__epochs=3,
        train__early_stopping={"metric": "accuracy", "patience": 2},
        sweep=sweep(SPACE, trial_share=0.5),
    )
    assert search.trial_budget(patient, 3200, evaluation_steps).eval_every.value == 38


def test_a_searched_seed_is_that_of_its_trials_and_of_the_winner() -> None:
    spec = job(train__micro_batch_size=16, sweep=sweep({"seed": [7, 8]}, trials=2))
    assert search.full_grid(search.quality_space(spec), 2) == ({"seed": 7}, {"seed": 8})
    candidate = plan_of(spec, inventory(T4=1)).candidates[0]
    assert training_config(spec, candidate.execution, {"seed": 8}).seed == 8
    winner = select.Winner(candidate, {"seed": 8}, None, "")
    assert select.winning_job(spec, winner).seed == 8


def test_a_recorded_winner_moves_to_the_nodes_that_are_there_now() -> None:
    spec, plan = case(minimize="cost")
    recorded = select.select(spec, plan, PREDICTIONS, TRIALS)
    restarted = Inventory((Node("new-node", "T4", 2),))
    moved = select.relocate(recorded, plan_of(spec, restarted))
    assert recorded.candidate.placement.node_ids == ("node-T4",)
    assert moved.candidate.placement.node_ids == ("new-node",)
    assert moved.params == recorded.params


def test_a_recorded_winner_without_nodes_is_an_error_that_names_what_there_is() -> None:
    spec, plan = case(minimize="time")
    recorded = select.select(spec, plan, PREDICTIONS, TRIALS)
    assert recorded.candidate.id == FAST
    with pytest.raises(InfeasibleError, match="can no longer be placed; this cluster can run T4:1"):
        select.relocate(recorded, plan_of(spec, inventory(T4=1)))


@pytest.mark.parametrize(
    ("eval_rows", "chosen", "note"),
    [
        (100_000, CHEAP_TRIAL, ""),
        (2_000, SAFE_TRIAL, ""),
        (50, CHEAP_TRIAL, "50 rows of evaluation cannot tell"),
    ],
)
def test_a_metric_s_limit_is_kept_despite_the_noise_of_its_evaluation(
    eval_rows: int, chosen: float, note: str
) -> None:
    spec, plan = case(minimize="cost", subject_to={"accuracy": ">=0.9"})
    # the cheaper precision only just keeps the limit
    dear = prediction("T4:1/16/fp32", time_s=200, cost_usd=2.0)
    trials = (trial(CHEAP, CHEAP_TRIAL, 0.905), trial(dear.candidate, SAFE_TRIAL, 0.95))
    found = select.select(spec, plan, (*PREDICTIONS, dear), trials, eval_rows)
    assert found.params["train.optimizer.lr"] == chosen
    assert note in found.reason


def chat(**fields: object) -> JobSpec:
    """A job of a language model."""
    columns = {"train": {"path": "t.jsonl"}, "eval": {"path": "e.jsonl"}, "messages": "messages"}
    return job(model__task="causal-lm", data=columns, **fields)


@pytest.mark.parametrize(
    ("objective", "judged", "winner"),
    [
        ({"minimize": "perplexity"}, ("perplexity", "min"), 1e-4),
        ({"maximize": "token_accuracy"}, ("token_accuracy", "max"), 1e-5),
        ({"minimize": "time", "subject_to": {"perplexity": "<=9"}}, ("perplexity", "min"), 1e-4),
    ],
)
def test_a_sweep_goes_where_its_metric_is_better(
    objective: dict[str, object], judged: tuple[str, str], winner: float
) -> None:
    """A failed trial has no metric, so it cannot win whatever the direction."""
    spec = chat(
        resources__any_of=any_of("T4:1"),
        train__eval={"metrics": ["perplexity", "token_accuracy"]},
        sweep=sweep(SPACE, objective=objective),
    )
    plan = plan_of(spec, inventory(T4=1))
    found = search.judged_metric(spec)
    assert (found.name, found.goal) == judged
    metrics = {1e-5: (10.0, 0.6), 1e-4: (8.0, 0.5)}
    trials = [
        TrialResult(str(lr), CHEAP, {LR: lr}, {"perplexity": ppl, "token_accuracy": share})
        for lr, (ppl, share) in metrics.items()
    ]
    failed = TrialResult("failed", CHEAP, {LR: 1.0}, {}, failure="out of memory")
    chosen = select.select(spec, plan, PREDICTIONS[:1], (failed, *trials), 100)
    assert chosen.params[LR] == winner


@pytest.mark.parametrize(
    ("metric", "value", "rows", "expected"),
    [
        ("accuracy", 0.9, 872, 0.0199),
        ("mcc", 0.6, 1043, 0.0388),
        ("accuracy", 1.0, 100, 0.0),
        ("perplexity", 8.0, 100, 0.0),
        ("accuracy", 0.9, 0, 0.0),
    ],
)
def test_the_noise_of_a_metric_falls_with_the_rows_that_judge(
    metric: str, value: float, rows: int, expected: float
) -> None:
    spec = chat() if metric == "perplexity" else job()
    assert select.noise(spec, metric, value, rows) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("value", "text"),
    [(31.5, "perplexity 31.5000 is not"), (1e304, "perplexity 1.000e+304 is not")],
)
def test_a_broken_limit_is_told_in_few_characters(value: float, text: str) -> None:
    objective = {"maximize": "token_accuracy", "subject_to": {"perplexity": "<=20"}}
    spec = job(sweep=sweep({"train.optimizer.lr": [1e-5]}, objective=objective))
    assert select.broken_limits(spec, {"perplexity": value}) == (f"{text} <=20",)
