"""Scores the evaluation rows in a model's folder with transformers and peft only.

It runs by its path, in its own process, and imports nothing of this project, as any other user of
the folder. Arguments: the device, the class of transformers that loads the model, and the
activation of its logits (softmax, sigmoid, identity, vector for pooled vectors of texts,
token-softmax for the probabilities of the first labelled tokens, or token-loss for the mean loss of
the trained tokens, or of the target where rows have one). Waits until the folder's path is
written to its standard input, and that is closed; an empty input ends it. Prints JSON: the scores
of the first rows one by one and of all rows in padded batches, and the number of texts that are
tokenised otherwise than in training.
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
PEFT_CLASSES = {"AutoModel": "AutoPeftModelForFeatureExtraction"}
"""Classes of peft by those of transformers, where their names do not correspond."""
Rows = list[dict[str, Any]]
Scores = list[Any]
"""One list for each row; with lists of a token's scores inside if each token has its own."""


ACTIVATIONS = {
    "softmax": lambda logits: logits.softmax(dim=-1),
    "sigmoid": torch.sigmoid,
    "identity": lambda logits: logits,
    "token-softmax": lambda logits: logits.softmax(dim=-1),
}


def load(folder: Path, auto_class: str, outputs: int) -> tuple[Any, Any]:
    """Loads the model, as its model card says, and its tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if not (folder / "adapter_config.json").exists():
        return getattr(transformers, auto_class).from_pretrained(folder), tokenizer
    import peft

    kind = getattr(peft, PEFT_CLASSES.get(auto_class, auto_class.replace("Auto", "AutoPeft", 1)))
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
    scores = score(logits.float())
    if scores.dim() == 2:
        return list(scores.tolist())
    pairs = zip(rows, scores, inputs["attention_mask"].bool(), strict=True)
    return [of_tokens(row, found[is_real]) for row, found, is_real in pairs]


def of_tokens(row: dict[str, Any], scores: torch.Tensor) -> Scores:
    """Returns the scores of the labelled tokens that were kept; `scores` is (tokens, labels)."""
    labels = row["token_labels"]
    labelled = [at for at, label in enumerate(labels) if label != IGNORED][: len(row["scores"])]
    return list(scores[[at for at in labelled if at < len(scores)]].tolist())


def vectors(model: Any, tokenizer: Any, rows: Rows, folder: Path) -> Scores:
    """Returns the vector of each row's first text, pooled as `modules.json` of the folder says."""
    texts = [row["texts"][0] for row in rows]
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(model.device)
    hidden = model(**inputs).last_hidden_state.float()
    mask = inputs["attention_mask"][:, :, None].float()
    pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    settings = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    if settings["pooling_mode_cls_token"]:
        first = mask[:, :, 0].argmax(dim=1)
        pooled = hidden[torch.arange(len(rows), device=hidden.device), first]
    if "Normalize" in (folder / "modules.json").read_text(encoding="utf-8"):
        pooled = torch.nn.functional.normalize(pooled, dim=-1)
    found: Scores = pooled.tolist()
    return found


def target_losses(model: Any, tokenizer: Any, rows: Rows) -> Scores:
    """Returns the mean loss of each row's target, which the model itself shifts."""
    sources = [row["texts"][0] for row in rows]
    inputs = tokenizer(sources, padding=True, truncation=True, return_tensors="pt").to(model.device)
    width = max(len(row["targets"]) for row in rows)
    filled = [row["targets"] + [IGNORED] * (width - len(row["targets"])) for row in rows]
    labels = torch.tensor(filled, device=model.device)
    logits = model(**inputs, labels=labels).logits.float()
    loss = torch.nn.functional.cross_entropy
    return [[loss(*pair).item()] for pair in zip(logits, labels, strict=True)]


def losses(model: Any, tokenizer: Any, rows: Rows) -> Scores:
    """Returns the mean loss of each row's trained tokens."""
    padded = tokenizer.pad({"input_ids": [row["ids"] for row in rows]}, return_tensors="pt")
    ids, mask = padded["input_ids"].to(model.device), padded["attention_mask"].to(model.device)
    is_masked = bool(rows[0].get("originals"))  # a token is predicted at its own place
    settings = {} if is_masked else {"use_cache": False}
    logits = model(input_ids=ids, attention_mask=mask, **settings).logits.float()
    labels = torch.full_like(ids, IGNORED)
    for row, target, real in zip(rows, labels, mask.bool(), strict=True):
        trained = torch.tensor(row["trained"], device=ids.device, dtype=torch.bool)
        tokens = torch.tensor(row["originals"] if is_masked else row["ids"], device=ids.device)
        target[real] = torch.where(trained, tokens, IGNORED)
    found = []
    for row_logits, target in zip(logits, labels, strict=True):
        if not is_masked:
            row_logits, target = row_logits[:-1], target[1:]
        found.append([torch.nn.functional.cross_entropy(row_logits, target).item()])
    return found


def outputs_of(scores: Scores) -> int:
    """Returns the number of outputs of a model, from the scores of a row."""
    return len(scores[0] if isinstance(scores[0], list) else scores)


def scores_of(folder: Path, device: str, auto_class: str, activation: str) -> dict[str, Any]:
    """Returns the scores of the rows, as arguments of `publication.PlainScores`."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    lines = (folder / "gate.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    is_vector = activation == "vector"
    has_texts = bool(rows[0]["texts"])
    outputs = outputs_of(rows[0]["scores"]) if activation in ACTIVATIONS else 0
    model, tokenizer = load(folder, auto_class, outputs)
    model = model.float().to(device).eval()

    def score(part: Rows) -> Scores:
        if is_vector:
            return vectors(model, tokenizer, part, folder)
        if activation in ACTIVATIONS:
            return activated(model, tokenizer, part, activation)
        return (target_losses if part[0].get("targets") else losses)(model, tokenizer, part)

    retokenised = 0
    if has_texts:
        texts = [row["texts"][:1] if is_vector else row["texts"] for row in rows]
        found = [tokenizer(*each, truncation=True)["input_ids"] for each in texts]
        retokenised = sum(ids != row["ids"] for ids, row in zip(found, rows, strict=True))
    with torch.inference_mode():
        alone = [scores for row in rows[:ALONE] for scores in score([row])]
        batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
        together = [scores for batch in batches for scores in score(batch)]
    return {"alone": alone, "together": together, "retokenised": retokenised}


if __name__ == "__main__":
    if folder := sys.stdin.read():
        json.dump(scores_of(Path(folder), *sys.argv[1:]), sys.stdout)
