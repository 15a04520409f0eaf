"""From a trained model to a published version, and from a version to its endpoint."""

import functools
import threading

from jobs.spec import JobSpec
from jobs.spec.serve import ServeSpec
from jobs.storage.storage import Storage
from orchestrator import hub
from orchestrator.context import Context
from orchestrator.notices import Notify, Remark, StageFinished, StageStarted
from orchestrator.records import deployments, registry
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from serve.deploy.endpoint import Endpoint
from serve.version import ModelVersion


def publish_stage(run: Run, spec: JobSpec, fit: FitResult, notify: Notify) -> ModelVersion:
    """Put the trained model of a run into the registry."""
    notify(StageStarted("publish", "copying and checking the model"))
    model = run.stage(
        "model",
        ModelVersion,
        lambda: registry.publish(
            spec, fit.checkpoint, fit.labels, run_id=run.id, storage=run.storage
        ),
    )
    notify(StageFinished("publish", f"version {model.id} of {model.name}"))
    return model


class ServeAhead:
    """Starts Ray Serve in a thread, while something else is done that the endpoint waits for."""

    def __init__(self, context: Context) -> None:
        self._spec, self._port = context.spec.serve, context.serve_port
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> "ServeAhead":
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread:  # a thread that waits on Ray crashes this process at shutdown
            self._thread.join()

    def begin(self) -> None:
        """Start it, if the job has an endpoint, and return at once."""
        if self._spec and self._thread is None:
            self._thread = threading.Thread(target=self._start, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until it has started, if it was begun; raises DeployError if it cannot."""
        if self._thread:
            self._thread.join()
        if self._error:
            raise self._error

    def _start(self) -> None:
        from serve.deploy import deployment

        assert self._spec is not None
        try:
            deployment.start(self._spec, self._port)
        except Exception as error:  # noqa: BLE001 - the caller's thread raises it
            self._error = error


def deploy_stage(context: Context, model: ModelVersion, ahead: ServeAhead) -> Endpoint:
    """Bring up the endpoint; always done, because an endpoint may have gone since."""
    assert context.spec.serve is not None
    ahead.finish()
    endpoint = deploy_version(
        context.storage, context.spec.serve, model, context.serve_port, context.notify
    )
    context.run.write("endpoint", endpoint)
    return endpoint


def upload_stage(context: Context, model: ModelVersion) -> None:
    """Upload a version to the Hub if the job asks for it, once.

    Raises HubError if the Hub does not take it; the version stays published and served.
    """
    wanted = context.spec.publish
    if wanted is None:
        return
    done = context.run.read("upload", hub.Uploaded)
    if done is None or (done.repository, done.version) != (wanted.hub, model.id):
        context.notify(StageStarted("upload", f"sending version {model.id} to {wanted.hub}"))
        done = hub.upload(context.storage, model.name, model.id, wanted)
        context.run.write("upload", done)
    context.notify(StageFinished("upload", done.url))


def deploy_version(
    storage: Storage, serving: ServeSpec, model: ModelVersion, port: int, notify: Notify
) -> Endpoint:
    """Put a version behind its endpoint on the cluster that this process is connected to.

    The cluster is looked at now: nodes may have come or gone since the run was planned.

    Raises InfeasibleError when the cluster lacks the devices, DeployError when the version stays
    unhealthy or a gate of its rollout stops it.
    """
    from cluster import discovery  # imports Ray, which reads its environment then
    from serve.deploy import deployment

    notify(StageStarted("deploy", "starting replicas"))
    endpoint = deployment.deploy(
        model,
        serving,
        discovery.discover(),
        port=port,
        find_version=functools.partial(registry.read, storage),
        log=lambda text: notify(Remark(text)),
    )
    deployments.keep(storage, model.name, model.id, serving)
    registry.note_deployed(storage, model)
    notify(StageFinished("deploy", f"{endpoint.url} answers with {model.id}"))
    return endpoint
