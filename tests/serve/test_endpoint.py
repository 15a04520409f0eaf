"""An endpoint on a real cluster: bad versions are stopped, replicas come and go."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import torch
import transformers
import uvicorn

from cluster import labels
from cluster.session import Connection
from jobs.errors import DeployError
from jobs.spec import task_registry
from jobs.spec.model import ModelSpec
from jobs.spec.serve import ServeSpec
from jobs.storage import manifest
from jobs.storage.storage import open_storage
from jobs.training import eval_sample, plain_scores
from jobs.training.events import CheckpointRef
from orchestrator.records import registry
from serve.frontends.ipc import bound
from serve.http import app
from serve.tasks.text_classification import routes
from serve.tools import load_generator
from serve.tools.load_generator import LoadResult, Plan, run
from serve.version import ModelVersion
from tests.builders import eventually, free_port, job, ray_processes

pytestmark = pytest.mark.ray

Deploy = Callable[..., str]
"""Deploys a version with fields of the serve section, and returns the endpoint's URL."""


@pytest.fixture
def deploy(
    ray_cluster: Connection, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> Deploy:
    """Deploys to a route of its own."""
    from cluster import discovery
    from serve.deploy import deployment

    monkeypatch.setattr(deployment, "DRAIN_S", 2.0)
    known: dict[str, ModelVersion] = {}

    def act(
        wanted: ModelVersion, log: Callable[[str], None] = lambda _: None, **fields: Any
    ) -> str:
        known[wanted.id] = wanted
        return deployment.deploy(
            wanted,
            ServeSpec.model_validate({"route": "/tested", "engine": "torch-fp32", **fields}),
            discovery.discover(),
            port=ray_cluster.serve_port,
            find_version=lambda _, identity: known[identity],
            log=log,
        ).url

    return act


def variant(
    version: ModelVersion,
    folder: Path,
    change: Callable[[Any], Any] = lambda model: model,
    **metrics: float,
) -> ModelVersion:
    """Publishes another version: a changed copy of the model, with other metrics."""
    place = folder / "checkpoint"
    model = place / manifest.MODEL_DIR
    ours = shutil.ignore_patterns(manifest.MANIFEST, "README.md", "model.safetensors")
    shutil.copytree(version.path, model, ignore=ours)
    task = task_registry.find(version.task)
    loaded = getattr(transformers, task.auto_class).from_pretrained(version.path)
    change(loaded).save_pretrained(model)
    # what this model scored, as if training had made it
    scored = plain_scores.scores_of(model, "cpu", task.auto_class, task.activation)["together"]
    kept = zip(eval_sample.read(model), scored, strict=True)
    eval_sample.write([replace(row, scores=scores) for row, scores in kept], model)
    reference = CheckpointRef(str(place), 1, {**version.metrics, **metrics})
    manifest.write(place, asdict(reference))
    spec = job(name=version.name, data__max_length=version.max_length)
    spec = spec.model_copy(update={"model": ModelSpec(base=version.path, task=version.task)})
    return registry.publish(
        spec, reference, version.labels, run_id="variant", storage=open_storage(folder)
    )


def mistaking(version: ModelVersion) -> Callable[[Any], Any]:
    """Exchanges a word with its opposite, which changes the label of a tenth of the rows."""
    rows = eval_sample.read(Path(version.path))
    of_label = [Counter(id for r in rows if r.label == label for id in r.ids) for label in (0, 1)]
    only = [(count, id) for id, count in of_label[0].items() if id not in of_label[1]]
    count, word = min(only, key=lambda found: abs(found[0] - len(rows) / 10))
    assert 0.08 <= count / len(rows) <= 0.16
    opposite = next(id for id in of_label[1] if id not in of_label[0])

    def change(model: Any) -> Any:
        weight = model.get_input_embeddings().weight
        with torch.no_grad():
            weight[word] = weight[opposite]
        return model

    return change


def slower(model: Any) -> Any:
    """Adds hundreds of normalisation layers without effect, which take 50 ms or more."""
    config = model.config
    first = config.num_hidden_layers
    config.num_hidden_layers = first + 400
    deep = transformers.AutoModelForSequenceClassification.from_config(config)
    deep.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for layer in deep.bert.encoder.layer[first:]:
            for part in (layer.attention.output, layer.output):
                part.dense.weight.zero_()
                part.dense.bias.zero_()
    return deep


def touched(model: Any) -> Any:
    """Another version that gives the same labels."""
    with torch.no_grad():
        model.classifier.bias += 1e-4
    return model


def nudged(model: Any) -> Any:
    """Changes the hash of a language model but not its answers."""
    with torch.no_grad():
        model.lm_head.weight += 1e-6
    return model


@contextlib.contextmanager
def asked(url: str, clients: int) -> Iterator[list[LoadResult]]:
    """Clients that send requests without a pause until the end; one result for each second."""
    results, ending = list[LoadResult](), threading.Event()

    def go() -> None:
        while not ending.is_set():
            plan = Plan(url, seconds=1, concurrency=clients, timeout_s=60)
            results.append(asyncio.run(run(plan, ["a superb film", "a dull film indeed"])))

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield results
    finally:
        ending.set()
        thread.join()


def fronts() -> set[int]:
    """Frontend workers of the cluster's replicas."""
    found = set()
    for replica in ray_processes("ray::ServeReplica:"):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            children = replica.children()
            found |= {p.pid for p in children if "serve.frontends.worker" in p.cmdline()}
    return found


def ray_nodes() -> list[dict[str, Any]]:
    """Replicas as Ray lists them."""
    import ray

    return ray.nodes()  # type: ignore[no-any-return]


def processes(version: ModelVersion) -> set[int]:
    """Process ids of the endpoint's replicas."""
    return {p.pid for p in ray_processes(f"ray::ServeReplica:{version.name}--{version.id}")}


def replicas(version: ModelVersion) -> dict[str, int]:
    """Number of replicas in each state."""
    import ray.serve

    application = ray.serve.status().applications[f"{version.name}--{version.id}"]
    (found,) = application.deployments.values()
    return {str(state): count for state, count in found.replica_states.items() if count}


def test_a_model_has_one_route_and_no_other_model_s(
    deploy: Deploy, ray_cluster: Connection, version: ModelVersion
) -> None:
    """A model that moves logs its old route, and leaves a model with a similar name alone."""
    from serve.deploy import endpoints

    told: list[str] = []
    other = replace(version, name=f"{version.name}--b")
    beside = deploy(other, route="/tested-b")
    before = deploy(version, route="/tested")
    with pytest.raises(DeployError, match=f"/tested is the route of {version.name}; choose"):
        deploy(other, route="/tested")
    url = deploy(version, told.append, route="/moved")
    assert told == [f"/tested no longer answers: {version.name} has moved to /moved"]
    for asked, status in ((url, 200), (beside, 200), (before, 404)):
        assert httpx.get(f"{asked}/health").status_code == status, asked
    assert "/_v/" not in httpx.get(f"{before}/health").text
    assert httpx.get(beside, follow_redirects=False).headers["location"] == f"{beside}/"
    owners = endpoints.models_by_route(ray_cluster.serve_port)
    assert owners == {"/moved": version.name, "/tested-b": other.name}
    endpoints.log_moved_routes(
        version.name, ServeSpec(route="/tested"), ray_cluster.serve_port, told.append
    )
    assert told[1] == f"/moved will no longer answer once {version.name} is deployed to /tested"
    listed = json.loads(command("endpoints", "--json").stdout)
    own = [each for each in listed if each["name"] in (version.name, other.name)]
    assert [(each["name"], each["route"], each["version"]) for each in own] == [
        (version.name, "/moved", version.id),
        (other.name, "/tested-b", other.id),
    ]
    assert command("undeploy", other.name).returncode == 0
    assert endpoints.models_by_route(ray_cluster.serve_port) == {"/moved": version.name}
    again = command("undeploy", other.name)
    assert (again.returncode, f"{other.name} has no endpoint on" in again.stderr) == (1, True)
    assert version.name in again.stderr.strip().partition("those there are: ")[2].split(", ")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, for the shared cluster."""
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_worse_version_and_a_slow_one_are_stopped_while_the_old_one_answers(
    deploy: Deploy, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a gate that fails with real versions, real traffic and HAProxy's own counts."""
    from serve.deploy import release

    monkeypatch.setattr(release, "ROUND_S", 2.0)
    rollout = {"steps": [50, 100], "hold": "2s"}
    worse = variant(version, tmp_path / "worse", mistaking(version))
    slow = variant(version, tmp_path / "slow", slower)
    fine = variant(version, tmp_path / "fine", touched)
    with pytest.raises(DeployError, match=r"is not deployed: its p95 latency is .* over the slo"):
        deploy(slow, slo={"p95_latency": "20ms"})
    url = deploy(version, slo={"p95_latency": "2s", "error_rate": "<1%"})
    with asked(url, 2) as results:
        with pytest.raises(DeployError, match=r"its accuracy changes by -0\.1"):
            deploy(worse, rollout=rollout)
        with pytest.raises(DeployError, match="its p95 latency is"):
            deploy(slow, rollout={**rollout, "gate": ["latency<=1.5"]})
        stopped = len(results)
        assert httpx.get(f"{url}/health").json()["version"] == version.id
        deploy(fine, rollout={**rollout, "gate": ["accuracy>=-0.01"]})
    assert all(result.error_rate == 0 for result in results)
    assert {name for result in results[:stopped] for name in result.versions} == {version.id}
    assert set(results[-1].versions) <= {version.id, fine.id}
    assert httpx.get(f"{url}/health").json()["version"] == fine.id
    deploy(fine, limits={"requests_per_second": 8})
    check_rate(url)


def check_rate(url: str) -> None:
    """Only a client over the rate limit is refused."""
    with httpx.Client() as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.get(f"{url}/health"), range(40)))
        other = client.get(f"{url}/health", headers={"Authorization": "Bearer of-somebody-else"})
    codes = Counter(answer.status_code for answer in answers)
    assert codes[200] >= 5  # the deployment itself asked in this second too
    assert codes[429] == 40 - codes[200] > 0
    assert other.status_code == 200
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.json()["error"]["code"], refused.headers["retry-after"]) == (
        "rate_limited",
        "1",
    )


@pytest.mark.timeout(1200)
def test_replicas_follow_the_demand_down_to_none_and_no_request_is_lost(
    deploy: Deploy, version: ModelVersion
) -> None:
    """Earns its time: 1, 4, 1, then 0 and 1, on a node with four simulated devices.

    Requests wait in a batch for 3 s, so that they are demand without work: the cores are for the
    replicas' starts. The delay is longer than the clients pause between their runs.
    """
    target = {"target_ongoing_requests": 1000, "targets": {"T4": 2}}
    scaling = {**target, "upscale_delay": "1s", "downscale_delay": "12s"}
    slow = {"max_wait": "3s"}
    fields: dict[str, Any] = {"accelerators": "T4:1", "autoscaling": scaling, "batching": slow}
    url = deploy(version, **fields, replicas={"min": 0, "max": 4})
    with asked(url, 1) as first:
        assert eventually(lambda: replicas(version) == {"RUNNING": 1}, within_s=240)
    with asked(url, 16) as many:
        grown = eventually(lambda: replicas(version).get("RUNNING") == 4, within_s=400)
        assert grown, replicas(version)
    with asked(url, 1) as few:
        assert eventually(lambda: replicas(version) == {"RUNNING": 1}, within_s=240)
    assert eventually(lambda: replicas(version) == {}, within_s=240)
    woken = httpx.post(f"{url}/predict", json={"inputs": "a superb film"}, timeout=240)
    assert (woken.status_code, woken.json()["label"]) == (200, "positive")
    assert replicas(version) == {"RUNNING": 1}
    assert all(result.error_rate == 0 for result in [*first, *many, *few])


def test_replicas_go_to_the_next_accelerator_when_one_is_full(
    deploy: Deploy, version: ModelVersion
) -> None:
    """Nodes with one A100 and two L40S, simulated."""
    from ray.util import state

    fields: dict[str, Any] = {"accelerators": "A100-80GB:1", "fallback": ["L40S:1", "T4:1"]}
    url = deploy(version, **fields, replicas={"min": 2, "max": 2})
    assert eventually(lambda: replicas(version) == {"RUNNING": 2}, within_s=240)
    named = {node["NodeID"]: node["Labels"].get(labels.SKU) for node in ray_nodes()}
    name = f"ServeReplica:{version.name}--{version.id}:Replica"
    found = state.list_actors(filters=[("class_name", "=", name), ("state", "=", "ALIVE")])
    assert sorted(named[actor.node_id] for actor in found) == ["A100-80GB", "L40S"]
    assert (
        httpx.post(f"{url}/predict", json={"inputs": "a superb film"}, timeout=60).status_code
        == 200
    )


def test_limits_batching_and_replicas_change_without_a_restart(
    deploy: Deploy, version: ModelVersion
) -> None:
    fields: dict[str, Any] = {"accelerators": "T4:1", "fronts": 1}
    url = deploy(version, **fields)
    before = processes(version), fronts()
    assert len(before[0]) == len(before[1]) == 1
    assert {psutil.Process(pid).nice() for pid in before[0] | before[1]} == {0}  # work has 15
    texts = ["a superb film"] * 3
    with asked(url, 2) as results:
        deploy(version, **fields, batching={"max_batch_size": 1})
        answer = httpx.post(f"{url}/predict", json={"inputs": texts}, timeout=60)
        assert answer.headers["x-batch-size"] == "1"
        deploy(version, **fields, replicas={"min": 2, "max": 2})
        assert eventually(lambda: replicas(version) == {"RUNNING": 2}, within_s=240)
        assert processes(version) > before[0]
        deploy(version, **fields)
        assert eventually(lambda: replicas(version) == {"RUNNING": 1}, within_s=240)
        count = len(results)
        assert eventually(lambda: len(results) > count + 1)  # a second begun and ended with one
    assert results
    assert all(result.error_rate == 0 for result in results)
    kept = processes(version), fronts()
    deploy(version, **fields, limits={"timeout": "1ms"}, batching={"max_wait": "500ms"})
    late = httpx.post(f"{url}/predict", json={"inputs": texts}, timeout=60)
    assert late.status_code == 504
    deploy(version, **fields)
    assert httpx.post(f"{url}/predict", json={"inputs": texts}, timeout=60).status_code == 200
    assert (processes(version), fronts()) == kept


def test_a_deployment_asks_its_endpoint_past_the_proxy_of_the_environment(
    deploy: Deploy, ray_cluster: Connection, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits for health, compares versions and reads routes without HTTP_PROXY."""
    from serve.deploy import deployment, endpoints, release

    url = deploy(version)
    routes = endpoints._proxy_routes(ray_cluster.serve_port)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")  # nobody answers there
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    assert deploy(version) == url
    deployed = deployment._deployed(version, "/tested", url.removesuffix("/tested"))
    quality, texts = release._compare(deployed, deployed, {})
    assert texts
    assert quality is not None
    assert quality.metrics["agreement"].value == 1
    assert endpoints._proxy_routes(ray_cluster.serve_port) == routes


@pytest.mark.usefixtures("ray_cluster")  # Ray reads its environment when it is imported
def test_replicas_take_the_hot_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from serve.deploy import ray_serve_patches
    from serve.http import fast_path

    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "h11")
    ray_serve_patches.install()
    made = uvicorn.Config(app.guarded(routes.api))  # as Ray Serve makes it
    made.load()
    assert made.http_protocol_class.__module__ == fast_path.__name__


@pytest.mark.usefixtures("ray_cluster")  # Ray reads its environment when it is imported
def test_a_second_try_at_a_port_begins_fronts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls the patches again, as Ray Serve does if a port is in use."""
    import ray.serve.config
    from ray.serve._private import replica

    from serve.deploy import ray_serve_patches

    begun, opened = list[int](), list[tuple[str, int, str]]()

    async def start(app: Any, options: Any, **_: Any) -> str:
        begun.append(options.port)
        return "server"

    class Recording:
        async def open(self, *where: Any) -> None:
            opened.append(where)

    monkeypatch.setattr(ray_serve_patches, "_start", start)
    monkeypatch.setattr(replica, "start_asgi_http_server", start)
    ray_serve_patches._share_port(Recording())
    with bound("127.0.0.1", 0, is_shared=True) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        options = ray.serve.config.HTTPOptions(host="127.0.0.1", port=port)
        with pytest.raises(RuntimeError, match="is in use"):
            asyncio.run(replica.start_asgi_http_server(None, options))
    ray_serve_patches._share_port(Recording())
    assert asyncio.run(replica.start_asgi_http_server(None, options)) == "server"
    assert opened == [("127.0.0.1", port, f"http://127.0.0.1:{begun[0]}")]
    assert len(begun) == 1
    assert begun[0] != port


@pytest.mark.slow
def test_processes_in_front_of_a_replica_come_and_go_with_it_and_a_lost_one_is_replaced(
    deploy: Deploy, version: ModelVersion, tmp_path: Path
) -> None:
    """Catches fronts behind HAProxy that outlive their replica, or that no other replaces."""
    # two replicas with two fronts each take six cores, which the node with four T4 pretends to have
    fields: dict[str, Any] = {"accelerators": "T4:1", "fronts": 2}
    url = deploy(version, **fields)
    first = fronts()
    assert len(first) == 2
    body = {"inputs": "a superb film"}
    answers = [httpx.post(f"{url}/predict", json=body) for _ in range(8)]
    assert {answer.json()["label"] for answer in answers} == {"positive"}
    others = [httpx.get(f"{url}/nowhere") for _ in range(4)]
    # a request's id begins with its process: fronts answer the one, the replica the other
    by_fronts, by_replica = (
        {r.headers["x-request-id"][:8] for r in rs} for rs in (answers, others)
    )
    assert not by_fronts & by_replica
    newer = variant(version, tmp_path / "newer", touched)
    with asked(url, 8) as results:
        assert eventually(lambda: len(results) > 1)
        victim = min(first)
        os.kill(victim, signal.SIGKILL)
        assert eventually(lambda: len(fronts() - {victim}) == 2)
        count = len(results)
        assert eventually(lambda: len(results) > count + 1)
        second = fronts()
        deploy(newer, **fields)
        assert eventually(lambda: len(fronts()) == 2 and not fronts() & second, within_s=60)
        assert eventually(lambda: not any(map(psutil.pid_exists, second)), within_s=20)
    assert all(result.requests and result.error_rate == 0 for result in results)
    assert set(results[-1].versions) == {newer.id}


class GrpcCaller:
    """Requests labels over gRPC, as NVIDIA's client does."""

    def __init__(self, name: str, port: int) -> None:
        import tritonclient.grpc

        self._name = name
        self._client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}")
        self._tensor = tritonclient.grpc.InferInput("text", [1], "BYTES")
        self._tensor.set_data_from_numpy(np.array([b"a superb film"], dtype=np.object_))

    def ask(self, **metadata: str) -> tuple[str, str]:
        """Returns the label, and the id of the version that gave it."""
        found = self._client.infer(
            self._name,
            [self._tensor],
            headers={"application": self._name, **metadata},
            client_timeout=30,
        )
        return found.as_numpy("label")[0].decode(), found.get_response().model_version

    @contextlib.contextmanager
    def asking(self) -> Iterator[list[tuple[str, str] | Exception]]:
        """Sends requests without a pause and returns the answers."""
        answers, ending = list[tuple[str, str] | Exception](), threading.Event()

        def go() -> None:
            while not ending.is_set():
                try:
                    answers.append(self.ask())
                except Exception as error:  # noqa: BLE001 - is asserted not to be there
                    answers.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        try:
            yield answers
        finally:
            ending.set()
            thread.join()


def test_grpc_is_refused_where_ray_serve_runs_without_it(
    deploy: Deploy, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve.deploy import deployment

    monkeypatch.setattr(deployment, "GRPC_ABOVE", deployment.GRPC_ABOVE + 1)  # nothing is there
    monkeypatch.setattr(deployment, "GRPC_TIMEOUT_S", 1)
    with pytest.raises(DeployError, match="Ray Serve was started without it"):
        deploy(version, grpc=True)


def test_grpc_follows_the_route_and_loses_nothing(
    ray_cluster: Connection, deploy: Deploy, version: ModelVersion, tmp_path: Path
) -> None:
    """A gRPC request carries the model's name only, and HAProxy finds its route."""
    from serve.deploy import deployment

    deploy(version, grpc=True)
    caller = GrpcCaller(version.name, deployment.grpc_port(ray_cluster.serve_port))
    newer = variant(version, tmp_path / "newer", touched)
    with caller.asking() as answers:
        assert eventually(lambda: len(answers) > 5)
        deploy(newer, grpc=True)
        count = len(answers)
        assert eventually(lambda: len(answers) > count + 5)
    assert set(answers) == {("positive", version.id), ("positive", newer.id)}
    assert set(answers[count + 1 :]) == {("positive", newer.id)}
    deploy(newer, grpc=True, limits={"requests_per_second": 5})
    with (
        ThreadPoolExecutor(8) as threads,
        pytest.raises(Exception, match="asks more often"),  # its client's own
    ):
        list(threads.map(lambda _: caller.ask(), range(40)))
    assert caller.ask(authorization="Bearer of-somebody-else") == ("positive", newer.id)
    open_to_all = [
        (psutil.Process(found.pid).name(), found.laddr.port)
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.ip in ("0.0.0.0", "::") and found.pid
    ]
    assert not [place for place in open_to_all if place[0].startswith(("ray::", "haproxy"))]


def test_a_language_model_answers_as_it_writes(deploy: Deploy, published: ModelVersion) -> None:
    """A stream arrives in pieces through HAProxy and Ray Serve."""
    url = deploy(published, engine="auto", route="/chat")
    asked = {"messages": [{"role": "user", "content": "Is a superb film good?"}], "temperature": 0}
    path = f"{url}/v1/chat/completions"
    whole = httpx.post(path, json=asked, timeout=60).json()["choices"][0]["message"]["content"]
    with httpx.stream("POST", path, json={**asked, "stream": True}, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    deltas = [piece["choices"][0]["delta"].get("content") or "" for piece in pieces]
    assert "".join(deltas) == whole
    assert len(deltas) > 3
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == published.name


def test_a_language_model_takes_over_step_by_step_or_does_not(
    deploy: Deploy, published: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve.deploy import release

    monkeypatch.setattr(release, "ROUND_S", 2.0)
    monkeypatch.setattr(
        load_generator, "sentences", lambda: ["Is a superb film good?", "Is it dull?"]
    )
    score = published.metrics["perplexity"]
    fine = variant(published, tmp_path / "fine", nudged, perplexity=1.01 * score)
    worse = variant(
        published, tmp_path / "worse", lambda model: nudged(nudged(model)), perplexity=2 * score
    )
    fields: dict[str, Any] = {"engine": "auto", "route": "/chat"}
    rollout = {"steps": [50, 100], "hold": "2s", "gate": ["perplexity<=1.05"]}
    url = deploy(published, **fields)
    with pytest.raises(DeployError, match=r"its perplexity is .*, 2 times the old one's"):
        deploy(worse, **fields, rollout=rollout)
    assert httpx.get(f"{url}/health").json()["version"] == published.id
    with asked(url, 1) as results:
        deploy(fine, **fields, rollout=rollout)
    assert all(result.requests and result.error_rate == 0 for result in results)
    assert {name for result in results for name in result.versions} == {published.id, fine.id}
    assert httpx.get(f"{url}/health").json()["version"] == fine.id
