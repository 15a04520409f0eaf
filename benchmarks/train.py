"""Training speed against Hugging Face's Trainer on the same machine, the two by turns.

    python benchmarks/train.py --data SST2 --tokenizer DIR --parts bert,ray --sku H200 --gpus 1

SST2 is a folder with GLUE's train.tsv and dev.tsv (`sentence<TAB>label`); DIR one with a BERT
tokenizer; `--questions FILE` a jsonl file with `prompt` and `response`, for the parts lora and
zero. Weights are random: speed does not depend on them.

Parts: `bert` full fine-tuning of bert-base right after the Trainer, ours through `winnow train` or,
with `--launch torchrun`, without Ray; `scaling` ours alone; `ray` the two launches compared; `lora`
an adapter on a causal model of 1.1 billion weights; `zero` curves and memory of ddp, zero2 and
zero3. Prints a table and writes JSON to benchmarks/results/ or to `--out`. `--smoke` runs in
miniature on CPUs, to check the script.
"""

import argparse
import csv
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

ROOT = Path(__file__).parents[1]
LORA_MICRO, LORA_ROWS, LORA_LENGTH = 8, 32, 512
"""Packed rows of a step, rows of the Trainer's step that hold about as many tokens, and the longest
row."""
ZERO_EPOCHS = 0.16
"""Of each run that compares strategies."""
RAY_EPOCHS = 0.5
"""Of each run that compares Ray with torchrun."""


class CommandError(Exception):
    """A command did not end well."""


@dataclass
class Bench:
    """What the parts share."""

    work: Path
    gpus: int
    sku: str
    seconds: float
    batches: list[int]
    modes: list[str]
    epochs: float
    launch: str
    smoke: bool
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Where our runs are."""
        return "cpu" if self.smoke else "cuda"

    @property
    def precision(self) -> str:
        """Of every run that does not say otherwise."""
        return "fp32" if self.smoke else "bf16"

    failed: list[str] = field(default_factory=list)

    def attempt(self, name: str, work: Callable[[], None]) -> None:
        """Do a part; one that fails is told, and the others still run."""
        try:
            work()
        except CommandError as error:
            self.failed.append(name)
            self.note(f"{name}/failed", {"reason": str(error)})

    def note(self, name: str, value: Any) -> None:
        """Keep a result and show it."""
        self.results[name] = value
        print(name, json.dumps(value), file=sys.stderr, flush=True)


def main() -> int:
    """Run the parts and record what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--parts", default="bert,ray")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--sku", default="H200", help="name in `winnow hardware`")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each Trainer run")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", default="16,64", help="rows a GPU, of the part bert")
    parser.add_argument("--modes", default="plain,compiled", help="of the parts bert and lora")
    parser.add_argument("--epochs", type=float, default=1.0, help="of the part bert")
    parser.add_argument("--launch", choices=["winnow", "torchrun"], default="winnow")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("WINNOW_HOME", f"{folder}/home")
        seconds = 1.0 if arguments.smoke else arguments.seconds
        sku = "cpu" if arguments.smoke else arguments.sku
        bench = Bench(
            work=Path(folder),
            gpus=arguments.gpus,
            sku=sku,
            seconds=seconds,
            batches=[int(batch) for batch in arguments.batches.split(",")],
            modes=arguments.modes.split(","),
            epochs=arguments.epochs,
            launch=arguments.launch,
            smoke=arguments.smoke,
        )
        prepare(bench, arguments.data, arguments.tokenizer, arguments.questions)
        parts = {"bert": bert, "scaling": scaling, "ray": ray, "lora": lora, "zero": zero}
        try:
            for name in arguments.parts.split(","):
                bench.attempt(name, functools.partial(parts[name], bench))
        finally:
            subprocess.run([*winnow(), "down"], check=False, stdout=subprocess.DEVNULL)
    record(bench, arguments.out)
    return 1 if bench.failed else 0


def prepare(bench: Bench, data: Path, tokenizer: Path, questions: Path | None) -> None:
    """Models with random weights, and rows as files."""
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = {**small, "intermediate_size": 128} if bench.smoke else {}
    words = transformers.AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**shape)).save_pretrained(bench.work / "bert")
    words.save_pretrained(bench.work / "bert")
    for name in ("train", "dev"):
        shutil.copy(data / f"{name}.tsv", bench.work)
    if bench.smoke:
        rows = (bench.work / "train.tsv").read_text(encoding="utf-8").splitlines()[:641]
        (bench.work / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    if questions is None:
        return
    lines = [line for line in questions.read_text(encoding="utf-8").splitlines() if line]
    text = "\n".join(lines * (1 if bench.smoke else 12)) + "\n"
    (bench.work / "questions.jsonl").write_text(text, encoding="utf-8")
    (bench.work / "held-back.jsonl").write_text("\n".join(lines[:16]) + "\n", encoding="utf-8")
    large = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
    wide = {"intermediate_size": 8192, "num_key_value_heads": 8, "vocab_size": 32_000}
    tight = {"intermediate_size": 128, "num_key_value_heads": 2, "vocab_size": 32_000}
    config = transformers.LlamaConfig(**(small | tight if bench.smoke else large | wide))
    with torch.device("cpu" if bench.smoke else "cuda"):
        llama = transformers.LlamaForCausalLM(config)
    llama.save_pretrained(bench.work / "llama")
    words.save_pretrained(bench.work / "llama")


def bert(bench: Bench) -> None:
    """Full fine-tuning, each of ours right after its baseline."""
    for batch in bench.batches:
        name = f"{bench.gpus}x{batch}"
        base = trainer(bench, batch)
        bench.note(f"{name}/trainer", base)
        for mode in bench.modes:
            fit = ours(bench, batch, mode)
            fit["times_trainer"] = round(fit["samples_per_s"] / base["samples_per_s"], 2)
            bench.note(f"{name}/{bench.launch}-{mode}", fit)


def scaling(bench: Bench) -> None:
    """Ours alone, to be compared with a run on fewer GPUs."""
    for batch in bench.batches:
        for mode in bench.modes:
            name = f"{bench.gpus}x{batch}/{bench.launch}-{mode}"
            bench.note(name, ours(bench, batch, mode))


def ours(bench: Bench, batch: int, mode: str) -> dict[str, Any]:
    """One full fine-tuning run as the options say."""
    compiled = mode == "compiled"
    if bench.launch == "winnow":
        return winnow_train(bench, batch, epochs=bench.epochs, compiled=compiled)
    return torchrun(bench, bert_config(bench, batch, compiled=compiled))


def ray(bench: Bench) -> None:
    """The same configuration by turns under Ray Train and under torchrun: steady step times."""
    for batch in bench.batches:
        times: dict[str, list[float]] = {"ray": [], "torchrun": []}
        for _ in range(2):
            fit = winnow_train(bench, batch, epochs=RAY_EPOCHS, compiled=False)
            times["ray"].append(1 / fit["samples_per_s"])
            times["torchrun"].append(1 / torchrun(bench, fit["config"])["samples_per_s"])
        ratio = statistics.fmean(times["ray"]) / statistics.fmean(times["torchrun"])
        name = f"{bench.gpus}x{batch}/ray-over-torchrun"
        bench.note(name, {"s_per_sample": times, "ratio": round(ratio, 4)})


def lora(bench: Bench) -> None:
    """Unpadded tokens per second of an adapter, r = 16, on every linear layer."""
    base = trainer(bench, LORA_ROWS, "--lora")
    bench.note("lora/trainer", base)
    for mode in bench.modes:
        changes: dict[str, Any] = {
            "adapter": {"type": "lora", "r": 16, "alpha": 32, "dropout": 0.0},
            "compile": mode == "compiled",
            "micro": LORA_MICRO,
            "epochs": 1.0,
        }
        ours = torchrun(bench, language_config(bench, **changes), gpus=1)
        ours["times_trainer"] = round(ours["tokens_per_s"] / base["tokens_per_s"], 2)
        bench.note(f"lora/winnow-{mode}", ours)


def zero(bench: Bench) -> None:
    """Curve and memory of full fine-tuning of the causal model under each strategy."""
    curves: dict[tuple[str, str], list[float]] = {}
    for precision in ("fp32", bench.precision):
        for strategy in ("ddp", "zero2", "zero3", "zero3-offload"):

            def compare(precision: str = precision, strategy: str = strategy) -> None:
                name, _, offload = strategy.partition("-")
                changes = {"strategy": name, "cpu_offload": bool(offload), "precision": precision}
                config = language_config(bench, micro=2, epochs=ZERO_EPOCHS, **changes)
                found = torchrun(bench, config, gpus=2, keep_losses=True)
                curve = curves[precision, strategy] = found.pop("losses")
                pairs = zip(curve, curves[precision, "ddp"], strict=True)
                found["steps"] = len(curve)
                found["furthest_from_ddp"] = max(abs(a - b) for a, b in pairs)
                bench.note(f"zero/{precision}/{strategy}", found)

            bench.attempt(f"zero/{precision}/{strategy}", compare)


def trainer(bench: Bench, batch: int, *more: str) -> dict[str, Any]:
    """The baseline's rates."""
    script = [str(ROOT / "benchmarks/hf_trainer.py"), str(bench.work), "--batch", str(batch)]
    options = ["--seconds", str(bench.seconds), "--precision", bench.precision, *more]
    gpus = 1 if more else bench.gpus
    done = run([*launcher(gpus), *script, *options], bench)
    return rounded(json.loads(done.stdout.strip().splitlines()[-1]))


def winnow_train(bench: Bench, batch: int, *, epochs: float, compiled: bool) -> dict[str, Any]:
    """A job through `winnow train`, and the configuration that it came to."""
    job = {
        "version": 1,
        "name": "bench",
        "model": {"base": str(bench.work / "bert")},
        "data": {
            "train": {"path": str(bench.work / "train.tsv")},
            "eval": {"path": str(bench.work / "dev.tsv")},
            "text": "sentence",
            "max_length": 128,
        },
        "train": {
            "epochs": epochs,
            "global_batch_size": batch * bench.gpus,
            "micro_batch_size": batch,
            "precision": bench.precision,
            "compile": compiled,
            "checkpoint": {"every": "1h"},
        },
        "resources": {"any_of": [{"accelerators": f"{bench.sku}:{bench.gpus}"}]},
        "storage": str(bench.work / "runs"),
    }
    path = bench.work / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    begin = time.monotonic()
    done = run([*winnow(), "train", str(path), "--json"], bench)
    folder = Path(json.loads(done.stdout)["folder"])
    fit = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    speed = {**fit["speed"], "command_s": time.monotonic() - begin, "accuracy": accuracy(fit)}
    shutil.rmtree(folder / "fit" / "checkpoints")
    return {**rounded(speed), "config": str(folder / "fit" / "training.json")}


def torchrun(
    bench: Bench, config: str, *, gpus: int | None = None, keep_losses: bool = False
) -> dict[str, Any]:
    """The same loop without Ray."""
    command = [*launcher(bench.gpus if gpus is None else gpus), "-m", "jobs.training", config]
    events = [
        json.loads(line) for line in run(command, bench).stdout.splitlines() if line[:1] == "{"
    ]
    speed = next(event for event in events if event.pop("event") == "Metered")
    if keep_losses:
        speed["losses"] = [event["loss"] for event in events if "loss" in event]
    return rounded(speed)


def language_config(bench: Bench, *, micro: int, epochs: float, **changes: Any) -> str:
    """A configuration of the causal model, as a file."""
    model: dict[str, Any] = {"base": str(bench.work / "llama"), "task": "causal-lm"}
    model["adapter"] = changes.pop("adapter", None)
    model["dropout"] = 0.0
    data = {
        "train": {"path": str(bench.work / "questions.jsonl")},
        "eval": {"path": str(bench.work / "held-back.jsonl")},
        "prompt": "prompt",
        "response": "response",
        "max_length": LORA_LENGTH,
    }
    sizes = {"global_batch_size": LORA_MICRO, "micro_batch_size": micro, "epochs": epochs}
    return config_file(
        bench, model=model, data=data, metrics=["token_accuracy"], **sizes, **changes
    )


def bert_config(bench: Bench, batch: int, *, compiled: bool) -> str:
    """A configuration of bert-base, as a file."""
    data = {
        "train": {"path": str(bench.work / "train.tsv")},
        "eval": {"path": str(bench.work / "dev.tsv")},
        "text": "sentence",
    }
    sizes = {"global_batch_size": batch * bench.gpus, "micro_batch_size": batch}
    model = {"base": str(bench.work / "bert")}
    rest = {"epochs": bench.epochs, "compile": compiled, "metrics": ["accuracy"]}
    return config_file(bench, model=model, data=data, **sizes, **rest)


def config_file(bench: Bench, **changes: Any) -> str:
    """A configuration with defaults for what is not given."""
    values = {
        "precision": bench.precision,
        "optimizer": {"lr": 1e-4},
        "lr_schedule": {},
        "eval": {},
        "checkpoint": {},
        "seed": 1,
        "device": bench.device,
        **changes,
    }
    path = bench.work / "training.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return str(path)


def launcher(gpus: int) -> list[str]:
    """Python, or torchrun for several workers."""
    if gpus == 1:
        return [sys.executable]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={gpus}",
    ]


def winnow() -> list[str]:
    """The command, whether or not it is installed."""
    return [sys.executable, "-m", "orchestrator"]


def run(command: Sequence[str], bench: Bench) -> subprocess.CompletedProcess[str]:
    """Run quietly; what failed is shown."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    if done.returncode:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
        raise CommandError(f"exit code {done.returncode}: {' '.join(command)}")
    return done


def accuracy(fit: dict[str, Any]) -> float:
    """Of the last evaluation."""
    return float(fit["checkpoint"]["metrics"]["accuracy"])


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers as they are worth reading."""
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in values.items()}


def record(bench: Bench, out: Path | None) -> None:
    """Print a table and write JSON."""
    keys = (
        "samples_per_s",
        "tokens_per_s",
        "times_trainer",
        "step_s_p50",
        "wall_s",
        "peak_memory_gib",
    )
    table = csv.writer(sys.stdout, delimiter="\t")
    table.writerow(["case", *keys, "mode"])
    for name, found in bench.results.items():
        table.writerow([name, *(found.get(key, "") for key in keys), found.get("mode", "")])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    machine = {"gpu": gpu, "gpus": bench.gpus, "cores": os.cpu_count(), "torch": torch.__version__}
    machine |= {"transformers": transformers.__version__, "python": platform.python_version()}
    now = datetime.now(UTC)
    path = out or ROOT / "benchmarks/results" / f"train-{now:%Y%m%d-%H%M%S}.json"
    for found in bench.results.values():
        found.pop("config", None)
    value = {"date": now.isoformat(timespec="seconds"), "machine": machine, **bench.results}
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
