"""Whether seq2seq learns as well as transformers' Seq2SeqTrainer: the same rows, batches and rates.

    python benchmarks/learning_targets.py DATA [--seeds 3] [--rows 1000] [--out FILE]

DATA holds `e2e/train.csv` and `e2e/test.csv` of the E2E data set. A small T5 from random weights,
with a vocabulary of 1,000 pieces of the training rows, learns to write the sentences from the
facts. Each seed draws the order of the rows and the dropout, for both. Both saved models are judged
by the same plain loop: mean loss of a target's token, and BLEU of what greedy search writes for the
first evaluation rows. Prints mean and standard deviation over the seeds, and whether the
difference of the means is one that chance makes (Student's t-test at 1 %).
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # the Trainer would take every GPU

import sacrebleu
import tokenizers
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import learning  # noqa: E402
from benchmarks.learning import (  # noqa: E402 - runs from a clone, installed or not
    CHANCE_T,
    DEVICE,
    Row,
    Scores,
    compared,
    table,
)
from jobs.spec.data import SourceSpec  # noqa: E402
from jobs.spec.model import ModelSpec  # noqa: E402
from jobs.spec.train import CheckpointSpec, EvalSpec, LrScheduleSpec, OptimizerSpec  # noqa: E402
from jobs.tasks.seq2seq.task import Seq2SeqData  # noqa: E402
from jobs.training.config import TrainingConfig  # noqa: E402
from jobs.training.loop import train  # noqa: E402

VOCABULARY, SOURCE, TARGET = 1000, 96, 96
"""Pieces of the vocabulary, and longest source and target in tokens."""
BATCH, EPOCHS, LR = 16, 5.0, 3e-3
JUDGED, WRITTEN = 304, 96
"""Evaluation rows of the loss, and those for which text is written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """The rows, and the folder of the model with random weights."""

    train: list[Row]
    eval: list[Row]
    base: str


def main() -> int:
    """Train everything, print the table, and exit with 1 where a difference is no chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, choices=CHANCE_T, default=3)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    found: dict[str, list[Scores]] = {"winnow": [], "trainer": []}
    with tempfile.TemporaryDirectory() as name:
        subject = e2e(arguments.data, Path(name), arguments.rows)
        for seed in range(arguments.seeds):
            folder = Path(name) / f"{seed}"
            found["winnow"].append(judged(ours(subject, seed, folder), subject))
            found["trainer"].append(judged(theirs(subject, seed, folder), subject))
            print(seed, {who: runs[-1] for who, runs in found.items()}, flush=True)
    result = compared(found, arguments.seeds)
    for metric, text in result["shown"].items():
        print(f"e2e {metric}: {text}")
    if arguments.out:
        text = json.dumps({"e2e": {"runs": found, **result}}, indent=1)
        arguments.out.write_text(f"{text}\n", encoding="utf-8")
    return int(not result["is_equal"])


def e2e(data: Path, folder: Path, count: int) -> Subject:
    """Returns the first rows of E2E, and a T5 of two encoder and two decoder layers, untrained."""
    splits = [
        [
            {"source": row["mr"], "target": row["ref"]}
            for row in table(data / f"e2e/{split}.csv", ",")
        ]
        for split in ("train", "test")
    ]
    rows = splits[0][:count]
    base = folder / "t5"
    tokenizer = tokenizer_of([text for row in rows for text in row.values()])
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    return Subject(rows, splits[1][:JUDGED], str(base))


def tokenizer_of(texts: list[str]) -> Any:
    """A byte-level tokenizer of these texts, which ends each text with `</s>` as T5's does."""
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE())
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    pieces.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, pad_token="<pad>", eos_token="</s>"
    )


def ours(subject: Subject, seed: int, folder: Path) -> Path:
    """Trains with Winnow, and returns the folder of the saved model."""
    reference = train(configured(subject, seed, folder), lambda _: None, folder / "winnow")
    return Path(reference.path) / "model"


def configured(subject: Subject, seed: int, folder: Path) -> TrainingConfig:
    """A resolved job over files of the subject's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, Any] = {}
    for split, rows in (("train", subject.train), ("eval", subject.eval)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        sources[split] = SourceSpec(path=str(path))
    return TrainingConfig(
        model=ModelSpec(base=subject.base, task="seq2seq"),
        data=Seq2SeqData(
            **sources,
            source="source",
            target="target",
            max_length=SOURCE,
            max_target_length=TARGET,
        ),
        epochs=EPOCHS,
        global_batch_size=BATCH,
        micro_batch_size=BATCH,
        precision="bf16" if DEVICE == "cuda" else "fp32",
        optimizer=OptimizerSpec(lr=LR),
        lr_schedule=LrScheduleSpec(),
        eval=EvalSpec(),
        metrics=("perplexity",),
        checkpoint=CheckpointSpec(keep=1),
        seed=seed,
        device=DEVICE,
    )


def theirs(subject: Subject, seed: int, folder: Path) -> Path:
    """Train with the Seq2SeqTrainer in as many steps; the saved model."""
    config = configured(subject, seed, folder)
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(subject.base)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(subject.base, dtype="float32")
    arguments = transformers.Seq2SeqTrainingArguments(**learning.trainer_settings(config, folder))
    transformers.Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=[encoded(tokenizer, row) for row in subject.train],
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model=model),
    ).train()
    model.save_pretrained(folder / "trainer")
    tokenizer.save_pretrained(folder / "trainer")
    return folder / "trainer"


def encoded(tokenizer: Any, row: Row) -> dict[str, Any]:
    """Token ids of a row's source and target."""
    found = tokenizer(row["source"], truncation=True, max_length=SOURCE)
    target = tokenizer(text_target=row["target"], truncation=True, max_length=TARGET)
    return {
        "input_ids": found.input_ids,
        "attention_mask": found.attention_mask,
        "labels": target.input_ids,
    }


@torch.no_grad()
def judged(folder: Path, subject: Subject) -> Scores:
    """Mean loss of a target's token of a saved model, and BLEU of what it writes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="float32")
    model = model.eval().to(DEVICE)
    collate = transformers.DataCollatorForSeq2Seq(tokenizer, model=model)
    loss, count = 0.0, 0
    texts: list[str] = []
    for first in range(0, len(subject.eval), BATCH):
        rows = [encoded(tokenizer, row) for row in subject.eval[first : first + BATCH]]
        batch = {name: value.to(DEVICE) for name, value in collate(rows).items()}
        labels = batch.pop("labels")
        logits = model(**batch).logits.flatten(0, 1)
        loss += float(torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum"))
        count += int((labels >= 0).sum())
        if first < WRITTEN:
            del batch["decoder_input_ids"]
            written = model.generate(**batch, max_new_tokens=TARGET, do_sample=False)
            texts += tokenizer.batch_decode(written, skip_special_tokens=True)
    right = [row["target"] for row in subject.eval[: len(texts)]]
    return {"loss": loss / count, "bleu": sacrebleu.corpus_bleu(texts, [right]).score}


if __name__ == "__main__":
    sys.exit(main())
