"""The number of replicas follows the demand, whoever counts it."""

from types import SimpleNamespace

import pytest

from serve.deploy.scaling import ON, SILENT_S, START_S, Policy


def context(seen: float, told: dict[str, float] | None, **on: dict[str, float]) -> SimpleNamespace:
    """The context that Ray Serve passes to a policy."""
    kinds = {f"{ON}{name}": replicas for name, replicas in on.items()}
    return SimpleNamespace(
        total_num_requests=seen,
        running_replicas=["a"],
        raw_metrics={"requests": {"a": [SimpleNamespace(timestamp=1.0)]}},
        target_num_replicas=100,
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


def test_no_replica_is_stopped_while_the_demand_of_one_is_unknown() -> None:
    now = 0.0
    policy, seen = Policy({}, lambda: now), context(0, {"a": 0, "b": 0})
    seen.running_replicas, seen.target_num_replicas = ["a", "b"], 2

    def wanted(**told: float | None) -> float:
        """With the time of each replica's last statistics, on a clock of its own."""
        series = {name: [SimpleNamespace(timestamp=at)] for name, at in told.items() if at}
        seen.raw_metrics = {"requests": series}
        return policy(seen)[0]

    assert wanted(a=5000.0, b=None) == 2
    assert wanted(a=5000.0, b=10.0) == 0
    now += SILENT_S
    assert wanted(a=5000.0, b=16.0) == 0
    now += 1.0
    assert wanted(a=5000.0, b=17.0) == 2
    seen.total_num_requests = 32
    assert wanted(a=5000.0, b=17.0) == 4
    seen.total_num_requests = 0
    assert wanted(a=5007.0, b=17.0) == 0
    seen.running_replicas = ["b"]
    assert wanted(b=18.0) == 0


def test_the_first_replica_is_not_stopped_while_it_starts() -> None:
    now = 0.0
    policy, starting = Policy({}, lambda: now), context(0, None)
    starting.running_replicas, starting.raw_metrics = [], None
    for target, held in ((0, 0), (1, 1), (3, 1)):
        starting.target_num_replicas = target
        assert policy(starting)[0] == held
    now += START_S
    assert policy(starting)[0] == 0  # it may never find room
    told = {"requests": {"a": [SimpleNamespace(timestamp=1.0)]}}
    starting.running_replicas, starting.raw_metrics = ["a"], told
    assert policy(starting)[0] == 0
    starting.running_replicas = []
    assert policy(starting)[0] == 1


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
