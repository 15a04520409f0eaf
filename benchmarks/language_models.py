"""How fast causal language models train, and in how much memory, beside transformers' Trainer.

    python benchmarks/language_models.py --tokenizer DIR [--only 1.1b-lora …] [--seconds 20]
        [--theirs] [--compile] [--gpus 2] [--strategy zero3] [--rows 6] [--out FILE]

Trains models of a Llama's shape with random weights (speed does not depend on them) on one GPU, or
ours on several, in bf16: prompts and responses of random words, of log-normal length, packed. The
Trainer reads the same rows, grouped by length, with peft and, where it is installed, Liger's
kernels. Prints tokens per second without padding, the share of the devices' peak, the peak memory
of a device, and the memory that `winnow plan` forecasts for one GPU.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.hf_trainer import Clock  # noqa: E402 - runs from a clone, installed or not
from benchmarks.train import launcher  # noqa: E402
from cluster import memory_estimate  # noqa: E402
from jobs.spec import task_registry  # noqa: E402
from jobs.spec.model import Quantization  # noqa: E402
from jobs.training.config import TRAINING_CONFIG  # noqa: E402
from jobs.training.events import Event, Metered, Started  # noqa: E402
from jobs.training.loop import train  # noqa: E402
from jobs.training.model import counting  # noqa: E402

PEAK_TFLOPS = 989.0
"""Dense bf16 peak of an H100 SXM."""
WORKER = int(os.environ.get("RANK", "0"))
"""Of this process among those of all GPUs."""
WARMUP_STEPS = 5
RANK = 16
QUANTIZATION: Quantization = "nf4"
SHAPES: dict[str, dict[str, int]] = {
    "1.1b": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 32_000,
    },
    "3.2b": {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128_256,
    },
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
        "vocab_size": 128_256,
    },
}
"""Of Llama 3.2's and Llama 3's kind; that of 1.1 billion weights has Llama 2's vocabulary."""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One model, method and row length."""

    shape: str
    lora: bool
    rows: int
    """Packed rows of an optimizer step, which is one micro batch."""
    length: int
    """Tokens of a packed row."""
    vocabulary: int = 0
    """0 for the shape's own."""
    checkpointing: bool = False
    quantized: bool = False
    """Whether the frozen weights are in nf4."""

    @property
    def fields(self) -> dict[str, Any]:
        """Of transformers' configuration."""
        made = {**SHAPES[self.shape], "max_position_embeddings": self.length}
        return {**made, "vocab_size": self.vocabulary or made["vocab_size"]}


CASES = {
    "1.1b-lora": Case("1.1b", lora=True, rows=8, length=2048),
    "1.1b-lora-wide": Case("1.1b", lora=True, rows=8, length=2048, vocabulary=128_256),
    "1.1b-full": Case("1.1b", lora=False, rows=4, length=2048),
    "3.2b-lora": Case("3.2b", lora=True, rows=4, length=2048),
    "8b-lora": Case("8b", lora=True, rows=2, length=4096),
    "8b-full": Case("8b", lora=False, rows=2, length=2048),
    "8b-qlora": Case("8b", lora=True, rows=1, length=2048, quantized=True),
}
CASES.update(
    {
        f"{name}-checkpointed": dataclasses.replace(case, checkpointing=True)
        for name, case in tuple(CASES.items())
    }
)


def main() -> int:
    """Trains each case in a process of its own and prints what it measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time of the steps")
    parser.add_argument("--steps", type=int, default=40, help="most optimizer steps of ours")
    parser.add_argument("--theirs", action="store_true", help="time the Trainer too")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--strategy", choices=["ddp", "zero2", "zero3"], default="ddp")
    parser.add_argument("--rows", type=int, help="packed rows of a GPU and step, if not the case's")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--here", choices=["ours", "theirs"], help="in this process; one case")
    arguments = parser.parse_args()
    if arguments.here:
        case = CASES[arguments.only[0]]
        if arguments.rows:
            case = dataclasses.replace(case, rows=arguments.rows)
        found = (ours if arguments.here == "ours" else theirs)(case, arguments)
        if WORKER == 0:
            print(json.dumps(found), flush=True)
        return 0
    results: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    results["machine"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for name in arguments.only:
        for side in ("ours", "theirs")[: 1 + arguments.theirs]:
            results[f"{name}/{side}"] = found = elsewhere(name, side, arguments.gpus)
            print(name, side, json.dumps(found), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any("failed" in found for found in results.values() if isinstance(found, dict)))


def elsewhere(name: str, side: str, gpus: int) -> dict[str, Any]:
    """What one case measures, in a process for each GPU."""
    with tempfile.TemporaryDirectory() as place:
        more = ["--only", name, "--here", side, "--place", place]
        command = [*launcher(gpus), __file__, *sys.argv[1:], *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def ours(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates of our steps."""
    folder, is_ready = arguments.place, arguments.place / "ready"
    if WORKER == 0:
        samples = samples_for(case, arguments.steps * arguments.gpus)
        prepare(case, folder, arguments.tokenizer, samples)
        is_ready.touch()
    while not is_ready.exists():
        time.sleep(0.2)
    config = TRAINING_CONFIG.validate_python(configured(case, folder, arguments))
    forecast = forecast_gib(case, folder / "model", compiles=arguments.compile)
    events: list[Event] = []
    train(config, events.append)
    metered = next(event for event in events if isinstance(event, Metered))
    started = next(event for event in events if isinstance(event, Started))
    found: dict[str, Any] = {
        "tokens_per_s": round(metered.tokens_per_s),
        "peak_memory_gib": round(metered.peak_memory_gib or 0.0, 1),
        "forecast_gib": round(forecast, 1),
        "share_of_peak": round(share(case, metered.tokens_per_s) / arguments.gpus, 3),
        "mode": started.mode,
        "capture_s": round(metered.capture_s, 1),
    }
    return found


def forecast_gib(case: Case, model: Path, *, compiles: bool) -> float:
    """The memory that a plan expects."""
    task = task_registry.find("causal-lm")
    shape = counting.shape_of(str(model), task)
    assert shape is not None
    found = memory_estimate.estimate(
        shape,
        micro_batch_size=case.rows,
        tokens=case.length,
        precision="bf16",
        device="cuda",
        eval_batch=task.eval_batch,
        sharding=memory_estimate.StateSharding(
            adapter=case.lora,
            gradient_checkpointing=case.checkpointing,
            compile=compiles,
            quantization=QUANTIZATION if case.quantized else None,
        ),
    )
    return found.expected_gib


def theirs(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates of transformers' Trainer."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokenizer = prepare(case, folder, arguments.tokenizer, samples_for(case, arguments.steps))
        rows = tokenised(folder / "train.jsonl", tokenizer, case.length)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder / "model", dtype=torch.bfloat16, device_map="cuda"
        )
        if case.lora:
            model = adapted(model)
        mean = sum(len(row["input_ids"]) for row in rows) / len(rows)
        batch = max(1, round(case.rows * case.length / mean))
        clock = Clock(arguments.seconds, WARMUP_STEPS)
        settings = transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=batch,
            num_train_epochs=1000,
            bf16=True,
            train_sampling_strategy="group_by_length",
            gradient_checkpointing=case.checkpointing,
            use_liger_kernel=has_liger(),
            dataloader_num_workers=4,
            save_strategy="no",
            report_to=[],
            logging_steps=10**6,
            disable_tqdm=True,
        )
        collate = transformers.DataCollatorForSeq2Seq(tokenizer, padding=True)
        transformers.Trainer(
            model=model, args=settings, train_dataset=rows, data_collator=collate, callbacks=[clock]
        ).train()
    rate = clock.steps * batch * mean / clock.elapsed
    return {
        "tokens_per_s": round(rate),
        "peak_memory_gib": round(torch.cuda.max_memory_reserved() / 2**30, 1),
        "share_of_peak": round(share(case, rate), 3),
        "liger": has_liger(),
    }


def has_liger() -> bool:
    """Whether Liger's kernels are installed."""
    return importlib.util.find_spec("liger_kernel") is not None


def adapted(model: Any) -> Any:
    """The model with a fresh adapter."""
    import peft

    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=32, target_modules="all-linear"
    )
    return peft.get_peft_model(model, settings)


def samples_for(case: Case, steps: int) -> int:
    """Conversations that fill so many steps; the mean has about 340 tokens."""
    return steps * case.rows * case.length // 340


def prepare(case: Case, folder: Path, tokenizer: str, samples: int) -> Any:
    """A model with random weights and its rows, as files."""
    words = transformers.AutoTokenizer.from_pretrained(tokenizer)
    config = transformers.LlamaConfig(**case.fields)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    draw = random.Random(0)
    known = [word for word in words.get_vocab() if word.isascii() and word.isalpha()]
    for name, count in (("train", samples), ("eval", 16)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as handle:
            for _ in range(count):
                prompt, response = (sentence(draw, known, mean) for mean in (4.6, 5.0))
                handle.write(json.dumps({"prompt": prompt, "response": response}) + "\n")
    return words


def sentence(draw: random.Random, known: list[str], mean: float) -> str:
    """Random words, of log-normal number."""
    count = min(900, max(4, round(draw.lognormvariate(mean, 0.8))))
    return " ".join(draw.choices(known, k=count))


def tokenised(path: Path, tokenizer: Any, length: int) -> list[dict[str, Any]]:
    """The rows as the Trainer reads them: tokens of the prompt do not count."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        head = tokenizer(row["prompt"]).input_ids
        tail = tokenizer(row["response"], add_special_tokens=False).input_ids
        ids, labels = (head + tail)[:length], ([-100] * len(head) + tail)[:length]
        if any(label >= 0 for label in labels):
            rows.append({"input_ids": ids, "labels": labels})
    return rows


def configured(case: Case, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Our training run."""
    adapter = {"type": "lora", "r": RANK, "alpha": 32, "dropout": 0.0} if case.lora else None
    if adapter and case.quantized:
        adapter["quantization"] = QUANTIZATION
    return {
        "model": {
            "base": str(folder / "model"),
            "task": "causal-lm",
            "adapter": adapter,
            "dropout": 0.0,
        },
        "data": {
            "train": {"path": str(folder / "train.jsonl")},
            "eval": {"path": str(folder / "eval.jsonl")},
            "prompt": "prompt",
            "response": "response",
            "max_length": case.length,
        },
        "epochs": 1.0,
        "global_batch_size": case.rows * arguments.gpus,
        "micro_batch_size": case.rows,
        "precision": "bf16",
        "optimizer": {"lr": 1e-4},
        "lr_schedule": {},
        "eval": {},
        "metrics": ["token_accuracy"],
        "checkpoint": {},
        "seed": 1,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "compile": arguments.compile,
        "strategy": arguments.strategy,
        "gradient_checkpointing": case.checkpointing,
        "stop_after_s": arguments.seconds + 30,
    }


def share(case: Case, tokens_per_s: float) -> float:
    """Share of the peak, counted as 6 FLOP a weight and token, or 4 with an adapter."""
    fields = case.fields
    hidden, wide = fields["hidden_size"], fields["intermediate_size"]
    keys = fields["num_key_value_heads"] / fields["num_attention_heads"]
    layer = int(2 * hidden * hidden * (1 + keys)) + 3 * hidden * wide
    weights = fields["num_hidden_layers"] * layer + hidden * fields["vocab_size"]
    flop: int = (4 if case.lora else 6) * weights
    return flop * tokens_per_s / (PEAK_TFLOPS * 1e12)


if __name__ == "__main__":
    sys.exit(main())
