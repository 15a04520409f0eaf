"""How many tokens a language model's endpoint writes for one user and for several.

    python benchmarks/chat.py --tokenizer DIR [--users 1 8] [--shape 100m] [--device cpu]
        [--seconds 20] [--out FILE]

Builds a Llama with random weights, and asks its generator, without HTTP, from so many users at
once, each of whom asks again when the answer is complete: prompts of 64 tokens, answers of 128. By
turns answers are written together, and one after the other by transformers' `generate`.
Prints tokens per second, the 95th percentile of the time to the first piece, and the ratio.
"""

import argparse
import asyncio
import json
import platform
import random
import sys
import tempfile
import time
import unittest.mock
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import language_models  # noqa: E402 - runs from a clone, installed or not
from jobs.spec.train import Precision  # noqa: E402
from serve.tasks.causal_lm import decoding  # noqa: E402
from serve.tasks.causal_lm.answer import Settings  # noqa: E402
from serve.tasks.causal_lm.generator import Generator  # noqa: E402

PROMPT, ANSWER = 64, 128
"""Tokens of each prompt, and of each answer."""
ROUNDS = 2
SHAPES: dict[str, dict[str, int]] = {
    "260k": {
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 172,
    },
    "100m": {
        "hidden_size": 768,
        "num_hidden_layers": 10,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
    },
    "1.1b": {k: v for k, v in language_models.SHAPES["1.1b"].items() if k != "vocab_size"},
}


def main() -> int:
    """Measures each number of users, together and alone by turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--shape", choices=SHAPES, default="100m")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    machine = torch.cuda.get_device_name() if cuda else platform.processor()
    results: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    results["machine"] = machine
    with tempfile.TemporaryDirectory() as place:
        build(Path(place), arguments)
        for users in arguments.users:
            found: dict[str, list[dict[str, float]]] = {"together": [], "alone": []}
            for _ in range(ROUNDS):
                for how, rates in found.items():
                    rates.append(measured(Path(place), users, how, arguments))
            rate = {how: max(each["tokens_per_s"] for each in all_) for how, all_ in found.items()}
            results[str(users)] = {**found, "ratio": rate["together"] / rate["alone"]}
            print(users, json.dumps(results[str(users)]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def build(folder: Path, arguments: argparse.Namespace) -> None:
    """A model and its tokenizer in a folder."""
    words = transformers.AutoTokenizer.from_pretrained(arguments.tokenizer)
    config = transformers.LlamaConfig(
        **SHAPES[arguments.shape], vocab_size=len(words), eos_token_id=None
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words.save_pretrained(folder)


def measured(folder: Path, users: int, how: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Rates of some users over the seconds, after a first answer."""
    precision: Precision = "bf16" if arguments.device == "cuda" else "fp32"
    judge = decoding.reason_for_one_by_one if how == "together" else (lambda _: "measured")
    with unittest.mock.patch.object(decoding, "reason_for_one_by_one", judge):
        made = Generator(
            folder, "AutoModelForCausalLM", arguments.device, precision, arguments.threads, 10**9
        )
        found = asyncio.run(asked(made, users, arguments.seconds))
        made.close()
    return found


async def asked(made: Generator, users: int, seconds: float) -> dict[str, float]:
    """Asks from all users until the time is over."""
    size, firsts, tokens = len(made.tokenizer), list[float](), [0]
    settings = Settings(ANSWER, temperature=0)
    begin = ends = 0.0

    async def user(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < ends:
            ids = [draw.randrange(1000, size) for _ in range(PROMPT)]
            sent, is_first, known = time.monotonic(), True, 0
            async for piece in made.write(ids, settings, 600):
                if is_first:
                    firsts.append(time.monotonic() - sent)
                is_first = False
                tokens[0] += (piece.tokens - known) if time.monotonic() < ends else 0
                known = piece.tokens

    async for _ in made.write([5] * PROMPT, Settings(2, temperature=0), 600):
        pass
    begin = time.monotonic()
    ends = begin + seconds
    await asyncio.gather(*(user(number) for number in range(users)))
    return {
        "tokens_per_s": round(tokens[0] / seconds, 1),
        "first_piece_p95_s": round(float(np.quantile(firsts, 0.95)), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
