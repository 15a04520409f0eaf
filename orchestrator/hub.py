"""Uploads published versions to the Hugging Face Hub, with a whole model card."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from jobs.errors import HubError, first_line, hide_text
from jobs.spec.harness import MARK
from jobs.spec.publish import PART, PublishSpec
from jobs.storage import manifest
from jobs.storage.storage import Storage
from jobs.training import quality
from jobs.training.model import location
from orchestrator.records import inputs, registry, runs
from serve.version import ModelVersion

HUB_ID = re.compile(rf"{PART}(/{PART})?")
"""Id of a base model on the Hub; anything else is a path."""
PUBLIC = "{} is public on the Hub; say publish.private: false, or name another"
MODEL_FILES = (".safetensors", ".bin", ".json", ".jinja", ".txt", ".model")
"""Endings of files that another version may lack, and that would break loading it."""
ROWS, HARNESS = "evaluation rows of the job", "lm-evaluation-harness"
"""What the Hub shows as the data that a metric is of."""
IN_FOLDER = '"this/folder"'
"""How a version's own card writes where the model is."""
SECTIONS = """
## Training

```yaml
{train}```

{data}
"""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A version on the Hub."""

    repository: str
    version: str
    url: str
    """Of the commit."""


def check_access(spec: PublishSpec) -> None:
    """Check that the Hub accepts the token for this repository, before anything is computed.

    Raises:
        HubError: if there is no token, the Hub refuses it or does not answer, it may only read,
            or the repository is public while the job asks for a private one.
    """
    import huggingface_hub.errors

    token = huggingface_hub.get_token()
    if not token:
        raise HubError(
            f"publish.hub {spec.hub} needs a token of the Hugging Face Hub; set HF_TOKEN or log in"
            " with `hf auth login`"
        )
    api = _api()
    with _explained(f"publish.hub {spec.hub} cannot be checked"):
        me = api.whoami()
        role = me.get("auth", {}).get("accessToken", {}).get("role")
        if role == "read":
            raise HubError(f"the token of publish.hub {spec.hub} may only read; it has to write")
        namespace = spec.hub.partition("/")[0]
        names = {me["name"], *(each["name"] for each in me.get("orgs", ()))}
        if namespace not in names:
            raise HubError(
                f"publish.hub {spec.hub}: the token is of {me['name']}, who is no member of"
                f" {namespace}; name one of {', '.join(sorted(names))}"
            )
        try:
            known = api.model_info(spec.hub)
        except huggingface_hub.errors.RepositoryNotFoundError:
            return
        if spec.private and not known.private:
            raise HubError(PUBLIC.format(spec.hub))


def upload(storage: Storage, name: str, identity: str, spec: PublishSpec) -> Uploaded:
    """Upload a published version in one commit; files that are there already are not sent.

    Model files that are there and that this version lacks are deleted in the same commit.

    Raises:
        HubError: if the Hub refuses it or does not answer; the version stays published.
    """
    import huggingface_hub

    version, details = registry.described(storage, name, identity)
    folder = Path(registry.read(storage, name, identity).path)
    api, what = _api(), f"version {identity} of {name} is published, but not on the Hub"
    with _explained(what, f"; winnow models push {name} {identity} --hub {spec.hub} tries again"):
        api.create_repo(spec.hub, private=spec.private, exist_ok=True)
        if spec.private and not api.model_info(spec.hub).private:
            raise HubError(PUBLIC.format(spec.hub))
        files = _public_files(folder)
        card = card_of(files["README.md"].read_text("utf-8"), storage, version, details, spec)
        add = huggingface_hub.CommitOperationAdd
        written = {"README.md": card.encode(), quality.FILE: _thresholds(folder)}
        if location.ADAPTER_CONFIG in files:
            written[location.ADAPTER_CONFIG] = _without_path(files[location.ADAPTER_CONFIG])
        operations: list[Any] = [
            add(where, written.get(where, path)) for where, path in files.items()
        ]
        old = set(api.list_repo_files(spec.hub)) - set(files)
        operations += [
            huggingface_hub.CommitOperationDelete(where)
            for where in sorted(old)
            if where.endswith(MODEL_FILES)
        ]
        made = api.create_commit(spec.hub, operations, commit_message=f"Version {identity}")
    return Uploaded(spec.hub, identity, str(made.commit_url))


def card_of(
    text: str,
    storage: Storage,
    version: ModelVersion,
    details: Mapping[str, Any],
    spec: PublishSpec,
) -> str:
    """Returns a version's own card with what the Hub shows and searches by.

    Licence, language, metrics as results of an evaluation, the training section of the job, and
    the digests of the data are added; the code loads from the repository.
    """
    import huggingface_hub

    job = _job_of(storage, details)
    card = huggingface_hub.ModelCard(text.replace(IN_FOLDER, f'"{spec.hub}"'))
    data = card.data
    data.license, data.tags = spec.license, ["winnow", version.task]
    data.language = list(spec.language) or None
    if not HUB_ID.fullmatch(str(details.get("base", ""))):
        data.base_model = None  # a path of the machine that trained
    if version.metrics:
        data.model_name = version.name
        data.eval_results = [
            huggingface_hub.EvalResult(
                task_type=data.pipeline_tag or version.task,
                dataset_type=metric.partition(MARK)[0] if MARK in metric else version.name,
                dataset_name=HARNESS if MARK in metric else ROWS,
                metric_type=metric,
                metric_value=value,
            )
            for metric, value in version.metrics.items()
        ]
    content = card.text
    if data.base_model is None:
        content = content.replace(f"`{details.get('base')}`", "a base model that is not on the Hub")
    harness = job.get("train", {}).get("eval", {}).get("harness")
    if isinstance(harness, dict):
        harness.pop("include_path", None)  # a path of the machine that trained
    train = yaml.safe_dump(job.get("train", {}), sort_keys=False, allow_unicode=True)
    sections = SECTIONS.format(train=train, data=_digests(storage, details))
    return f"---\n{data.to_yaml()}\n---\n{content.rstrip()}\n{sections}"


def _without_path(file: Path) -> bytes:
    """Returns the settings of an adapter without the path of a base that is not on the Hub."""
    settings = json.loads(file.read_bytes())
    if not HUB_ID.fullmatch(str(settings.get("base_model_name_or_path"))):
        settings["base_model_name_or_path"] = None
    return json.dumps(settings, indent=2).encode()


def _public_files(folder: Path) -> dict[str, Path]:
    """A version's files by name, without those with the job and its paths or with rows."""
    from jobs.training import eval_sample  # imports torch

    private = (manifest.MANIFEST, eval_sample.FILE)
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in private
    }


def _thresholds(folder: Path) -> bytes:
    """Returns a version's quality without its tables, which show rows."""
    found = quality.read(folder)
    return quality.QUALITY.dump_json(replace(found, tables=())) if found else b""


def _job_of(storage: Storage, details: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the job that the sweep chose; the one that was run, if its run is deleted."""
    content = runs.Run(str(details.get("run", "")), storage).kept(runs.WINNER)
    found = yaml.safe_load(content) if content else details.get("job", {})
    return found if isinstance(found, Mapping) else {}


def _digests(storage: Storage, details: Mapping[str, Any]) -> str:
    known = inputs.kept(runs.Run(str(details.get("run", "")), storage))
    rows = [f"| {name} | `{value}` |" for name, value in known.items()]
    return "\n".join(["| input | digest |", "| --- | --- |", *rows]) if rows else ""


def _api() -> Any:
    import huggingface_hub

    huggingface_hub.utils.disable_progress_bars()
    if token := huggingface_hub.get_token():
        hide_text(token)
    # the library reads this variable when it is imported, which may be too early
    return huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextmanager
def _explained(what: str, remedy: str = "") -> Iterator[None]:
    """Turn errors of the Hub and of the network into HubError."""
    import huggingface_hub.errors

    try:
        yield
    except HubError:
        raise
    except huggingface_hub.errors.HfHubHTTPError as error:
        status = error.response.status_code
        said = error.server_message or first_line(error)
        raise HubError(f"{what}: the Hub answered {status} ({said}){remedy}") from None
    except Exception as error:  # noqa: BLE001 - its HTTP library differs from release to release
        reason = error.__cause__ or error  # uploads of large files are wrapped
        raise HubError(f"{what}: {first_line(reason)}{remedy}") from None
