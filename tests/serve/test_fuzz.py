"""Requests made up from the endpoint's own OpenAPI document: never an error of the server's own.

FUZZ_EXAMPLES=2000 asks so many times in the slow one; benchmarks/README.md has such a run.
"""

import os
import resource
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import hypothesis.errors
import pytest
import schemathesis
import schemathesis.checks

from serve.config import ReplicaConfig
from serve.http import app
from serve.http.fast_path import connections
from serve.tasks.text_classification import routes
from serve.tasks.text_classification.handler import load
from serve.version import ModelVersion
from tests.serve.live import on_socket

FEW, MANY = 40, int(os.environ.get("FUZZ_EXAMPLES", "250"))
"""Requests at each of the operations."""
ALLOWED = {503, 504}
"""Deliberate errors; no other status from 500 on may occur."""
GROWTH_MIB = 300

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(60 + 2 * MANY),
]
document: dict[str, Any] = routes.api.openapi()
schema = schemathesis.openapi.from_dict(document)
statuses: Counter[int] = Counter()


@dataclass(frozen=True, slots=True)
class Made:
    """The sent request."""

    url: str
    model: str


@pytest.fixture(scope="module", params=["connection", "door"])
def made(version: ModelVersion, request: pytest.FixtureRequest) -> Iterator[Made]:
    """The tiny model behind the whole application; memory stays bounded over all requests."""
    statuses.clear()
    http = connections(app.current_handler) if request.param == "connection" else "auto"
    server = load(ReplicaConfig(version, engine="torch-fp32", timeout_s=10))
    app.install(server)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with on_socket(app.guarded(routes.api), http) as url:
        yield Made(url, version.name)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    app._current.clear()
    server.client.close()
    print(f"\n{statuses.total()} requests: {dict(sorted(statuses.items()))}, {grown:.0f} MiB more")  # noqa: T201 - for -s
    assert grown < GROWTH_MIB


def examples(count: int) -> hypothesis.settings:
    """Settings with this many examples, without a database of earlier ones."""
    return hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@schema.parametrize()
@examples(FEW)
def test_answers_are_those_of_the_document(case: schemathesis.Case[Any], made: Made) -> None:
    check(case, made)


@pytest.mark.slow
@schema.parametrize()
@examples(MANY)
def test_many_answers_are_those_of_the_document(case: schemathesis.Case[Any], made: Made) -> None:
    """Catches faults that only rare requests show, and memory that grows with their number."""
    check(case, made)


def check(case: schemathesis.Case[Any], made: Made) -> None:
    """Status, type and body are as documented; errors have the common body."""
    name = str((case.path_parameters or {}).get("name", ""))
    if name and sum(map(ord, name)) % 2:  # else the model would hardly ever be asked
        case.path_parameters = {"name": made.model}
    answer = case.call(base_url=made.url)
    statuses[answer.status_code] += 1
    assert answer.status_code < 500 or answer.status_code in ALLOWED, answer.text
    assert "Traceback" not in answer.text
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"code", "message", "type", "param", "request_id"}
    # whether pairs are taken depends on the model, which the document does not know
    excluded: list[Any] = [schemathesis.checks.positive_data_acceptance]
    if answer.status_code == 413:  # before anybody looks whether the rest is right
        excluded.append(schemathesis.checks.negative_data_rejection)
    case.validate_response(answer, excluded_checks=excluded)
