"""How many tokens a chat endpoint streams over HTTP to one user and to several.

    python benchmarks/chat_http.py --tokenizer DIR [--users 1 16 64] [--shape 100m] [--device cpu]
        [--seconds 10] [--processes 4] [--out FILE]

Serves a Llama with random weights in one process, as `winnow serve` does, and asks it from other
processes over loopback: prompts of 64 tokens, streamed answers of 128, each user again when the
answer is complete. Prints tokens per second of answers that were complete in time, and the median
and 95th percentile of the time to the first piece.
"""

import argparse
import asyncio
import json
import multiprocessing
import platform
import random
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.chat import ANSWER, PROMPT, SHAPES, build  # noqa: E402 - runs from a clone
from jobs.storage import manifest  # noqa: E402
from serve.config import ReplicaConfig  # noqa: E402
from serve.tools import local  # noqa: E402
from serve.version import ModelVersion  # noqa: E402

START_S = 300.0


def main() -> int:
    """Serves, and measures each number of users."""
    arguments = parse()
    results: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    machine = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor()
    results |= {"machine": machine, "shape": arguments.shape}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "models" / "chat" / ("0" * 12)
        build(folder, arguments)
        manifest.write(folder, {"base": ""})
        results |= measure_all(folder, arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--shape", choices=SHAPES, default="100m")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--processes", type=int, default=4, help="that ask")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def measure_all(folder: Path, arguments: Any) -> dict[str, Any]:
    """Rates by the number of users."""
    results: dict[str, Any] = {}
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = context.Process(target=serve, args=(folder, arguments.device, port), daemon=True)
    begin = time.monotonic()
    server.start()
    try:
        asyncio.run(answering(port))
        results["start_s"] = round(time.monotonic() - begin, 1)
        for users in arguments.users:
            results[str(users)] = measured(context, port, users, arguments)
            print(users, json.dumps(results[str(users)]), flush=True)
    finally:
        server.terminate()
        server.join(30)
    return results


def serve(folder: Path, device: Any, port: int) -> None:
    """Serves until it is ended."""
    version = ModelVersion(
        name="chat",
        id=folder.name,
        path=str(folder),
        labels=(),
        is_pair=False,
        max_length=256,
        task="causal-lm",
    )
    config = ReplicaConfig(version, device=device, threads=2, queue_tokens=10**9, timeout_s=600)
    local.run(config, "127.0.0.1", port, print)


async def answering(port: int) -> None:
    """Waits until the server answers."""
    async with aiohttp.ClientSession() as client:
        for _ in range(int(START_S)):
            try:
                async with client.get(f"http://127.0.0.1:{port}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(1)
    raise SystemExit(f"the server did not answer within {START_S:.0f} s")


def measured(context: Any, port: int, users: int, arguments: Any) -> dict[str, Any]:
    """Rates of some users, after a first answer of each."""
    count = min(arguments.processes, users)
    shares = [users // count + (number < users % count) for number in range(count)]
    words = arguments.tokenizer, arguments.seconds
    with context.Pool(count) as pool:
        parts = pool.starmap(ask, [(port, n, share, *words) for n, share in enumerate(shares)])
    firsts = [each for part in parts for each in part[1]]
    return {
        "tokens_per_s": round(sum(part[0] for part in parts) / arguments.seconds, 1),
        "first_piece_p50_s": round(float(np.quantile(firsts, 0.5)), 3),
        "first_piece_p95_s": round(float(np.quantile(firsts, 0.95)), 3),
    }


def ask(port: int, number: int, users: int, tokenizer: str, seconds: float) -> Any:
    """The tokens of complete answers, and the seconds to each first piece."""
    return asyncio.run(_ask(port, number, users, tokenizer, seconds))


async def _ask(
    port: int, number: int, users: int, tokenizer: str, seconds: float
) -> tuple[int, list[float]]:
    size = len(transformers.AutoTokenizer.from_pretrained(tokenizer))
    firsts, tokens, url = list[float](), [0], f"http://127.0.0.1:{port}/v1/completions"
    fixed: dict[str, Any] = {"max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    fixed |= {"stream": True, "stream_options": {"include_usage": True}}

    async def answer(client: aiohttp.ClientSession, draw: random.Random) -> int:
        ids, sent = [draw.randrange(10, size) for _ in range(PROMPT)], time.monotonic()
        read, is_first, last = 0, True, b""
        async with client.post(url, json={**fixed, "prompt": ids}) as found:
            async for line in found.content:
                if line.startswith(b"data: {"):
                    if is_first:
                        firsts.append(time.monotonic() - sent)
                    is_first, last = False, line
        read = json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"]
        return int(read)

    async def user(client: aiohttp.ClientSession, own: int) -> None:
        draw = random.Random(1000 * number + own)
        while time.monotonic() < ends:
            read = await answer(client, draw)
            tokens[0] += read if time.monotonic() < ends else 0

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        await answer(client, random.Random(number))
        firsts.clear()
        ends = time.monotonic() + seconds
        await asyncio.gather(*(user(client, own) for own in range(users)))
    return tokens[0], firsts


if __name__ == "__main__":
    sys.exit(main())
