"""The number of replicas follows the demand, whoever counts it."""

from types import SimpleNamespace

import pytest

from serve.deploy.scaling import ON, Policy


def context(seen: float, told: dict[str, float] | None, **on: dict[str, float]) -> SimpleNamespace:
    """The context that Ray Serve passes to a policy."""
    kinds = {f"{ON}{name}": replicas for name, replicas in on.items()}
    return SimpleNamespace(
        total_num_requests=seen,
        aggregated_metrics=None if told is None else {"requests": told, **kinds},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 8.0),
    )


@pytest.mark.parametrize(
    ("seen", "told", "replicas"),
    [
        (0, None, 0),
        (0, {}, 0),
        (1, None, 0.125),
        (0, {"a": 8, "b": 16}, 3),
        (32, {"a": 8}, 4),
    ],
)
def test_demand_over_target(seen: float, told: dict[str, float] | None, replicas: float) -> None:
    assert Policy({})(context(seen, told))[0] == replicas


@pytest.mark.parametrize(
    ("on", "replicas"),
    [
        ({}, 3),
        ({"L40S": {"a": 1}}, 3),
        ({"T4": {"a": 1}}, 6),
        ({"T4": {"a": 1}, "L40S": {"b": 1}}, 4),
        ({"T4": {"a": 1, "b": 1}, "H100": {"c": 1}}, 3),
    ],
)
def test_each_accelerator_may_have_a_target_of_its_own(
    on: dict[str, dict[str, float]], replicas: float
) -> None:
    targets = {"T4": 4.0, "H100": 16.0}
    assert Policy(targets)(context(0, {"a": 12, "b": 12}, **on))[0] == replicas


def test_a_replica_that_does_not_start_says_why_in_our_words() -> None:
    from serve.deploy import readiness

    words = "Error: ray::ServeReplica\n  File x\njobs.errors.DeployError: tiny is not served\nmore"
    replica = SimpleNamespace(message=words)
    found = SimpleNamespace(message="Failed to update", deployments={"Replica": replica})
    assert readiness.failure_reason(found) == "tiny is not served"
    replica.message = "the node is gone"
    assert readiness.failure_reason(found) == "Failed to update"


def test_a_port_that_another_process_holds_is_named() -> None:
    from serve.deploy import readiness

    text = """ray::HAProxyManager.ready() (pid=1)
  File "haproxy.py", line 2107, in _reload_haproxy
RuntimeError: HAProxy crashed during startup: [NOTICE]   (2) : haproxy version is 2.8.25
[ALERT]    (2) : Binding [/tmp/haproxy.cfg:50] for frontend http_frontend: \
cannot bind socket (Address already in use) for [127.0.0.1:8000]
[ALERT]    (2) : [haproxy.main()] Some protocols failed to start their listeners! Exiting.
"""
    assert readiness.proxy_failure(text).startswith("another process listens on 127.0.0.1:8000, ")
    other = "Error\nRuntimeError: HAProxy (pid=3) did not take over the admin socket\n"
    assert readiness.proxy_failure(other) == (
        "Ray Serve's HTTP proxy did not start: RuntimeError: HAProxy (pid=3) did not take over the"
        " admin socket"
    )
