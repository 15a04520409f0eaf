"""Which encoders of transformers train with captured steps on a GPU, and why others do not.

    python benchmarks/capture_modes.py [--only bert deberta-v2 …] [--jobs 4] [--out FILE]
    python benchmarks/capture_modes.py --page FILE > docs/reference/captured-steps.md

Builds a text classifier of every architecture that has one with two small layers and random
weights, as `benchmarks/architectures.py` does, and prepares its training on one GPU. Prints the
mode of each, `captured` or `eager: reason`, and writes them as JSON; FILE keeps the modes of
architectures that are not tried again. `--page` prints the page of such a file.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import architectures  # noqa: E402 - runs from a clone, installed or not
from jobs.errors import WinnowError, first_line  # noqa: E402
from jobs.training.corpus import load_corpus  # noqa: E402
from jobs.training.session import build_session  # noqa: E402
from jobs.training.world import World  # noqa: E402
from tests import tiny  # noqa: E402

TASK = "text-classification"
LIMIT_S = 60
"""Longest time for one architecture."""


def main() -> int:
    """Builds each architecture in its own process, and prints whether its steps are captured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=sorted(architectures.NAMES[TASK]))
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path, help="print the page of this file, and try nothing")
    parser.add_argument("--here", action="store_true", help="in this process")
    arguments = parser.parse_args()
    if arguments.page:
        sys.stdout.write(page(json.loads(arguments.page.read_text(encoding="utf-8"))))
        return 0
    if arguments.here:
        for kind in arguments.only:
            print(json.dumps(mode_of(kind)), flush=True)
        return 0
    modes = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for kind, mode in zip(arguments.only, pool.map(elsewhere, arguments.only), strict=True):
            modes[kind] = mode
            print(f"{kind}\t{mode}", flush=True)
    if arguments.out:
        record(arguments.out, modes)
    return 0


def record(out: Path, modes: dict[str, str]) -> None:
    """Writes the modes beside those that the file has of other architectures."""
    known = json.loads(out.read_text(encoding="utf-8"))["modes"] if out.exists() else {}
    version = transformers.__version__
    known |= {kind: {"mode": mode, "transformers": version} for kind, mode in modes.items()}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    found = {"gpu": gpu, "torch": torch.__version__, "modes": dict(sorted(known.items()))}
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def page(found: dict[str, Any]) -> str:
    """The page of the documentation, in Markdown."""
    modes: dict[str, dict[str, str]] = found["modes"]
    versions = sorted({each["transformers"] for each in modes.values()})
    captured = [kind for kind, each in modes.items() if each["mode"] == "captured"]
    others = {k: each["mode"] for k, each in modes.items() if each["mode"] != "captured"}
    slow = {kind: mode for kind, mode in others.items() if mode.startswith("eager")}
    rest = {kind: mode for kind, mode in others.items() if not mode.startswith("eager")}
    lines = [
        "# Captured steps",
        "",
        f"Written by `benchmarks/capture_modes.py` on an {found['gpu']} with torch"
        f" {found['torch']} and transformers {' and '.join(versions)}: a text classifier of each"
        " architecture with two small layers and random weights, in bf16.",
        "",
        "A captured step is one CUDA graph, which the host only starts. An eager step launches each"
        " kernel from the host; the run says so, with the reason.",
        "",
        f"## Captured: {len(captured)}",
        "",
        ", ".join(captured),
        "",
        *_section("Eager", slow),
        *_section("Refused or not tried", rest),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, modes: dict[str, str]) -> list[str]:
    rows = [f"| {kind} | {mode.partition('eager: ')[2] or mode} |" for kind, mode in modes.items()]
    head = [f"## {title}: {len(modes)}", "", "| architecture | reason |", "| --- | --- |"]
    return [*head, *rows, ""]


def elsewhere(kind: str) -> str:
    """The mode of an architecture, from a process of its own, which may crash alone."""
    command = [sys.executable, __file__, "--here", "--only", kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not judged: took longer than {LIMIT_S} s"
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else f"not judged: its process ended {done.returncode}"


def mode_of(kind: str) -> str:
    """The mode of an architecture's steps on the GPU."""
    transformers.utils.logging.set_verbosity_error()
    auto = transformers.AutoModelForSequenceClassification
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        architectures.write_rows(folder)
        try:
            with torch.device("meta"):
                made = auto.from_config(tiny.config_of(kind))
            if sum(weight.numel() for weight in made.parameters()) > architectures.MOST_WEIGHTS:
                return "not judged: it cannot be made small"
            base = tiny.save(folder / "base", kind, auto)
        except Exception as error:  # noqa: BLE001 - configurations refuse small values in many ways
            return f"not judged: {first_line(error)[:100]}"
        try:
            config = architectures.configured(base, TASK, folder)
            config = dataclasses.replace(config, device="cuda", precision="bf16")
            world = World(0, 1, torch.device("cuda", 0))
            return build_session(config, load_corpus(config), world).engine.mode
        except WinnowError as error:
            return f"refused: {str(error).replace(base, 'it')}"


if __name__ == "__main__":
    sys.exit(main())
