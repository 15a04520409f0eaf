"""Published versions are uploaded to a stand-in for the Hub, once, and without rows or paths."""

import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
import yaml

from jobs.errors import HubError
from jobs.spec.publish import PublishSpec
from jobs.storage.storage import Storage, open_storage
from orchestrator import hub as uploading
from orchestrator.records import registry, runs
from tests.builders import job
from tests.commands import call as winnow
from tests.hub import TOKEN, Hub, Repository, served

OLD = Path(__file__).parent / "storage-0.1.0.tar.xz"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # the library's
WANTED = PublishSpec(hub="team/reviews", license="apache-2.0", language=("en",))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The stand-in, and a token for it."""
    with served() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        # not by the environment, which it reads once a process
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        yield found


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """That of a release that published a model."""
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    return open_storage(tmp_path / "winnow-storage-0.1.0" / "storage")


def test_a_version_is_uploaded_in_one_commit_and_only_once(hub: Hub, storage: Storage) -> None:
    version = registry.read(storage, "reviews")
    uploading.check_access(WANTED)
    made = uploading.upload(storage, "reviews", version.id, WANTED)
    known = hub.repositories["team/reviews"]
    assert (made.repository, made.version) == ("team/reviews", version.id)
    assert known.commits == [f"Version {version.id}"]
    assert known.private
    assert set(known.files) >= {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
    assert "gate.jsonl" not in known.files
    assert "manifest.json" not in known.files
    weights = Path(version.path) / "model.safetensors"
    assert known.files["model.safetensors"] == weights.read_bytes()
    uploading.upload(storage, "reviews", version.id, WANTED)
    assert len(known.commits) == 1


def test_the_card_says_what_the_hub_searches_by(hub: Hub, storage: Storage) -> None:
    version = registry.read(storage, "reviews")
    uploading.upload(storage, "reviews", version.id, WANTED)
    text = hub.repositories["team/reviews"].files["README.md"].decode()
    card = huggingface_hub.ModelCard(text)
    assert (card.data.license, card.data.language) == ("apache-2.0", ["en"])
    assert "winnow" in card.data.tags
    assert {each.metric_type: each.metric_value for each in card.data.eval_results} == dict(
        version.metrics
    )
    assert '"team/reviews"' in text
    assert "this/folder" not in text
    (train,) = (part for part in text.split("```yaml\n")[1:])
    assert "epochs" in yaml.safe_load(train.split("```")[0])
    assert str(storage.folder) not in text


def test_files_of_an_earlier_version_go(hub: Hub, storage: Storage) -> None:
    files = {"adapter_config.json": b"{}", ".gitattributes": b"*.bin filter=lfs"}
    hub.repositories["team/reviews"] = Repository(private=True, files=files)
    uploading.upload(storage, "reviews", registry.read(storage, "reviews").id, WANTED)
    left = hub.repositories["team/reviews"].files
    assert "adapter_config.json" not in left
    assert ".gitattributes" in left


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"auth": {"accessToken": {"role": "read"}}}, "may only read"),
        ({"orgs": [], "name": "bob"}, "is no member of team; name one of bob"),
    ],
)
def test_a_token_without_the_right_is_refused_before_the_sweep(
    hub: Hub, change: dict[str, object], message: str
) -> None:
    hub.user.update(change)
    with pytest.raises(HubError, match=message):
        uploading.check_access(WANTED)


def test_a_refused_token_is_named_nowhere(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, storage: Storage
) -> None:
    wrong = "hf_" + "b" * 34
    monkeypatch.setenv("HF_TOKEN", wrong)
    with pytest.raises(HubError, match="the Hub answered 401") as refused:
        uploading.check_access(WANTED)
    assert wrong not in str(refused.value)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(HubError, match="needs a token of the Hugging Face Hub; set HF_TOKEN"):
        uploading.check_access(WANTED)


def test_a_public_repository_takes_no_private_model(hub: Hub) -> None:
    hub.repositories["team/reviews"] = Repository(private=False)
    with pytest.raises(HubError, match="team/reviews is public on the Hub"):
        uploading.check_access(WANTED)
    uploading.check_access(WANTED.model_copy(update={"private": False}))


def test_a_hub_that_fails_or_is_away_loses_nothing(
    hub: Hub, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = registry.read(storage, "reviews")
    hub.fails_commits = True
    again = f"winnow models push reviews {version.id} --hub team/reviews tries again"
    with pytest.raises(HubError, match=rf"the Hub answered 503 \(Try again later\); {again}"):
        uploading.upload(storage, "reviews", version.id, WANTED)
    with monkeypatch.context() as away:
        away.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(HubError, match=f"refused; {again}"):
            uploading.upload(storage, "reviews", version.id, WANTED)
    assert registry.read(storage, "reviews") == version
    hub.fails_commits = False
    uploading.upload(storage, "reviews", version.id, WANTED)
    assert hub.repositories["team/reviews"].commits == [f"Version {version.id}"]


def test_an_upload_checks_again_and_shows_no_path(hub: Hub, storage: Storage) -> None:
    version = registry.read(storage, "reviews")
    hub.repositories["team/reviews"] = Repository(private=False, files={"LICENSE": b"MIT"})
    with pytest.raises(HubError, match="team/reviews is public on the Hub"):
        uploading.upload(storage, "reviews", version.id, WANTED)
    public = WANTED.model_copy(update={"private": False})
    uploading.upload(storage, "reviews", version.id, public)
    assert "LICENSE" in hub.repositories["team/reviews"].files
    settings = storage.folder / "adapter_config.json"
    for base, kept in (("/home/ann/base", None), ("org/base", "org/base")):
        settings.write_text(json.dumps({"base_model_name_or_path": base}), encoding="utf-8")
        shown = json.loads(uploading._without_path(settings))
        assert shown["base_model_name_or_path"] == kept


def test_a_version_is_pushed_from_the_command_line(hub: Hub, storage: Storage) -> None:
    words = ("models", "push", "reviews", "--storage", str(storage.folder))
    done = winnow(storage.folder, *words, "--hub", "ann/reviews", "--public", "--json")
    assert json.loads(done.stdout)["repository"] == "ann/reviews"
    assert not hub.repositories["ann/reviews"].private
    wrong = winnow(storage.folder, *words, "--hub", "reviews")
    assert (wrong.returncode, "--hub 'reviews' is not valid" in wrong.stderr) == (1, True)


def test_a_job_is_the_same_wherever_its_model_is_uploaded(tmp_path: Path) -> None:
    run = runs.create(open_storage(tmp_path), job(), datetime.now(UTC))
    assert runs.is_of(run, job(publish={"hub": "team/reviews"}, priority=5, owner="team"))
    assert not runs.is_of(run, job(seed=2))
