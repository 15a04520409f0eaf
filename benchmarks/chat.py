"""How many tokens a language model's endpoint writes for one user and for several.

    python benchmarks/chat.py --tokenizer DIR [--users 1 8] [--shape 100m] [--device cpu]
        [--seconds 20] [--out FILE]

Builds a Llama with random weights, and asks its generator, without HTTP, from so many users at
once, each of whom asks again when the answer is complete: prompts of 64 tokens, answers of 128. By
turns answers are written by the batch that a replica chooses, by the one of any device (`padded`),
and one after the other by transformers' `generate` (`alone`). `continuous` is transformers'
continuous batching, as it comes, of as many prompts as there are users, on a GPU. `adapters` is
`together` with eight adapters of rank 16 of all linear layers, which users ask for in turn, and
`openvino` OpenVINO GenAI in fp32, on a CPU.
Prints tokens per second, the 95th percentile of the time to the first piece, and the ratio of the
replica's choice to `alone`.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import language_models  # noqa: E402 - runs from a clone, installed or not
from jobs.spec.train import Precision  # noqa: E402
from serve.engines.generating import choice  # noqa: E402
from serve.engines.generating.adapters import Adapted, Adapter, LowRank  # noqa: E402
from serve.engines.generating.padded_batch import PaddedBatch  # noqa: E402
from serve.tasks.causal_lm.answer import Settings  # noqa: E402
from serve.tasks.causal_lm.generator import Generator  # noqa: E402
from serve.tasks.causal_lm.outside_engine import Limits  # noqa: E402
from serve.tasks.causal_lm.text_engine import TextEngine  # noqa: E402

PROMPT, ANSWER = 64, 128
"""Tokens of each prompt, and of each answer."""
MODES = ("together", "adapters", "openvino", "padded", "alone", "continuous")
SLOTS, RANK = 8, 16
"""Adapters of the mode `adapters`, and their rank."""
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
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["together", "alone"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    machine = torch.cuda.get_device_name() if cuda else platform.processor()
    results: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    results["machine"] = machine
    with tempfile.TemporaryDirectory() as place:
        build(Path(place), arguments)
        for users in arguments.users:
            found: dict[str, Any] = {how: [] for how in arguments.modes}
            for _ in range(arguments.rounds):
                for how in arguments.modes:
                    found[how].append(measured(Path(place), users, how, arguments))
            rate = {how: max(each["tokens_per_s"] for each in all_) for how, all_ in found.items()}
            if {"together", "alone"} <= set(rate):
                found["ratio"] = rate["together"] / rate["alone"]
            results[str(users)] = found
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


def measured(folder: Path, users: int, how: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates of some users over the seconds, after a first answer."""
    if how == "continuous":
        return continuous(folder, users, arguments.seconds)
    if how == "openvino":
        return by_openvino(folder, users, arguments)
    precision: Precision = "bf16" if arguments.device == "cuda" else "fp32"
    choices: dict[str, Any] = {
        "together": choice.choose,
        "adapters": choice.choose,
        "padded": lambda model, **_: (PaddedBatch(model, choice.padded_room(model)), ""),
        "alone": lambda *_, **__: (None, "measured"),
    }
    known = adapters_of(folder) if how == "adapters" else []
    adapted = Adapted(folder, known[0], SLOTS, RANK) if known else None
    with unittest.mock.patch.object(choice, "choose", choices[how]):
        begin = time.monotonic()
        made = Generator(
            folder,
            "AutoModelForCausalLM",
            arguments.device,
            precision,
            arguments.threads,
            10**9,
            batch_rows=max(64, users),
            adapted=adapted,
        )
        start_s = time.monotonic() - begin
        found = asyncio.run(asked(made, users, arguments.seconds, known))
        made.close()
    return {**found, "engine": made.engine, "start_s": round(start_s, 1)}


def by_openvino(folder: Path, users: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates of OpenVINO GenAI."""
    from serve.tasks.causal_lm.openvino_engine import OpenVinoEngine

    limits, begin = Limits(2 * (PROMPT + ANSWER), max(64, users), 10**9), time.monotonic()
    made = OpenVinoEngine(folder, folder / "exports", limits, arguments.threads)
    start_s = time.monotonic() - begin
    found = asyncio.run(asked(made, users, arguments.seconds))
    made.close()
    return {**found, "engine": made.engine, "start_s": round(start_s, 1)}


def adapters_of(folder: Path) -> list[Adapter]:
    """Returns SLOTS adapters with random weights for every linear layer except the output layer."""
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(config)
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }
    return [
        Adapter(
            f"random@{number}",
            {
                name: LowRank(
                    torch.randn(RANK, each.in_features) * 0.02,
                    torch.randn(each.out_features, RANK) * 0.02,
                )
                for name, each in linear.items()
            },
        )
        for number in range(SLOTS)
    ]


def continuous(folder: Path, users: int, seconds: float) -> dict[str, Any]:
    """Rates of transformers' continuous batching: all prompts at once, again and again."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.to("cuda").eval()
    draw = random.Random(0)
    size = model.config.vocab_size
    settings = transformers.GenerationConfig(
        max_new_tokens=ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    tokens, begin = 0, time.monotonic()
    for number in range(1000):
        asked = [[draw.randrange(1000, size) for _ in range(PROMPT)] for _ in range(users)]
        found = model.generate_batch(asked, generation_config=settings, progress_bar=False)
        if not number:  # the first one loads kernels
            begin = time.monotonic()
            continue
        tokens += sum(len(each.generated_tokens) for each in found.values())
        if time.monotonic() > begin + seconds:
            break
    return {"tokens_per_s": round(tokens / (time.monotonic() - begin), 1)}


async def asked(
    made: TextEngine, users: int, seconds: float, known: Sequence[Adapter] = ()
) -> dict[str, Any]:
    """Asks from all users until the time is over."""
    size, firsts, tokens = len(made.tokenizer), list[float](), [0]
    settings = Settings(ANSWER, temperature=0)
    begin = ends = 0.0

    async def user(number: int) -> None:
        draw, own = random.Random(number), known[number % len(known)] if known else None
        while time.monotonic() < ends:
            ids = [draw.randrange(1000, size) for _ in range(PROMPT)]
            sent, is_first, before = time.monotonic(), True, 0
            async for piece in made.write(ids, settings, 600, own):
                if is_first:
                    firsts.append(time.monotonic() - sent)
                is_first = False
                tokens[0] += (piece.tokens - before) if time.monotonic() < ends else 0
                before = piece.tokens

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
