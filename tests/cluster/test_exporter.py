"""What exporters publish of devices, and exporters that do not answer."""

import pytest

from cluster import exporter
from cluster.exporter import GpuUse, NodeUse, Series
from tests.builders import free_port
from tests.serve.live import on_socket

TEXT = """# HELP ray_node_cpu_utilization Total CPU usage on a ray node
# TYPE ray_node_cpu_utilization gauge
ray_node_cpu_utilization{ip="10.0.0.1",SessionName="s"} 12.5
ray_node_mem_used{ip="10.0.0.1"} 2147483648.0
ray_node_mem_total{ip="10.0.0.1"} 8589934592.0
ray_node_gpus_utilization{GpuIndex="1",GpuDeviceName="L40S"} 80.0
ray_node_gram_used{GpuIndex="1"} 1024.0
ray_node_gram_available{GpuIndex="1"} 3072.0
ray_node_gpus_utilization{GpuIndex="0"} 0.0
ray_tasks{State="RUNNING"} 3.0
"""


def test_devices_are_read_from_a_node_s_series() -> None:
    series = exporter.parse(TEXT, frozenset(exporter.OF_NODES))
    assert "ray_tasks" not in {each.name for each in series}
    gpus = (GpuUse(0, 0.0, None, None), GpuUse(1, 80.0, 1.0, 4.0))
    assert exporter.use_of(series) == NodeUse(12.5, 2.0, 8.0, gpus)
    assert exporter.use_of(()) == NodeUse()


def test_labels_keep_what_programs_write_into_them() -> None:
    (found,) = exporter.parse('a{text="x}\\"\\n 1 "} 2\n', frozenset({"a"}))
    assert found == Series("a", {"text": 'x}"\n 1 '}, 2.0)
    with pytest.raises(ValueError, match="one"):
        exporter.parse("a one\n", frozenset({"a"}))


async def published(scope: object, _: object, send: object) -> None:
    """An exporter."""
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": TEXT.encode()})  # type: ignore[operator]


def test_an_exporter_that_does_not_answer_hides_no_other() -> None:
    with on_socket(published) as url:
        addresses = [f"127.0.0.1:{free_port()}", url.removeprefix("http://"), "[bad"]
        found = exporter.scrape(addresses, ["ray_tasks"])
    assert found == [None, (Series("ray_tasks", {"State": "RUNNING"}, 3.0),), None]
