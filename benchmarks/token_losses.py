"""Memory and time of a language model's loss: logits of all tokens beside logits in pieces.

    python benchmarks/token_losses.py [--vocabulary 128256] [--hidden 256] [--rows 8] [--tokens 512]
        [--out FILE]

A Llama of two layers with random weights computes loss and gradients of rows of which half the
tokens count, twice, in a process for each way; the second time is told. Memory is the largest that
the process had (CPU) or the device gave (GPU), less what it had before the loss.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from jobs.tasks.causal_lm.training import next_tokens  # runs from a clone, installed or not
from jobs.training import token_losses

GIB = 2**30
WAYS = ("whole", "pieces")
SIZES = {"vocabulary": 128_256, "hidden": 256, "rows": 8, "tokens": 512}


def main() -> int:
    """Measures both ways, and exits with 1 if their losses differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = {name: getattr(arguments, name) for name in SIZES}
    if arguments.way:
        print(json.dumps(measured(arguments.way, **sizes)))
        return 0
    found = {}
    for way in WAYS:
        same = [sys.executable, __file__, "--way", way]
        options = [f"--{name}={value}" for name, value in sizes.items()]
        ran = subprocess.run([*same, *options], check=True, capture_output=True, text=True)
        found[way] = json.loads(ran.stdout.splitlines()[-1])
        print(way, found[way], flush=True)
    if arguments.out:
        text = json.dumps({"sizes": sizes, **found}, indent=1)
        arguments.out.write_text(f"{text}\n", encoding="utf-8")
    one, other = (found[way]["loss"] for way in WAYS)
    return int(abs(one - other) > 1e-3 * abs(one))


def measured(way: str, *, vocabulary: int, hidden: int, rows: int, tokens: int) -> dict[str, Any]:
    """Returns loss, seconds and GiB of one way."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).to(device)
    ids = torch.randint(3, vocabulary, (rows, tokens), device=device)
    counts = (torch.rand(ids.shape, device=device) < 0.5).long()
    batch = {"input_ids": ids, "loss_mask": counts, "attention_mask": torch.ones_like(ids)}
    few = {name: tensor[:1, :8] for name, tensor in batch.items()}
    layer = token_losses.WHOLE if way == "whole" else token_losses.find(model, *next_tokens(few))
    layer = layer.bounded(int(counts.sum()))
    before, seconds, loss = peak_gib(device), 0.0, torch.zeros(())
    for _ in range(2):
        model.zero_grad()
        begin = time.perf_counter()
        loss = layer.predict(model, *next_tokens(batch)).losses.sum()
        torch.autograd.backward(loss)
        total = float(loss)  # waits for the device
        seconds = time.perf_counter() - begin
    gib = peak_gib(device) - before
    return {"loss": total, "seconds": round(seconds, 3), "gib": round(gib, 2)}


def peak_gib(device: torch.device) -> float:
    """Returns the most memory of this process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


if __name__ == "__main__":
    sys.exit(main())
