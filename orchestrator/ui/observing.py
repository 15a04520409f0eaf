"""The process that observes a cluster for the dashboard: prints a line of JSON every few seconds.

    python -P -m orchestrator.ui.observing [--address ADDRESS]

It is a process of its own, because a process can join one cluster. It ends with its input.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
import traceback
from typing import TextIO

import pydantic_core

from cluster import session
from jobs.errors import WinnowError
from jobs.storage import files
from orchestrator.decisions.observed import Observation

EVERY_S = 5.0
"""How often the cluster is observed; replicas publish their figures at the same interval."""


def main() -> int:
    """Observes until the input ends; the last line says why it ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address")
    address = parser.parse_args().address
    threading.Thread(target=_end_with_input, daemon=True).start()
    out, joined = sys.stdout, session.connect(address=address, start=False)
    try:
        with contextlib.redirect_stdout(sys.stderr), joined as cluster:
            _observe(cluster.serve_port, out)
    except WinnowError as error:
        _print(out, Observation(error=str(error)))
    except Exception as error:  # noqa: BLE001 - the browser shows a sentence
        path = files.home() / "crash.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        said = f"{type(error).__name__}: {error}; this is a bug, see {path}"
        _print(out, Observation(error=said))
    return 1


def _observe(serve_port: int, out: TextIO) -> None:
    from orchestrator.stages.observer import Observer  # Ray reads its environment when imported

    observer = Observer(serve_port)
    while True:
        _print(out, Observation(observer.observe()))
        time.sleep(EVERY_S)


def _print(out: TextIO, value: Observation) -> None:
    out.write(pydantic_core.to_json(value, inf_nan_mode="null").decode() + "\n")
    out.flush()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
