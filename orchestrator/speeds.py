"""What probes and trials have found of the speed of candidates, recorded as it comes."""

from collections.abc import Sequence

from cluster.placement import Placement
from jobs.training.probing.timing import GiveUp
from orchestrator.context import Context
from orchestrator.decisions import budget, overlap, predict, search, trial_times
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Launch, Measurement, Prediction
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.resolve import probe_timing
from orchestrator.decisions.search import TrialResult
from orchestrator.notices import Progress


class Speeds:
    """The measurements of a run, and the predictions that follow from them."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context = context
        self.launches = list(context.run.read_all("launches", Launch))
        self.measured: dict[str, list[Measurement]] = {}
        """By candidate; more than one where a probe was repeated."""
        for found in context.run.read_all("measurements", Measurement):
            self.measured.setdefault(found.candidate, []).append(found)
        recorded = context.run.read_all("trial_timings", Measurement)
        self._by_trials = {found.candidate: found for found in recorded}
        """By candidate: what its trials measured; `measured` has probes only."""
        self.trials = list(context.run.read_all("trials", TrialResult))
        """All trials so far, whose cost is spent."""
        self.plan = plan.trying(self.measured)
        """The plan, with the compiled candidates that were tried."""

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """One for each candidate, in the order of the plan."""
        found = (self.timings(candidate.id) for candidate in self.plan.candidates)
        return tuple(predict.settle(several) for several in found if several)

    @property
    def unmeasured(self) -> tuple[Candidate, ...]:
        """Candidates without a measurement, in the order in which they are probed."""
        return tuple(c for c in self.plan.probing_order if c.id not in self.measured)

    @property
    def eval_rows(self) -> int:
        """Rows that metrics are judged by."""
        return max(measured.eval_rows for measured in self.measurements)

    @property
    def every(self) -> tuple[Measurement, ...]:
        """Repeated ones among them."""
        return tuple(found for several in self.measured.values() for found in several)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """Of each candidate that was measured to the end."""
        workers = self._context.workers
        return predict.predict_all(
            self._context.spec,
            self.plan.candidates,
            self.measurements,
            self.launches,
            workers.warm if workers else "",
        )

    def evaluation_steps(self, candidate: Candidate) -> float:
        """Returns how many steps of a candidate an evaluation takes as long as."""
        measured = predict.settle(self.measured[candidate.id])
        if measured.step_s is None or measured.overheads is None:
            return 0.0
        return measured.overheads.eval_s / measured.step_s.mean

    def timings(self, candidate: str) -> list[Measurement]:
        """Returns the measurements of a candidate: its first probe, its trials, later probes."""
        probes, by_trials = self.measured.get(candidate, []), self._by_trials.get(candidate)
        return [*probes[:1], *([by_trials] if by_trials else ()), *probes[1:]]

    def width(self, candidate: Candidate) -> float:
        """Returns the mean width of the steps of a candidate's full run; 0 if not known."""
        return self.measured[candidate.id][0].width

    def take_trials(self, trials: Sequence[TrialResult]) -> None:
        """Count steps of trials as a timing of their candidates, where they suffice."""
        for candidate in self.plan.candidates:
            name = candidate.id
            timings = [t.timing for t in trials if t.candidate == name and t.timing]
            if name not in self.measured or not timings:
                continue
            timing = probe_timing(self._context.spec, candidate.execution)
            steps = self.measured[name][0].steps
            found = trial_times.measured_by(name, timings, steps, timing)
            if found and found.step_s:
                self._by_trials[name] = found
                self._context.run.append("trial_timings", found)
                self._context.remark(f"{name}: {found.step_s.mean:.3g} s a step in its trials")

    def add(self, candidate: Candidate) -> None:
        """Record that a compiled candidate is tried."""
        self.plan = self.plan.trying({candidate.id})
        self._context.run.write("plan", self.plan)

    def take(self, measured: Measurement) -> None:
        """Record a measurement and tell it."""
        self.measured.setdefault(measured.candidate, []).append(measured)
        self._context.run.append("measurements", measured)
        total = len(self.plan.candidates)
        text = f"{measured.candidate}: {_speed_text(measured)}"
        self._context.notify(Progress("probe", len(self.measured), total, text, is_result=True))
        for disturbance in measured.disturbances:
            self._context.remark(f"{measured.candidate}: {disturbance}")

    def take_launch(self, launch: Launch) -> None:
        """Record what starting or ending a group took."""
        self.launches.append(launch)
        self._context.run.append("launches", launch)

    def take_launches(self) -> None:
        """Record the starts and ends of the run's workers that no probe has told of."""
        for launch in self._context.workers.launches() if self._context.workers else ():
            self.take_launch(launch)

    def must_end(self, what: str) -> bool:
        """Whether the budget leaves too little for `what` next; told when it does."""
        context = self._context
        cost = budget.sweep_cost_usd(self.plan, self.every, self.launches, self.trials)
        kept_s = context.spec.train.eval.harness_s
        spent = budget.Spent(context.clock() - context.began + kept_s, cost)
        is_over = budget.ends_sweep(context.spec.budget, spent, self.predictions)
        if is_over:
            context.remark(f"no {what}: the budget is kept for the full run")
        return is_over

    def beside_trials(self, left: Sequence[Placement]) -> tuple[Placement, ...]:
        """Returns the placements among those left to probe that can be probed beside trials now."""
        workers, has_room = self._context.workers, self._context.devices.has_room
        return overlap.beside_trials(
            self._context.spec,
            self.plan,
            self.predictions,
            left,
            has_room,
            lambda own: bool(workers and workers.serves(own)) or has_room(own),
        )

    def give_up(self, candidate: Candidate) -> GiveUp:
        """What the probe of a candidate compares it with, to stop early."""
        spec, known = self._context.spec, self.plan.candidates
        has_trials = bool(search.quality_space(spec))
        return predict.give_up(
            candidate, known, self.measurements, self.predictions, has_trials=has_trials
        )


def _speed_text(measured: Measurement) -> str:
    if measured.step_s is None:
        return measured.why_given_up or measured.fault
    text = f"{measured.step_s.mean:.3g} s a step"
    if not measured.is_given_up:
        return text
    is_bound = measured.speed is None  # it stopped before steps were timed
    return f"{'at least ' if is_bound else ''}{text}, {measured.why_given_up}"
