"""What training is compared with: Hugging Face's Trainer on the same model, rows and batch size.

    python benchmarks/hf_trainer.py WORK --batch 16 [--seconds 10] [--lora]      (or under torchrun)

WORK is a folder that benchmarks/train.py prepares. Prints one JSON line with samples and unpadded
tokens per second over all workers, once 40 steps have warmed it up. With `--epochs` it trains so
many epochs to their end.
"""

import argparse
import csv
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

WARMUP_STEPS = 40
LORA_RANK = 16


class Clock(transformers.TrainerCallback):  # type: ignore[misc]
    """Stops training after some seconds and knows how many steps they held."""

    def __init__(self, seconds: float, warmup: int) -> None:
        self.seconds, self.warmup = seconds, warmup
        self.begin, self.steps, self.elapsed = 0.0, 0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Begin after the warm-up; end when the time is over."""
        done = state.global_step - self.warmup
        if done == 0:
            self.begin = now()
        elif done > 0 and done % 5 == 0:
            self.steps, self.elapsed = done, now() - self.begin
            control.should_training_stop = self.elapsed >= self.seconds
        return control


def main() -> None:
    """Train for a while and print the rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--batch", type=int, required=True, help="per device")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--epochs", type=int, help="train them all, not for some seconds")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--lora", action="store_true", help="an adapter on a causal model")
    arguments = parser.parse_args()
    rows, model, collate = (language if arguments.lora else classification)(arguments.work)
    seconds = float("inf") if arguments.epochs else arguments.seconds
    clock = Clock(seconds, 10 if arguments.lora else WARMUP_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=arguments.batch,
            num_train_epochs=arguments.epochs or 1000,
            bf16=arguments.precision == "bf16",
            dataloader_num_workers=4,
            save_strategy="no",
            report_to=[],
            logging_steps=10**6,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model=model, args=settings, train_dataset=rows, data_collator=collate, callbacks=[clock]
        )
        trainer.train()
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    if int(os.environ.get("RANK", "0")) == 0:
        samples = clock.steps * arguments.batch * workers / clock.elapsed
        length = sum(len(row["input_ids"]) for row in rows) / len(rows)
        memory = torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else None
        rate = {"samples_per_s": samples, "tokens_per_s": samples * length}
        print(json.dumps({**rate, "workers": workers, "peak_memory_gib": memory}))


def classification(work: Path) -> tuple[Any, Any, Any]:
    """Rows of train.tsv, a BERT with a head, and padding to the longest of a batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "bert")
    with (work / "train.tsv").open(encoding="utf-8", newline="") as handle:
        table = list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    ids = tokenizer([row["sentence"] for row in table], truncation=True, max_length=128).input_ids
    rows = [{"input_ids": i, "labels": int(r["label"])} for i, r in zip(ids, table, strict=True)]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        work / "bert", num_labels=2
    )
    return rows, model, transformers.DataCollatorWithPadding(tokenizer)


def language(work: Path) -> tuple[Any, Any, Any]:
    """Rows of questions.jsonl, a causal model with a fresh adapter, and padding likewise."""
    import peft

    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "llama")
    rows = []
    for line in (work / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        head = tokenizer(row["prompt"]).input_ids
        tail = tokenizer(row["response"], add_special_tokens=False).input_ids
        ids, labels = (head + tail)[:512], ([-100] * len(head) + tail)[:512]
        if any(label >= 0 for label in labels):
            rows.append({"input_ids": ids, "labels": labels})
    model = transformers.AutoModelForCausalLM.from_pretrained(work / "llama", dtype="bfloat16")
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM", r=LORA_RANK, lora_alpha=32, target_modules="all-linear"
    )
    collate = transformers.DataCollatorForSeq2Seq(tokenizer, padding=True)
    return rows, peft.get_peft_model(model, lora), collate


def now() -> float:
    """Host time once the device is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
