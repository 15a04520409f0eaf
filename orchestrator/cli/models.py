"""`winnow models`: lists, shows, promotes and rolls back published versions."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from jobs.errors import RunError
from jobs.spec.publish import PublishSpec
from jobs.spec.quantities import format_metric, format_metrics
from jobs.storage.storage import open_storage
from orchestrator import hub
from orchestrator.cli import completion
from orchestrator.cli import deploy as deploying
from orchestrator.cli.options import (
    DEFAULT_STORAGE,
    Address,
    AsJson,
    InsecureLocal,
    Settings,
    StorageOption,
    out,
    print_json,
    table,
)
from orchestrator.loading import load_job, serving_of, storage_of
from orchestrator.records import deployments, registry
from serve.version import CHOICE_FILE, ModelVersion

app = typer.Typer(help="Published model versions.", no_args_is_help=True)

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
"""Name of a model, which is that of its job."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What `winnow models show` prints: a version, and the engine chosen to serve it here."""

    version: ModelVersion
    engine: str | None


PRINTS = {
    "models list": tuple[tuple[ModelVersion, datetime], ...],
    "models show": Shown,
    "models promote": deploying.PRINTS["deploy"],
    "models rollback": deploying.PRINTS["deploy"],
    "models push": hub.Uploaded,
}
"""What each command prints with --json."""
JobOrName = Annotated[
    str,
    typer.Argument(
        metavar="JOB|NAME",
        help="The job file, or the name of a model.",
        show_default=False,
        autocompletion=completion.model_names,
    ),
]
Name = Annotated[
    str, typer.Argument(help="Name of the model.", autocompletion=completion.model_names)
]


@app.command("list")
def list_versions(storage: StorageOption = DEFAULT_STORAGE, as_json: AsJson = False) -> None:
    """List every published version with its scores, newest first."""
    found = registry.every(open_storage(storage))
    if as_json:
        print_json(found, PRINTS["models list"])
        return
    if not found:
        out().print(f"no model is published in {storage}; run a job first", markup=False)
        return
    shown = table("model", "version", "published", "scores", left=("model", "version", "scores"))
    for version, date in found:
        scores = format_metrics(version.metrics)
        shown.add_row(version.name, version.id, f"{date:%Y-%m-%d %H:%M}", scores)
    out().print(shown)


@app.command()
def show(
    name: Name,
    version: Annotated[str | None, typer.Option(help="Version id; the newest if left out.")] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show one version: labels, scores, files, and the engine chosen for it here."""
    found = registry.read(open_storage(storage), name, version)
    choice = _choice(found)
    if as_json:
        print_json(Shown(found, choice.get("engine")), PRINTS["models show"])
        return
    console = out()
    console.print(f"{found.name} {found.id}", style="bold")
    console.print(f"folder   {found.path}", markup=False)
    console.print(f"labels   {', '.join(found.labels) or 'none'}", markup=False)
    console.print(
        f"inputs   {'pairs of texts' if found.is_pair else 'texts'} of at most"
        f" {found.max_length} tokens"
    )
    for metric, value in found.metrics.items():
        console.print(f"{metric:8} {format_metric(value)}", markup=False)
    if choice:
        console.print(f"engine   {choice['engine']}", markup=False)
    for tried in choice.get("trials", ()):
        console.print(f"tried    {_trial_text(tried)}", markup=False, soft_wrap=True)


@app.command()
def promote(
    model: JobOrName,
    version: Annotated[str, typer.Argument(help="Version id to deploy.")],
    settings: Settings = None,
    storage: StorageOption = DEFAULT_STORAGE,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Deploy a version on its model's route, through the job's rollout.

    With a name, the settings are those of the model's newest deployment.
    """
    if is_job_file(model):
        spec = load_job(Path(model), settings, reads_rows=False)
    else:
        job = deployments.job_to_promote(open_storage(storage), model, version)
        spec = load_job(job, settings, is_elsewhere=True)
    serving_of(spec, "deploy", model)
    deploying.deploy_job(spec, version, address, insecure_local=insecure_local, as_json=as_json)


@app.command()
def rollback(
    model: JobOrName,
    settings: Settings = None,
    storage: StorageOption = DEFAULT_STORAGE,
    address: Address = None,
    insecure_local: InsecureLocal = False,
    as_json: AsJson = False,
) -> None:
    """Deploy the previously deployed version again, at once.

    With a name, the settings are those that this version was deployed with.
    """
    at_once = [*(settings or []), "serve.rollout=null", "serve.slo=null"]
    if is_job_file(model):
        job = load_job(Path(model), settings, reads_rows=False)
        older = deployments.before(storage_of(job), job.name)
        spec = load_job(Path(model), at_once, reads_rows=False)
    else:
        place = open_storage(storage)
        older = deployments.before(place, model)
        spec = load_job(deployments.job_to_restore(place, model, older), at_once, is_elsewhere=True)
    serving_of(spec, "deploy", model)
    deploying.deploy_job(spec, older, address, insecure_local=insecure_local, as_json=as_json)


@app.command()
def push(
    name: Name,
    version: Annotated[
        str | None, typer.Argument(help="Version id; the newest by default.")
    ] = None,
    repository: Annotated[
        str, typer.Option("--hub", help="Repository on the Hugging Face Hub: NAMESPACE/NAME.")
    ] = "",
    public: Annotated[bool, typer.Option("--public", help="Make the repository public.")] = False,
    licence: Annotated[
        str | None, typer.Option("--license", help="Licence of the weights on the card.")
    ] = None,
    language: Annotated[
        list[str] | None, typer.Option("--language", help="Language of the data, such as en.")
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Upload a version with its model card to the Hugging Face Hub."""
    values = {"hub": repository, "private": not public, "license": licence}
    try:
        wanted = PublishSpec.model_validate({**values, "language": language or []})
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(
            f"--{first['loc'][0]} {first['input']!r} is not valid: {first['msg']}"
        ) from None
    place = open_storage(storage)
    found = registry.read(place, name, version)
    hub.check_access(wanted)
    uploaded = hub.upload(place, name, found.id, wanted)
    if as_json:
        print_json(uploaded, PRINTS["models push"])
    else:
        out().print(f"{name} {found.id} is on the Hub: {uploaded.url}", markup=False)


def is_job_file(model: str) -> bool:
    """Returns whether an argument is the path of a job file, and not the name of a model."""
    return Path(model).is_file() or NAME.fullmatch(model) is None


def _choice(version: ModelVersion) -> dict[str, Any]:
    """Returns the stored choice of an engine on this machine; empty if there is none."""
    path = Path(version.exports) / CHOICE_FILE
    try:
        choice: dict[str, Any] = json.loads(path.read_bytes())["choice"]
        return choice if "engine" in choice else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _trial_text(tried: Mapping[str, Any]) -> str:
    """Returns a line about an engine that was tried: its speed, or why it is refused."""
    refusal = tried.get("refusal")
    return f"{tried['engine']:14} {refusal or format(tried['texts_per_s'], '.0f') + ' texts/s'}"
