"""Whether predictions over HTTP are those of transformers, for every engine, on a file of texts.

    python benchmarks/serve_equal.py NAME TEXTS.csv [--column text] [--storage .winnow] [--out FILE]

Serves the published model NAME with each engine of this machine in turn and asks for all labels of
every text, 32 at once. Compares them with transformers in fp32, each text by itself. Prints how
many labels differ and by how much scores do; the exit code tells whether all keep their bounds.
"""

import argparse
import csv
import json
import platform
import socket
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs.storage.storage import open_storage

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402 - the script runs from a clone, installed or not
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import uvicorn  # noqa: E402

from orchestrator.execution import quiet_libraries  # noqa: E402
from orchestrator.records import registry  # noqa: E402
from serve.batching.batcher import Batcher  # noqa: E402
from serve.config import ReplicaConfig  # noqa: E402
from serve.engines.selection import CPU_ENGINES  # noqa: E402
from serve.http import app  # noqa: E402
from serve.http.fast_path import connections  # noqa: E402
from serve.tasks.text_classification import routes  # noqa: E402
from serve.tasks.text_classification.handler import load  # noqa: E402
from serve.version import ModelVersion  # noqa: E402

BOUNDS = {"fp32": 1e-3, "bf16": 0.05, "int8": 0.3}
"""Largest difference of a probability that is right for an engine's precision."""
AT_ONCE = 32


def main() -> int:
    """Serve, ask, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--column", default="text")
    parser.add_argument("--storage", type=Path, default=Path(".winnow"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    quiet_libraries()
    version = registry.read(open_storage(arguments.storage), arguments.name)
    with arguments.texts.open(newline="", encoding="utf-8") as handle:
        texts = [row[arguments.column] for row in csv.DictReader(handle)]
    expected = reference(version, texts)
    rows = [compare(name, expected, served(version, name, texts)) for name in CPU_ENGINES]
    now = datetime.now(UTC)
    result = {
        "date": now.isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "processor": platform.processor()},
        "texts": len(texts),
        "engines": rows,
    }
    out = arguments.out or ROOT / f"benchmarks/results/serve-equal-{now:%Y%m%d-%H%M%S}.json"
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        print(*row.values(), sep="\t")
    print(f"written to {out}")
    return int(not all(row["holds"] for row in rows))


def reference(version: ModelVersion, texts: Sequence[str]) -> Any:
    """Probabilities of transformers in fp32 as [texts, labels]."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(version.path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    found = []
    with torch.no_grad():
        for text in texts:
            options = {"truncation": True, "max_length": version.max_length, "return_tensors": "pt"}
            found.append(model(**tokenizer(text, **options)).logits.softmax(dim=-1)[0].numpy())
    return np.stack(found)


def served(version: ModelVersion, engine: Any, texts: Sequence[str]) -> Any:
    """The same over HTTP."""
    server = load(ReplicaConfig(version, engine=engine))
    app.install(server)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        as_served = connections(app.current_handler)
        web = uvicorn.Server(
            uvicorn.Config(app.guarded(routes.api), http=as_served, log_level="error")
        )
        thread = threading.Thread(target=web.run, args=([listening],))
        thread.start()
        try:
            while not web.started:
                time.sleep(0.01)
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/predict"
            found = [row for n in range(0, len(texts), AT_ONCE) for row in ask(url, texts, n)]
        finally:
            web.should_exit = True
            thread.join()
            assert isinstance(server.client, Batcher)
            server.client.close()
    by_label = [{scored["label"]: scored["score"] for scored in row} for row in found]
    return np.array([[row[label] for label in version.labels] for row in by_label])


def ask(url: str, texts: Sequence[str], first: int) -> list[Any]:
    """All labels of some texts."""
    body = {"inputs": list(texts[first : first + AT_ONCE]), "top_k": 1000}
    answer = httpx.post(url, json=body, timeout=60)
    answer.raise_for_status()
    return list(answer.json())


def compare(engine: str, expected: Any, found: Any) -> dict[str, Any]:
    """How far an engine's answers are off."""
    off = np.abs(found - expected).max(axis=1)
    differ = int((found.argmax(axis=1) != expected.argmax(axis=1)).sum())
    precision = engine.rpartition("-")[2]
    holds = bool(off.max() <= BOUNDS[precision]) and (precision != "fp32" or differ == 0)
    return {
        "engine": engine,
        "labels_that_differ": differ,
        "largest": float(off.max()),
        "p99": float(np.quantile(off, 0.99)),
        "mean": float(off.mean()),
        "bound": BOUNDS[precision],
        "holds": holds,
    }


if __name__ == "__main__":
    sys.exit(main())
