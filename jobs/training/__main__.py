"""Trains one resolved configuration without Ray: `torchrun -m jobs.training config.json`."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from jobs.errors import WinnowError
from jobs.training.config import TRAINING_CONFIG
from jobs.training.events import Event
from jobs.training.loop import train


def main() -> int:
    """Trains, prints a JSON line for each event, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.training", description=__doc__)
    parser.add_argument("config", type=Path, help="training.json of a run directory")
    parser.add_argument("--checkpoints", type=Path, help="folder to save to and resume from")
    arguments = parser.parse_args()
    try:
        config = TRAINING_CONFIG.validate_json(arguments.config.read_bytes())
        train(config, _print, arguments.checkpoints)
    except (OSError, ValueError, WinnowError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _print(event: Event) -> None:
    line = json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
