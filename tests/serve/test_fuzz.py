"""Requests made up from the endpoint's own OpenAPI document: never an error of the server's own.

FUZZ_EXAMPLES=2000 asks so many times at each of the operations; benchmarks/LOG.md has such a run.
"""

import os
import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.errors
import pytest
import schemathesis
import schemathesis.checks

from serve import framework, surface
from serve.loading import load
from serve.server import ServerConfig
from serve.version import ModelVersion

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
ALLOWED = {503, 504}
"""Deliberate refusals; nothing else of 500 and above may come."""
GROWTH_MIB = 300

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(60 + EXAMPLES),
]
document: dict[str, Any] = surface.api.openapi()
schema = schemathesis.openapi.from_dict(document)
schema.app = surface.application
statuses: Counter[int] = Counter()


@pytest.fixture(scope="module")
def made(version: ModelVersion) -> Iterator[ModelVersion]:
    """The tiny model behind the whole application; memory stays bounded over all requests."""
    server = load(ServerConfig(version, engine="torch-fp32", timeout_s=10))
    framework.install(server)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield version
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    framework._current.clear()
    server.batcher.close()
    print(f"\n{statuses.total()} requests: {dict(sorted(statuses.items()))}, {grown:.0f} MiB more")  # noqa: T201 - for -s
    assert grown < GROWTH_MIB


@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_answers_are_those_of_the_document(case: schemathesis.Case, made: ModelVersion) -> None:
    """Status, type and body as documented; errors in the one shape."""
    name = str((case.path_parameters or {}).get("name", ""))
    if name and sum(map(ord, name)) % 2:  # else the model would hardly ever be asked
        case.path_parameters = {"name": made.name}
    answer = case.call()
    statuses[answer.status_code] += 1
    assert answer.status_code < 500 or answer.status_code in ALLOWED, answer.text
    assert "Traceback" not in answer.text
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"code", "message", "request_id"}
    # whether pairs are taken depends on the model, which the document does not know
    excluded: list[Any] = [schemathesis.checks.positive_data_acceptance]
    if answer.status_code == 413:  # before anybody looks whether the rest is right
        excluded.append(schemathesis.checks.negative_data_rejection)
    case.validate_response(answer, excluded_checks=excluded)
