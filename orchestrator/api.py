"""Winnow from Python: `import orchestrator as winnow`.

Each function takes values and returns one. Those that try, train or deploy connect to a Ray cluster
for as long as they last; the commands call the same functions. Every error is a WinnowError.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from cluster.inventory import Inventory, read_inventory
from jobs.spec import JobSpec
from orchestrator import execution, interruption, notifications, planning
from orchestrator.console import Console
from orchestrator.context import Context
from orchestrator.decisions.plan import Plan
from orchestrator.decisions.sweep import Sweep
from orchestrator.execution import Beginning, Place
from orchestrator.loading import serving_of, storage_of
from orchestrator.notices import Notify
from orchestrator.publishing import deploy_version, publish_stage
from orchestrator.records import registry, runs
from orchestrator.records.outcome import Outcome
from orchestrator.records.receipt import FitResult, Receipt
from serve.deploy.endpoint import Endpoint
from serve.version import ModelVersion

if TYPE_CHECKING:
    from serve.tasks.answers import Prediction


def plan(
    spec: JobSpec, *, inventory: Inventory | Path | str | None = None, address: str | None = None
) -> Plan:
    """Every candidate that a run would try with its memory verdict, and what it would skip and why.

    Args:
        spec: The job.
        inventory: Nodes, or a JSON file of nodes, instead of those of a running cluster.
        address: Ray cluster to look at; None for the one in RAY_ADDRESS, else the local one.

    Raises:
        JobFileError: if data, base model or packages that the job needs are not there.
        InfeasibleError: if no candidate can run on the nodes.
        ClusterError: if no cluster is up and no inventory is given.
    """
    nodes = read_inventory(Path(inventory)) if isinstance(inventory, str | Path) else inventory
    with interruption.handler_kept():  # which Ray replaces
        found, _ = planning.planned(spec, nodes, address)
    return found


def sweep(
    spec: JobSpec,
    plan: Plan | None = None,
    *,
    resume: bool = False,
    accept_changes: bool = False,
    address: str | None = None,
    insecure_local: bool = False,
    notify: Notify | None = None,
) -> Sweep:
    """Probe candidates, try what changes learning, and choose a winner, in a new run.

    Where the job has no sweep, the winner is chosen by price alone and nothing is measured.

    Args:
        spec: The job.
        plan: Tries no more than its candidates; None for all that the cluster can run.
        resume: Goes on with the newest run of this job; what it has measured is read back.
        accept_changes: With `resume`, goes on though data, base model or code changed.
        address: Ray cluster to join; None for the one in RAY_ADDRESS, else the local one, which is
            started if it is not up.
        insecure_local: Whether that cluster may be one of this machine that asks for no token.
        notify: Hears how it goes; None prints that on stderr.

    Raises:
        JobFileError: if data, base model or packages that the job needs are not there.
        InfeasibleError: if no candidate can run, or none keeps the limits.
        ClusterError: if the cluster cannot be joined, or devices stay busy.
        RunError: if another process runs this job, or there is no run to go on with.
    """
    beginning = Beginning(resume=resume, accept_changes=accept_changes)
    with _begun(spec, beginning, Place(address, insecure_local), notify) as context:
        from orchestrator import pipeline  # Ray reads its environment when it is imported

        return pipeline.sweep_only(context, plan)


def train(
    spec: JobSpec,
    swept: Sweep | None = None,
    *,
    resume: bool = False,
    accept_changes: bool = False,
    address: str | None = None,
    insecure_local: bool = False,
    notify: Notify | None = None,
) -> FitResult:
    """Train a winner in full with Ray Train, and write receipt and report; nothing is published.

    Trained once, it is not trained again: the result is read back. After an interruption it goes on
    from its newest checkpoint.

    Args:
        spec: The job, the same that was swept.
        swept: Trains its winner, in its run. None trains the job as its train section says, without
            a sweep, in a new run.
        resume: Without `swept`, goes on with the newest such run.
        accept_changes: Goes on though data, base model or code changed since the run began.
        address: As for `sweep`.
        insecure_local: As for `sweep`.
        notify: As for `sweep`.

    Raises:
        JobFileError, InfeasibleError, ClusterError, RunError: as `sweep` does.
        TrainingError: if training cannot go on, such as with a loss that is not finite.
        PublishError: if the saved model does not score as it did in training.
    """
    job = spec if swept else execution.training_alone(spec)
    run_id = swept.run if swept else None
    beginning = Beginning(resume=resume, run=run_id, accept_changes=accept_changes)
    with _begun(job, beginning, Place(address, insecure_local), notify) as context:
        from orchestrator import pipeline

        return pipeline.train_only(context, swept)


def receipt(spec: JobSpec, fit: FitResult) -> Receipt:
    """Predicted and actual time, cost and quality of a training that `train` returned.

    Times are in seconds, costs in US dollars. Raises RunError when the run is not in the job's
    storage.
    """
    return runs.find(storage_of(spec), fit.run).value("receipt", Receipt)


def publish(spec: JobSpec, fit: FitResult, *, notify: Notify | None = None) -> ModelVersion:
    """Put a trained model into the registry, with its card and a manifest; needs no cluster.

    Publishing the same training again returns the same version.

    Args:
        spec: The job, the same that was trained.
        fit: What `train` returned.
        notify: As for `sweep`.

    Raises:
        RunError: if the run is not in the job's storage, or another process runs the job.
        CheckpointError: if the checkpoint is missing or was altered.
        StorageError: if there is no room.
    """
    beginning = Beginning(run=fit.run, reads_inputs=False)
    with _telling(notify) as tell, execution.owned(spec, beginning, tell) as run:
        model = publish_stage(run, spec, fit, tell)
        run.note("completed")
        return model


def deploy(
    spec: JobSpec,
    version: ModelVersion | str | None = None,
    *,
    address: str | None = None,
    insecure_local: bool = False,
    notify: Notify | None = None,
) -> Endpoint:
    """Put a published version behind the job's endpoint, and wait until it answers.

    Limits of the sweep are not looked at: `run` deploys no model that breaks them.

    Args:
        spec: The job, with a serve section.
        version: A version or its id; None for the newest.
        address: As for `sweep`.
        insecure_local: As for `sweep`.
        notify: As for `sweep`.

    Raises:
        JobFileError: if the job has no serve section.
        RunError: if the version is not published in the job's storage.
        InfeasibleError: if the cluster lacks the devices.
        DeployError: if it does not become healthy, or the gate of its rollout stops it.
    """
    serving, storage = serving_of(spec, "deploy"), storage_of(spec)
    chosen = version.id if isinstance(version, ModelVersion) else version
    model = registry.read(storage, spec.name, chosen)
    place = Place(address, insecure_local)
    with (
        _telling(notify) as tell,
        notifications.of_rollout(spec, tell),
        execution.connected(place, tell) as cluster,
    ):
        return deploy_version(storage, serving, model, cluster.serve_port, tell)


@overload
def predict(
    endpoint: Endpoint | str,
    inputs: list[Any],
    *,
    token: str | None = None,
    timeout_s: float = 30.0,
    **options: Any,
) -> "list[Prediction]": ...


@overload
def predict(
    endpoint: Endpoint | str,
    inputs: str | tuple[str, str] | Mapping[str, Any],
    *,
    token: str | None = None,
    timeout_s: float = 30.0,
    **options: Any,
) -> "Prediction": ...


def predict(
    endpoint: Endpoint | str,
    inputs: str | tuple[str, str] | Mapping[str, Any] | list[Any],
    *,
    token: str | None = None,
    timeout_s: float = 30.0,
    **options: Any,
) -> "Prediction | list[Prediction]":
    """The prediction for one input, or a list of them for a list of inputs, in its order.

    A classifier takes texts, or pairs as tuples of two, and gives a Label with its score from 0 to
    1; with `top_k` a tuple of so many labels, best first. A language model takes texts, or
    `{"messages": […]}` with all turns, and gives an Answer.

    Args:
        endpoint: Where to ask, as a value or the URL of its route.
        inputs: One input, or a list of n; a long list is sent in several requests.
        token: Bearer token, where the endpoint asks for one.
        timeout_s: Longest time for each request, in seconds.
        options: Further fields of each request, such as `top_k`, `max_tokens` or `temperature`.

    Raises:
        DeployError: if nothing answers there in time, or something that is no endpoint of Winnow.
        RequestError: if the endpoint refuses a request.
    """
    from serve.tools import client

    url = endpoint if isinstance(endpoint, str) else endpoint.url
    items = inputs if isinstance(inputs, list) else [inputs]
    found = client.predict(url, items, options, token=token, timeout_s=timeout_s)
    return found if isinstance(inputs, list) else found[0]


def run(
    spec: JobSpec,
    *,
    resume: bool = False,
    or_new: bool = False,
    accept_changes: bool = False,
    address: str | None = None,
    insecure_local: bool = False,
    notify: Notify | None = None,
) -> Outcome:
    """Plan, sweep, train, publish and deploy in one run, as far as the job asks for it.

    A model that breaks a limit of the sweep is published and not deployed.

    Args:
        spec: The job.
        resume: Goes on with the newest run of this job; finished stages are read back.
        or_new: With `resume`, begins a run where there is none to go on with.
        accept_changes: As for `sweep`.
        address: As for `sweep`.
        insecure_local: As for `sweep`.
        notify: As for `sweep`.

    Raises:
        WinnowError: as the functions of each stage do.
    """
    beginning = Beginning(resume=resume, or_new=or_new, accept_changes=accept_changes)
    with _begun(spec, beginning, Place(address, insecure_local), notify) as context:
        from orchestrator import pipeline

        return pipeline.run(context)


@contextlib.contextmanager
def _begun(
    spec: JobSpec, beginning: Beginning, place: Place, notify: Notify | None
) -> Iterator[Context]:
    """Begins or goes on with a run of the job on a cluster, and shows how it goes."""
    with _telling(notify) as tell, execution.started(spec, beginning, place, tell) as context:
        yield context


def _telling(notify: Notify | None) -> contextlib.AbstractContextManager[Notify]:
    """Who hears how it goes: the one that is given, else bars and lines on stderr."""
    return contextlib.nullcontext(notify) if notify else Console()
