"""Whether answers are lost, wrong or stuck while a chat endpoint is updated and a replica killed.

    python benchmarks/chat_faults.py [--requests 20000] [--clients 24] [--replicas 2] [--out FILE]

Trains two adapters of a tiny Llama with random weights by `winnow train`, and serves the first one
on a local cluster of our own. Clients ask without a pause: whole answers, streams, streams that
they leave behind the first words, stop strings, long prompts, several answers, seeded draws, and
either adapter by its name. Meanwhile, spread over the requests: limits changed in place, a rolling
update of the longest context, a canary in two steps to the second adapter, a rollback, and a
replica killed. Greedy answers must be those that peft and transformers write for the version that
the response names. An answer that took a minute is stuck; a stream that the killed replica had
begun may break.
Prints what failed, what was wrong, and the memory of the replicas; the exit code tells.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import peft  # noqa: E402
import psutil  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.chat_clients import ANSWER, CONTEXT, Clients, questions  # noqa: E402
from benchmarks.serve_faults import kill, say, utc  # noqa: E402
from cluster import local, session  # noqa: E402
from jobs.spec.serve import ServeSpec  # noqa: E402
from jobs.storage.storage import open_storage  # noqa: E402
from orchestrator.execution import quiet_libraries  # noqa: E402
from orchestrator.records import registry  # noqa: E402
from serve.tools.load_generator import sentences  # noqa: E402
from serve.version import ModelVersion  # noqa: E402

NAME, ROUTE, SETTLE_S = "chat-faults", "/faults", 8.0
JOB = """\
version: 1
name: {name}
storage: {home}/storage
model:
  base: {home}/base
  task: causal-lm
  adapter: {{type: lora, r: 8, dropout: 0.0, merge: false}}
data:
  train: {{path: {home}/rows.jsonl}}
  eval: {{path: {home}/eval.jsonl}}
  messages: messages
  max_length: 128
train: {{epochs: 2, global_batch_size: 8, micro_batch_size: 8, precision: fp32}}
resources: {{any_of: [{{accelerators: "cpu:1"}}]}}
"""


def main() -> int:
    """Serves two adapters, disturbs the endpoint while clients ask, and prints the faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    quiet_libraries()
    above = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{above}" if above else str(ROOT)
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        os.environ["WINNOW_HOME"] = home
        try:
            versions = trained(Path(home))
            known = {version.id: answers_of(version) for version in versions}
            with session.connect() as cluster:
                found = asyncio.run(disturb(versions, known, arguments, cluster.serve_port))
        finally:
            local.stop()
    found |= {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
        "replicas": arguments.replicas,
        "clients": arguments.clients,
    }
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return int(bool(found["wrong"] or found["stuck"] or found["failed"]))


def trained(home: Path) -> list[ModelVersion]:
    """Two published adapters of one base."""
    base, rows = home / "base", home / "rows.jsonl"
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(sentences(), trainer)
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named)
    tokenizer.save_pretrained(base)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"max_position_embeddings": 2 * CONTEXT, "initializer_range": 0.15}
    config = transformers.LlamaConfig(**sizes, **heads, **more, vocab_size=len(tokenizer))
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(base)
    texts = sentences()[:64]
    lines = [
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": text[:40]},
                    {"role": "assistant", "content": text[40:90] or "yes"},
                ]
            }
        )
        for text in texts
    ]
    rows.write_text("\n".join(lines[:48]) + "\n", encoding="utf-8")
    (home / "eval.jsonl").write_text("\n".join(lines[48:]) + "\n", encoding="utf-8")
    path = home / "job.yaml"
    path.write_text(JOB.format(name=NAME, home=home), encoding="utf-8")
    for lr in ("1e-2", "3e-2"):
        words_ = [sys.executable, "-m", "orchestrator", "train", str(path)]
        subprocess.run([*words_, "--set", f"train.optimizer.lr={lr}"], check=True)
    return [version for version, _ in registry.every(open_storage(home / "storage"))][::-1]


def answers_of(version: ModelVersion) -> list[str]:
    """The greedy answers of peft and transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    model = peft.AutoPeftModelForCausalLM.from_pretrained(version.path).eval()
    found = []
    for question in questions():
        given = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        settings = {"do_sample": False, "max_new_tokens": ANSWER, "pad_token_id": 0}
        ids = model.generate(**given, **settings)[0, given["input_ids"].shape[1] :]
        found.append(tokenizer.decode(ids, skip_special_tokens=True).rstrip("\ufffd"))
    return found


async def disturb(
    versions: Sequence[ModelVersion], known: dict[str, list[str]], arguments: Any, port: int
) -> dict[str, Any]:
    """One thing after another, while clients ask."""
    from cluster import discovery
    from serve.deploy import deployment

    old, new = versions

    def deploy(version: ModelVersion, **fields: Any) -> None:
        copies = {"min": arguments.replicas, "max": arguments.replicas}
        values = {"route": ROUTE, "replicas": copies, "max_context": CONTEXT, **fields}
        values["limits"] = {"timeout": "55s"}
        deployment.deploy(
            version,
            ServeSpec.model_validate(values),
            discovery.discover(),
            port=port,
            find_version=lambda _, identity: {each.id: each for each in versions}[identity],
            log=say,
        )

    rollout = {"steps": [50, 100], "hold": "5s", "gate": ["latency<=20"]}
    events: list[tuple[str, Callable[[], object]]] = [
        ("limits", lambda: deploy(old, batching={"max_batch_size": 12})),
        ("rolling update", lambda: deploy(old, max_context=CONTEXT + 64)),
        ("canary", lambda: deploy(new, rollout=rollout)),
        ("rollback", lambda: deploy(old)),
        ("replica killed", lambda: kill("ray::ServeReplica")),
    ]
    await asyncio.to_thread(deploy, old)
    asking = Clients(f"http://127.0.0.1:{port}{ROUTE}", versions, known)
    memory, happened = list[dict[str, Any]](), list[dict[str, Any]]()
    tasks = [asyncio.create_task(asking.keep_asking(n)) for n in range(arguments.clients)]

    begin = time.time()
    for number, (name, act) in enumerate(events, start=1):
        await asking.until(arguments.requests * number // (len(events) + 1))
        memory.append({"before": name, "mib": replica_mib(), "asked": asking.asked.total()})
        say(name)
        asking.event = name
        since = time.time()
        await asyncio.to_thread(act)
        happened.append({"event": name, "at": utc(since), "took_s": time.time() - since})
        await asyncio.sleep(SETTLE_S)
        memory.append({"after": name, "mib": replica_mib(), "asked": asking.asked.total()})
    await asking.until(arguments.requests)
    asking.ending.set()
    await asyncio.gather(*tasks)
    memory.append({"after": "all", "mib": replica_mib(), "asked": asking.asked.total()})
    return asking.found(time.time() - begin) | {"memory": memory, "events": happened}


def replica_mib() -> list[int]:
    """Resident memory of the replicas."""
    running, found = local.running(), list[int]()
    assert running is not None
    for process in psutil.Process(running.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "".join(process.cmdline()[:1]).startswith("ray::ServeReplica"):
                found.append(process.memory_info().rss // 2**20)
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
