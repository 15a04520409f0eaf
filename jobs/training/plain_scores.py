"""Scores the evaluation rows in a model's folder with transformers and peft only.

It runs by its path, in its own process, and imports nothing of this project, as any other user of
the folder. Arguments: the folder, the device, the class of transformers that loads the model, and
the activation of its logits (softmax, sigmoid, identity, or token-loss for the mean loss of the
trained tokens). Prints JSON: the scores of the first rows one by one and of all rows in padded
batches, and the number of texts that are tokenised otherwise than in training.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

BATCH, ALONE = 8, 48
"""Rows of a padded batch, and number of rows that are also scored one by one."""
IGNORED = -100
"""Label of tokens without a loss."""
Rows = list[dict[str, Any]]
Scores = list[list[float]]


ACTIVATIONS = {
    "softmax": lambda logits: logits.softmax(dim=-1),
    "sigmoid": torch.sigmoid,
    "identity": lambda logits: logits,
}


def load(folder: Path, auto_class: str, outputs: int) -> tuple[Any, Any]:
    """Loads the model, as its model card says, and its tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if not (folder / "adapter_config.json").exists():
        return getattr(transformers, auto_class).from_pretrained(folder), tokenizer
    import peft

    kind = getattr(peft, auto_class.replace("Auto", "AutoPeft", 1))
    if not outputs:
        return kind.from_pretrained(folder), tokenizer
    settings = {
        "num_labels": outputs,
        "pad_token_id": tokenizer.pad_token_id,
        "ignore_mismatched_sizes": True,  # the base may be a classifier for other labels
    }
    return kind.from_pretrained(folder, **settings), tokenizer


def activated(model: Any, tokenizer: Any, rows: Rows, activation: str) -> Scores:
    """Returns the scores of the texts, as a pipeline of transformers computes them."""
    first = [row["texts"][0] for row in rows]
    second = [row["texts"][1] for row in rows] if len(rows[0]["texts"]) == 2 else None
    inputs = tokenizer(first, second, padding=True, truncation=True, return_tensors="pt")
    logits = model(**inputs.to(model.device)).logits
    score: Any = ACTIVATIONS[activation]
    found: Scores = score(logits.float()).tolist()
    return found


def losses(model: Any, tokenizer: Any, rows: Rows) -> Scores:
    """Returns the mean loss of each row's trained tokens."""
    padded = tokenizer.pad({"input_ids": [row["ids"] for row in rows]}, return_tensors="pt")
    ids, mask = padded["input_ids"].to(model.device), padded["attention_mask"].to(model.device)
    has_targets = bool(rows[0].get("targets"))  # a token is predicted at its own place
    settings = {} if has_targets else {"use_cache": False}
    logits = model(input_ids=ids, attention_mask=mask, **settings).logits.float()
    labels = torch.full_like(ids, IGNORED)
    for row, target, real in zip(rows, labels, mask.bool(), strict=True):
        trained = torch.tensor(row["trained"], device=ids.device, dtype=torch.bool)
        tokens = torch.tensor(row["targets"] if has_targets else row["ids"], device=ids.device)
        target[real] = torch.where(trained, tokens, IGNORED)
    found = []
    for row_logits, target in zip(logits, labels, strict=True):
        if not has_targets:
            row_logits, target = row_logits[:-1], target[1:]
        found.append([torch.nn.functional.cross_entropy(row_logits, target).item()])
    return found


def scores_of(folder: Path, device: str, auto_class: str, activation: str) -> dict[str, Any]:
    """Returns the scores of the rows, as arguments of `publication.PlainScores`."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    lines = (folder / "gate.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    has_texts = activation in ACTIVATIONS
    outputs = len(rows[0]["scores"]) if has_texts else 0
    model, tokenizer = load(folder, auto_class, outputs)
    model = model.float().to(device).eval()

    def score(part: Rows) -> Scores:
        if has_texts:
            return activated(model, tokenizer, part, activation)
        return losses(model, tokenizer, part)

    retokenised = 0
    if has_texts:
        found = [tokenizer(*row["texts"], truncation=True)["input_ids"] for row in rows]
        retokenised = sum(ids != row["ids"] for ids, row in zip(found, rows, strict=True))
    with torch.inference_mode():
        alone = [scores for row in rows[:ALONE] for scores in score([row])]
        batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
        together = [scores for batch in batches for scores in score(batch)]
    return {"alone": alone, "together": together, "retokenised": retokenised}


if __name__ == "__main__":
    json.dump(scores_of(Path(sys.argv[1]), *sys.argv[2:]), sys.stdout)
