"""Write Grafana's dashboards: `python infra/monitoring/make_dashboards.py`.

A panel is a title, a unit and expressions; all other fields of Grafana's format are equal in all.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
WIDTH, HEIGHT, COLUMNS = 12, 8, 24

Expressions = dict[str, str]
"""PromQL expressions by the legend of their series."""
Panel = tuple[str, str, Expressions]
"""Title, unit as Grafana names it, expressions."""


def rate(name: str, by: str) -> str:
    """Returns the expression of a replica counter's rate per second, summed by labels."""
    return f"sum by ({by}) (rate(ray_winnow_serve_{name}[1m]))"


def quantile(percent: int, name: str = "request") -> str:
    """Returns the expression of a percentile of a time, in seconds."""
    return f"histogram_quantile(0.{percent}, {rate(f'{name}_seconds_bucket', 'model, le')})"


SERVING: list[Panel] = [
    ("Requests", "reqps", {"{{model}} {{status}}": rate("requests_total", "model, status")}),
    ("Failed requests", "percentunit", {"{{model}}": "winnow:errors:ratio_rate5m"}),
    ("Time to answer", "s", {f"{{{{model}}}} p{q}": quantile(q) for q in (50, 95, 99)}),
    ("Work that waits", "s", {"{{model}} {{replica}}": "ray_winnow_serve_backlog_seconds"}),
    ("Texts", "short", {"{{model}} {{version}}": rate("texts_total", "model, version")}),
    (
        "Rows of a batch",
        "short",
        {"{{model}}": f"{rate('batch_rows_total', 'model')} / {rate('batches_total', 'model')}"},
    ),
    (
        "Engine at work",
        "percentunit",
        {"{{model}} {{replica}}": rate("engine_seconds_total", "model, replica")},
    ),
    (
        "Replicas",
        "short",
        {"{{model}} {{version}}": "count by (model, version) (ray_winnow_serve_batches_total)"},
    ),
    ("Requests by token", "reqps", {"{{token}}": rate("token_requests_total", "token")}),
]
TRAINING: list[Panel] = [
    ("Loss", "none", {"{{run}}": "ray_winnow_fit_loss"}),
    ("Speed", "none", {"{{run}} samples/s": "ray_winnow_fit_samples_per_second"}),
    ("Steps", "percentunit", {"{{run}}": "ray_winnow_fit_step / ray_winnow_fit_steps"}),
    (
        "Time, against what was predicted",
        "s",
        {
            "{{run}} looks like": "ray_winnow_fit_projected_seconds",
            "{{run}} predicted": "ray_winnow_fit_predicted_seconds",
        },
    ),
    ("Price", "currencyUSD", {"{{run}} an hour": "ray_winnow_fit_usd_per_hour"}),
    ("GPU use", "percent", {"{{ip}} {{GpuIndex}}": "ray_node_gpus_utilization"}),
    ("GPU memory", "decmbytes", {"{{ip}} {{GpuIndex}}": "ray_node_gram_used"}),
]
SWEEP: list[Panel] = [
    (
        "Probes and trials",
        "short",
        {
            "{{run}} {{stage}} done": "ray_winnow_stage_done",
            "{{run}} {{stage}} of": "ray_winnow_stage_total",
        },
    ),
    ("CPU use", "percent", {"{{ip}}": "ray_node_cpu_utilization"}),
    ("Memory", "bytes", {"{{ip}}": "ray_node_mem_used"}),
    ("Free disk", "bytes", {"{{ip}}": "ray_node_disk_free"}),
]
LANGUAGE_MODELS: list[Panel] = [
    ("Tokens", "short", {"{{model}} written per s": rate("answer_tokens_total", "model")}),
    ("Use of the cache", "percentunit", {"{{model}} {{replica}}": "ray_winnow_serve_cache_use"}),
    *(
        (title, "s", {f"{{{{model}}}} p{q}": quantile(q, name) for q in (50, 95, 99)})
        for title, name in (
            ("Time to first token", "time_to_first_token"),
            ("Time per output token", "time_per_output_token"),
        )
    ),
]
DASHBOARDS = {
    "serving": SERVING,
    "language-models": LANGUAGE_MODELS,
    "training": TRAINING,
    "sweep": SWEEP,
}


def dashboard(name: str, panels: list[Panel]) -> dict[str, Any]:
    """Returns the JSON that Grafana imports, with two panels in a row."""
    return {
        "uid": f"winnow-{name}",
        "title": f"Winnow: {name}",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus", "hide": 0}]
        },
        "panels": [panel(number, *each) for number, each in enumerate(panels)],
    }


def panel(number: int, title: str, unit: str, expressions: Expressions) -> dict[str, Any]:
    """Returns one panel with a line for each series."""
    x, y = number * WIDTH % COLUMNS, number * WIDTH // COLUMNS * HEIGHT
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(expressions.items())
        ],
    }


def main() -> None:
    """Write one file for each dashboard."""
    FOLDER.mkdir(exist_ok=True)
    for name, panels in DASHBOARDS.items():
        text = json.dumps(dashboard(name, panels), indent=2) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
