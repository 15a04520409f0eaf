"""From a trained model to a published version, and from a version to its endpoint."""

import functools
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from jobs.spec import JobSpec
from jobs.spec.serve import ServeSpec
from jobs.storage import manifest
from jobs.storage.storage import Storage
from jobs.training.events import Event, Interrupted, Metered, Saved, Started
from orchestrator import hub
from orchestrator.context import Context
from orchestrator.notices import Notify, Remark, StageFinished, StageStarted
from orchestrator.records import deployments, registry
from orchestrator.records.receipt import FitResult
from orchestrator.records.runs import Run
from serve.deploy.endpoint import Endpoint
from serve.version import ModelVersion


def publish_stage(
    run: Run,
    spec: JobSpec,
    fit: FitResult,
    notify: Notify,
    copy_of: Callable[[Path], Path | None] = lambda _: None,
) -> ModelVersion:
    """Put the trained model of a run into the registry.

    `copy_of` returns the copy of a checkpoint's model that was made before, if there is one.
    """
    notify(StageStarted("publish", "copying and checking the model"))
    model = run.stage(
        "model",
        ModelVersion,
        lambda: registry.publish(
            spec,
            fit.checkpoint,
            fit.labels,
            run_id=run.id,
            storage=run.storage,
            copied=copy_of(Path(fit.checkpoint.path)),
        ),
    )
    notify(StageFinished("publish", f"version {model.id} of {model.name}"))
    return model


class Ahead:
    """Does in threads, while a saved model is proven, what publishing and deploying wait for.

    It starts Ray Serve after the last step, and copies the last checkpoint's model once it is
    saved.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._has_left, self._has_trained = context, False, False
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._serve: Future[None] | None = None
        self._copy: tuple[Path, Future[Path]] | None = None

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()  # a thread that waits on Ray crashes this process at its end
        self._discard()

    def take(self, event: Event) -> None:
        """Begin what an event of the fit allows, and return at once."""
        if isinstance(event, Started):  # maybe after an attempt that ended early
            self._has_left = self._has_trained = False
        elif isinstance(event, Interrupted):
            self._has_left = True
        elif isinstance(event, Metered) and not self._has_left:
            self._has_trained = True
            if self._context.spec.serve and self._serve is None:
                self._serve = self._pool.submit(self._start)
        elif isinstance(event, Saved) and self._has_trained:
            self._begin_copy(Path(event.path))

    def finish_serve(self) -> None:
        """Wait for Ray Serve, if `take` has begun its start; raises DeployError if that fails."""
        if self._serve:
            self._serve.result()

    def copy_of(self, checkpoint: Path) -> Path | None:
        """Returns the copy of a checkpoint's model; None if there is none, or it failed."""
        if self._copy is None or self._copy[0] != checkpoint:
            return None
        copying, self._copy = self._copy[1], None
        return None if copying.exception() else copying.result()

    def _start(self) -> None:
        from serve.deploy import deployment

        assert self._context.spec.serve is not None
        deployment.start(self._context.spec.serve, self._context.serve_port)

    def _begin_copy(self, checkpoint: Path) -> None:
        """Copy a model in place of one that was copied before, if this machine has its files."""
        if not (checkpoint / manifest.MANIFEST).is_file():
            return
        self._discard()
        context = self._context
        self._copy = (
            checkpoint,
            self._pool.submit(
                registry.copy, context.spec.name, checkpoint, context.run.id, context.storage
            ),
        )

    def _discard(self) -> None:
        if self._copy and (folder := self.copy_of(self._copy[0])):
            shutil.rmtree(folder, ignore_errors=True)


def deploy_stage(context: Context, model: ModelVersion, ahead: Ahead) -> Endpoint:
    """Bring up the endpoint; always done, because an endpoint may have gone since."""
    assert context.spec.serve is not None
    ahead.finish_serve()
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
