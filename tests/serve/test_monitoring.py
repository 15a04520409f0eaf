"""Alerts and dashboards are valid, work on planted series, and use existing metrics."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import promql_parser
import pytest
import yaml

from cluster.session import Connection
from infra.monitoring import make_dashboards
from jobs.spec.serve import ServeSpec
from jobs.training.events import Started, Stepped
from orchestrator.decisions.measurement import Interval, Prediction
from orchestrator.decisions.observed import Cluster
from orchestrator.watch import FitWatch
from serve.config import ReplicaConfig
from serve.tasks.causal_lm.handler import ChatHandler
from serve.version import ModelVersion
from tests.builders import eventually

FOLDER = Path("infra/monitoring")
NAMES = re.compile(r"\bray_\w+|\bwinnow:[\w:]+")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt install prometheus"
)


def promtool(*words: str, folder: Path = FOLDER) -> str:
    """Returns the output of promtool; empty if it has no finding."""
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of a dashboard or a rule, with where it is."""
    for path in sorted((FOLDER / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]


@needs_promtool
def test_rules_and_scrape_configuration_are_valid_and_alerts_fire_when_they_should() -> None:
    assert promtool("check", "rules", "rules.yml") == ""
    assert promtool("check", "config", "prometheus.yml") == ""
    assert promtool("test", "rules", "rules_test.yml") == ""


@needs_promtool
@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("for: 2m", "for: two minutes", ["check", "rules", "rules.yml"]),
        ("rate(ray_winnow", "rate(ray winnow", ["check", "rules", "rules.yml"]),
        ("> 14.4 * 0.001", "> 14.4 * 1", ["test", "rules", "rules_test.yml"]),
        (" - 1) > 0.1", " - 1) > 0.01", ["test", "rules", "rules_test.yml"]),
        ("_fit_step <", "_fit_step <=", ["test", "rules", "rules_test.yml"]),
    ],
)
def test_planted_mistakes_in_rules_are_found(
    right: str, wrong: str, words: list[str], tmp_path: Path
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "monitoring")
    text = (folder / "rules.yml").read_text(encoding="utf-8")
    assert right in text
    (folder / "rules.yml").write_text(text.replace(right, wrong), encoding="utf-8")
    assert promtool(*words, folder=folder) != ""


def test_every_expression_is_promql() -> None:
    found = list(expressions())
    assert len(found) > 25
    for _, expression in found:
        promql_parser.parse(expression)
    with pytest.raises(ValueError, match="unexpected character"):
        promql_parser.parse("rate(ray_winnow_serve_requests_total[1m)")


def test_dashboards_are_what_their_script_writes(tmp_path: Path) -> None:
    for name, panels in make_dashboards.DASHBOARDS.items():
        made = json.loads((FOLDER / f"dashboards/{name}.json").read_text(encoding="utf-8"))
        assert made == make_dashboards.dashboard(name, panels)
        assert len({panel["id"] for panel in made["panels"]}) == len(panels)


def fit(tell: Callable[[Mapping[str, float]], None]) -> None:
    """Two steps of a run with a predicted time."""
    expected = Prediction("one", 2, Interval(9.0, 10.0, 11.0), None)
    now = iter(range(100))
    watch = FitWatch(lambda _: None, 2.5, expected, lambda: float(next(now)), tell)
    watch.show(Started(2, 0, 64, 8, ("a", "b")))
    for step in (1, 2):
        watch.show(Stepped(step, 0.5, 32, 512, 640, 0.1, 0.1 * step))


@pytest.fixture(scope="module")
def asked(ray_cluster: Connection, version: ModelVersion) -> Iterator[None]:
    """An endpoint with a token that has answered."""
    from cluster import discovery
    from serve.deploy import deployment, endpoints

    spec = {
        "route": "/watched",
        "engine": "torch-fp32",
        "auth": {"tokens_from": "MONITORED_TOKENS"},
    }
    serving = ServeSpec.model_validate(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONITORED_TOKENS", "secret")
        endpoint = deployment.deploy(
            version,
            serving,
            discovery.discover(),
            port=ray_cluster.serve_port,
            find_version=lambda *_: version,
        )
    headers = {"authorization": "Bearer secret"}
    url, body = f"{endpoint.url}/predict", {"inputs": "a film"}
    answer = httpx.post(url, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200
    yield
    endpoints.remove(version.name)


@pytest.mark.ray
@pytest.mark.usefixtures("asked")
def test_every_metric_that_is_asked_for_is_scraped(published: ModelVersion) -> None:
    """Names of metrics at the ports of Ray's nodes; names of GPU metrics from Ray's source.

    Those of the dashboard of language models come from the handler of one.
    """
    from ray.dashboard.modules.reporter import reporter_agent

    from cluster import telemetry

    teller, labels = telemetry.GaugePublisher(), {"job": "j", "run": "r"}

    def tell(values: Mapping[str, float]) -> None:
        teller.publish(telemetry.Sample(f"winnow_fit_{n}", v, labels) for n, v in values.items())

    fit(tell)
    counts = {"winnow_stage_done": 1.0, "winnow_stage_total": 2.0}
    teller.publish(telemetry.Sample(n, v, {**labels, "stage": "probe"}) for n, v in counts.items())
    recorded = {place for place, _ in expressions()}
    wanted = {name for _, text in expressions() for name in NAMES.findall(text)} - recorded
    source = Path(reporter_agent.__file__).read_text("utf-8")
    of_gpus = {n for n in wanted if n.startswith(("ray_node_gpus", "ray_node_gram"))}
    assert all(f'"{name.removeprefix("ray_")}"' in source for name in of_gpus)
    of_writers = {
        name
        for place, text in expressions()
        if place.startswith("language-models")
        for name in NAMES.findall(text)
    }
    writer = ChatHandler(ReplicaConfig(published))
    assert of_writers <= {f"ray_{name}" for name, *_ in writer.metrics.samples(writer.load)}
    writer.generator.close()
    missing: set[str] = set()

    def all_there() -> bool:
        nonlocal missing
        missing = wanted - of_gpus - of_writers - scraped()
        return not missing

    assert eventually(all_there, within_s=240), missing


@pytest.mark.ray
@pytest.mark.usefixtures("asked")
def test_the_dashboard_sees_requests_times_and_devices(
    ray_cluster: Connection, version: ModelVersion, tmp_path: Path
) -> None:
    """Through the process that observes the cluster for all browsers."""
    from orchestrator.ui.operations import Place
    from orchestrator.ui.watching import Watch

    watch, headers = Watch(Place("", tmp_path)), {"authorization": "Bearer secret"}
    url = f"http://127.0.0.1:{ray_cluster.serve_port}/watched/predict"

    seen = list[Cluster]()

    def has_figures() -> bool:
        httpx.post(url, json={"inputs": "a film"}, headers=headers, timeout=60)
        seen.extend(filter(None, [watch.look().found]))
        are_timed = seen and any(each.p95_ms for each in seen[-1].endpoints)
        return bool(are_timed and any(each.use for each in seen[-1].nodes))

    try:
        assert eventually(has_figures, within_s=240), watch.look()
    finally:
        watch.close()
    (served,) = [each for each in seen[-1].endpoints if each.served.version == version.id]
    assert served.served.route == "/watched"
    assert served.requests_per_s
    assert served.error_share == 0.0
    assert served.p50_ms
    assert served.p50_ms <= (served.p95_ms or 0) < 10_000
    nodes = {each.devices: each for each in seen[-1].nodes}
    assert {name.partition(" x ")[2] for name in nodes} == {"A100-80GB", "L40S", "T4", "cpu"}
    assert nodes["4 x T4"].is_simulated
    assert (nodes["4 x T4"].kind, nodes["4 x T4"].total) == ("GPU", 4.0)
    head = next(each for name, each in nodes.items() if name.endswith("cpu"))
    assert head.use
    assert head.use.cpu_percent is not None
    assert 0 < (head.use.memory_gib or 0) < (head.use.of_gib or 0)
    assert head.taken >= 1  # by the endpoint


def scraped() -> set[str]:
    """Names of the series of all nodes."""
    import ray

    found = set()
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        try:
            text = httpx.get(address, timeout=10).text
        except httpx.ReadTimeout:
            continue  # which is asked again
        found |= {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line[:1] != "#"}
    return found
