"""The clock of a whole job on one device, from `winnow run` to the endpoint's first answer.

    python benchmarks/job_clock.py --data SST2 --tokenizer DIR --device H200:1 [--out FILE]

SST2 is a folder with GLUE's train.tsv and dev.tsv; DIR one with a BERT tokenizer. On a local
cluster that is up, a bert-base with random weights is swept over three micro batches, two
precisions and four learning rates, trained for three epochs, published and served. Then the
Trainer trains the same three epochs. Prints the seconds of both, the receipt, and the share of the
run that was no step of the three epochs. `--smoke` runs in miniature on a CPU, to check the script.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import orchestrator as winnow  # noqa: E402 - the script runs from a clone, installed or not

EPOCHS, ROWS = 3, 128
"""Epochs that the fit trains, and rows of one optimizer step (the global batch size)."""
JOB = """\
version: 1
name: clock
storage: {work}/storage
model: {{base: {work}/bert}}
data:
  train: {{path: {work}/train.tsv}}
  eval: {{path: {work}/dev.tsv}}
  text: sentence
  label: label
  max_length: 128
train:
  epochs: {epochs}
  global_batch_size: {rows}
  eval: {{every: 1epoch, metrics: [accuracy]}}
resources: {{any_of: [{{accelerators: "{device}"}}]}}
sweep:
  search_space:
    train.micro_batch_size: {micro}
    train.precision: [bf16, fp32]
    train.optimizer.lr: [1e-5, 2e-5, 3e-5, 5e-5]
  trials: 4
  objective: {{minimize: time}}
serve: {{route: /clock, accelerators: "{device}"}}
"""
WINNOW = [sys.executable, "-m", "orchestrator"]


def main() -> int:
    """Runs both, and prints what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--device", required=True, help="as in a job file, such as H200:1")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    above = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{above}" if above else str(ROOT)
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        work = Path(place)
        os.environ["WINNOW_HOME"] = str(work / "home")
        prepare(work, arguments)
        subprocess.run([*WINNOW, "up"], check=True, cwd=work)
        try:
            found = run(work)
        finally:
            subprocess.run([*WINNOW, "down"], check=False, cwd=work)
        print(json.dumps({name: found[name] for name in found if name != "receipt"}), flush=True)
        found["trainer_s"] = trainer(work, arguments)
    found |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "device": arguments.device}
    found |= {"torch": torch.__version__, "smoke": arguments.smoke}
    print(json.dumps(found, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def prepare(work: Path, arguments: Any) -> None:
    """A model with random weights, the rows, and the job file."""
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = {**small, "intermediate_size": 128} if arguments.smoke else {}
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**shape)).save_pretrained(work / "bert")
    transformers.AutoTokenizer.from_pretrained(arguments.tokenizer).save_pretrained(work / "bert")
    for name in ("train.tsv", "dev.tsv"):
        shutil.copy(arguments.data / name, work)
        if arguments.smoke:
            lines = (work / name).read_text(encoding="utf-8").splitlines()[:641]
            (work / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    micro = [8, 16, 32] if arguments.smoke else [32, 64, 128]
    values = {"work": work, "epochs": EPOCHS, "rows": 32 if arguments.smoke else ROWS}
    text = JOB.format(**values, device=arguments.device, micro=micro)
    (work / "job.yaml").write_text(text, encoding="utf-8")


def run(work: Path) -> dict[str, Any]:
    """The seconds to the first answer, and what the run says of itself."""
    begin = time.monotonic()
    with (work / "log").open("w", encoding="utf-8") as log:
        words = [*WINNOW, "run", str(work / "job.yaml"), "--json"]
        ended = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=log, cwd=work)
    said = (work / "log").read_text(encoding="utf-8")
    print(said, file=sys.stderr)
    if ended.returncode:
        told = ended.stdout.decode()[:1000]
        raise SystemExit(f"winnow run ended with {ended.returncode}: {told}")
    outcome = json.loads(ended.stdout)
    winnow.predict(outcome["endpoint"]["url"], ["a fine film"])
    whole_s = time.monotonic() - begin
    receipt = outcome["receipt"]
    samples = EPOCHS * (len((work / "train.tsv").read_text().splitlines()) - 1)
    steps_s = samples / receipt["speed"]["samples_per_s"]
    return {
        "run_to_first_answer_s": round(whole_s, 1),
        "steps_s": round(steps_s, 1),
        "overhead": round(1 - steps_s / whole_s, 3),
        "receipt": receipt,
    }


def trainer(work: Path, arguments: Any) -> float:
    """The seconds of the Trainer's script for the same epochs."""
    words = [sys.executable, str(ROOT / "benchmarks/hf_trainer.py"), str(work)]
    words += ["--batch", str(32 if arguments.smoke else ROWS), "--epochs", str(EPOCHS)]
    words += ["--precision", "fp32"] if arguments.smoke else []
    begin = time.monotonic()
    subprocess.run(words, check=True)
    return round(time.monotonic() - begin, 1)


if __name__ == "__main__":
    sys.exit(main())
