"""Tokens are stored as hashes, change without a restart, and a broken file admits nobody."""

import logging
import stat
from pathlib import Path

import pydantic
import pytest
import typer.testing

from jobs.errors import DeployError
from jobs.spec.serve import ServeSpec
from orchestrator.cli import app
from serve.http import auth
from serve.http.auth import Authenticator, add_token, digest, read_tokens, revoke_token


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas check their tokens file at every request."""
    monkeypatch.setattr(auth, "RECHECK_S", -1.0)


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_a_file_holds_hashes_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = add_token(path, "alice")
    assert len(token) >= 40
    assert token not in path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_tokens(path) == {digest(token): "alice"}


@pytest.mark.usefixtures("soon")
def test_tokens_change_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    first = add_token(path, "alice")
    known = Authenticator(file=str(path))
    assert known.owner_of(bearer(first)) == "alice"
    second = add_token(path, "bob")
    assert known.owner_of(bearer(second)) == "bob"
    revoke_token(path, "alice")
    assert known.owner_of(bearer(first)) is None
    assert known.owner_of(bearer(second)) == "bob"
    revoke_token(path, "bob")
    assert known.owner_of(bearer(second)) is None
    assert known.owner_of("") is None  # a file without tokens admits nobody


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("content", [None, b"alice\n", b"\xff\xfe"])
def test_a_file_that_is_gone_or_wrong_changes_nothing_and_is_told_of_once(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    token = add_token(path, "alice")
    known = Authenticator(file=str(path))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert known.owner_of(bearer(token)) == "alice"
            assert known.owner_of(bearer("other")) is None
    assert [record.message.count("stay accepted") for record in caplog.records] == [1]
    with pytest.raises(DeployError, match="tokens file"):
        Authenticator(file=str(path))


def test_a_token_in_the_place_of_a_hash_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("alice my-secret-token\n", encoding="utf-8")
    with pytest.raises(DeployError, match="line 1 of the tokens file") as caught:
        read_tokens(path)
    assert "my-secret-token" not in str(caught.value)


def test_tokens_of_both_kinds_are_accepted_and_none_means_open(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = add_token(path, "alice")
    both = Authenticator((digest("fixed"),), str(path))
    assert both.owner_of(bearer("fixed")) == f"#{digest('fixed')[:8]}"
    assert both.owner_of(bearer(token)) == "alice"
    assert both.owner_of(token) is None
    assert Authenticator().owner_of("") == ""


def test_an_auth_section_that_lets_nobody_in_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="nobody could ask otherwise"):
        ServeSpec.model_validate({"route": "/a", "auth": {}})
    with pytest.raises(pydantic.ValidationError, match="tokens_file"):
        ServeSpec.model_validate({"route": "/a", "auth": {"tokens_file": "here"}})


def test_the_command_makes_lists_and_revokes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    def winnow(*words: str) -> str:
        done = typer.testing.CliRunner().invoke(app, ["token", *words, "--file", str(path)])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.stdout.strip()

    token = winnow("add", "alice")
    assert Authenticator(file=str(path)).owner_of(bearer(token)) == "alice"
    assert winnow("list") == f"alice  {digest(token)[:8]}"
    with pytest.raises(DeployError, match="has a token named alice"):
        winnow("add", "alice")
    with pytest.raises(DeployError, match="is not a valid token name"):
        winnow("add", "a b")
    assert "refuses the token of alice from now on" in winnow("revoke", "alice")
    with pytest.raises(DeployError, match="no token named alice"):
        winnow("revoke", "alice")
