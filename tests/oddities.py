"""What a user may write by mistake: odd labels, texts, turns, options, files and job files."""

import gzip
import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

HUGE = 10**30
LABELS: Sequence[Sequence[Any]] = (
    *(["no", "yes"], [0, 1], [1, 2, 7], [True, False], ["01", "1"], ["²", "1"], ["²", "³"]),
    *(["", "a"], [None, "a", "b"], [HUGE, 1], [1.5, 2.0], [1.0, 2.0], [["a"], "b"], [{"a": 1}]),
    *(["a"], [None], ["a", 1], [" a", "a"], ["a\nb", "b"], ["nan", "None"], ["\x00", "b"]),
    *(
        ["\ud800", "a"],
        ["a" * 5000, "b"],
        ["🙂", "ß"],
        [[], []],
        [math.inf, 1],
        ["\u0661", "\u0662"],
    ),
    *(["[bold]", "[/]"], ["{0}", "%s"], [0.1, True], [10**19, -(10**19)], ["-", "+"], [-1, 0]),
)
TEXTS: Sequence[Any] = (
    *("a superb film", "", " ", "\n", "x" * 20_000, "word " * 5000, "\ud800", "a\x00b", "\ufeff"),
    *(None, 5, 1.5, True, ["a"], {"a": 1}, HUGE, "🙂", "\u202e", "<s></s><pad>", "[MASK]", '"'),
)
YES = {"role": "assistant", "content": "Yes."}
TURNS: Sequence[Any] = (
    *("", None, 5, [], {}, [[]], [None], ["hello"], [{}], [{"role": "user"}], {"role": "user"}),
    *([YES], [{**YES, "content": ""}], [{**YES, "content": None}], [{"role": "system"}, YES]),
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    [{"role": "user", "content": "Is it?"}],
    [YES, {"role": "user", "content": "Is it?"}],
    [{"role": "system", "content": "Be."}, YES],
    [{"role": "robot", "content": "Is it?"}, YES],
    [{"role": "user", "content": 5}, YES],
    [{"role": "user", "content": [{"type": "text", "text": "Is it?"}]}, YES],
    [{"role": "user", "content": "\ud800"}, YES],
    [{"role": "user", "content": "Is it?"}, {**YES, "content": "a\x00b"}],
    [{"role": "user", "content": "Is it?"}, {**YES, "content": "x" * 20_000}],
    [{"role": ["user"], "content": "Is it?"}, YES],
    [{"from": "human", "value": "Is it?"}, {"from": "gpt", "value": "Yes."}],
    [{"role": "user", "content": "a", "n": 1}, {**YES, "n": "x"}],
    [{"role": "user", "content": "a"}, {**YES, "tool_calls": [{"function": 1}]}],
)
VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 1.5, 10**9, HUGE, 1e-300, math.nan, math.inf),
    *("", " ", "auto", "1", "on", "a: b", "²", "\x00", "x" * 3000, "../..", "s3://a/b", "[/red]"),
    *([], [1], [None], [[]], ["a", "a"], {}, {"a": 1}, {"": ""}, {"a": {"b": [{}]}}, "\ud800"),
)
"""What may be written for any field, whatever its type."""
UNKNOWN = (
    *(
        "lr",
        "train.lr",
        "trian",
        "data.test",
        "model.quantization",
        "model.adapter.modules_to_save",
    ),
    *("a.b", "", "data.train.format", "[red]", "train.eval.every.steps", "version.a"),
)
"""Keys that no job has."""
LORA = {"type": "lora", "r": 4, "alpha": 8}
TARGETS: Sequence[Any] = (
    *("all-linear", ["query"], ["q_proj", "v_proj"], ["nothing"], [""], [], "query", ["c_attn"]),
    *(["query", "nothing"], ["classifier"], ["score"], ["lm_head"], ["embeddings"], ["wte"], ["("]),
    *(["word_embeddings"], ["LayerNorm"], ["dense"], ["pooler.dense"], ["bert"], ["q", "v"], ["k"]),
    *(["in_proj"], ["embed_tokens"], ["attention"], ["query_key_value"], ["all-linear"], [".*"]),
    *(["0"], ["dropout"], ["in_proj", "x_proj"], ["conv1d"], ["q_proj", "lm_head"]),
)
SPACES: Sequence[Any] = (
    *({}, {"train.optimizer.lr": [1e-3, 1e-4]}, {"model.dropout": [0.0, 0.1, "x"]}, {"": [1]}),
    *({"train.optimizer.lr": {"loguniform": [1e-5, 1e-3]}}, {"train.epochs": [1]}, {"train": [1]}),
    *({"train.optimizer.lr": {"uniform": [0, 1e-3]}}, {"train.precision": ["fp32", "bf16"]}),
    *({"train.micro_batch_size": {"uniform": [1, 4]}}, {"model.base": ["bert"]}, {"a.b.c": [1]}),
    *({"train.micro_batch_size": [1, 2, 3]}, {"train.precision": [True]}, {"model.dropout": [0]}),
    *({"train.optimizer.lr": {"loguniform": [-1, 1]}}, {"train.optimizer.lr": [math.nan]}),
    *({"train.lr_schedule.type": ["linear", 1]}, {"train.lr_schedule.warmup_ratio": [0, 1, 2]}),
    *({"train.optimizer.lr": {"uniform": [1]}}, {"train.optimizer.lr": {}}, {"model.dropout": {}}),
)
SWEEPS: Sequence[Any] = (
    *({"objective": {"maximize": "accuracy"}}, {"objective": {"maximize": "loss"}}, {"trials": 0}),
    *({"objective": {"minimize": "time", "subject_to": {"accuracy": ">=0.9"}}}, {"trials": 9999}),
    *({"objective": {"minimize": "cost", "subject_to": {"time": "<=1e999m"}}}, {"trial_share": 0}),
    *({"objective": {"minimize": "cost", "subject_to": {"cost": ">"}}}, {"probe": {"confirm": 9}}),
    *({"objective": {"minimize": "cost", "subject_to": {"time": f"<={'9' * 400}d"}}},),
)
ROUTES = ("/a", "/", "a", "/Ä", "/a//b/", "/..", "/a?b", "/predict", "/_v")
PLACES = ("cpu:1", "cpu:2", "T4", "T4:2", "cpu:0", "cpu:99999", "", "²:²", "CPU", "T4:4 ")
OPTIONS: Sequence[tuple[str, Sequence[Any]]] = (
    ("model.dropout", (0.0, 0.3, 0.999, 1.0)),
    ("model.adapter", (LORA, {**LORA, "merge": True}, {**LORA, "dropout": 0.0}, {"type": "dora"})),
    ("model.adapter", [{**LORA, "target_modules": names} for names in TARGETS]),
    ("model.adapter", [{**LORA, "target_modules": names, "merge": True} for names in TARGETS]),
    ("model.adapter", ({**LORA, "r": 1024, "alpha": 1e30}, {**LORA, "alpha": 1e-300}, LORA)),
    ("model.task", ("text-classification", "causal-lm", "token-classification", "")),
    ("data.text", ("text", "label", ["text", "label"], ["text", "text"], ["text"], "Text", "")),
    ("data.label", ("label", "text", "Label", "", "[red]")),
    ("data.label", (["label", "other"], ["label", "label"], ["text", "label"], ["label"])),
    ("data.problem", ("single-label", "multi-label", "regression", "multilabel")),
    ("data.separator", (",", " ", "", "many characters")),
    ("data.positive", ("positive", "no label", 1)),
    ("data.class_weights", ("balanced", {"positive": 2.0}, {"nobody": 1.0}, {"positive": 0})),
    ("data.label_smoothing", (0.0, 0.1, 1.0)),
    ("data.loss", ("mse", "huber", "mae")),
    ("model.task", ("text-classification/regression", "text-classification/", "causal-lm/a")),
    ("data.packing", (True, False)),
    ("data.max_length", (1, 4, 5, 16, 128, 129, 131_072, 10**9)),
    ("data.prompt", ("prompt", "response", "nothing")),
    ("data.response", ("response", "prompt", "nothing")),
    ("data.messages", ("messages", "prompt", "nothing")),
    ("data.train.split", ("train", "test", "train[:1]", "")),
    ("data.train.path", ("*.csv", "[", "**", "none.csv", "./", "/", "a\x00.csv", "~nobody/a.csv")),
    ("data.train.path", ("models/bert", "./models/bert", "x" * 500 + ".csv", "http://a", "[].csv")),
    ("data.train.path", (["train.csv", "eval.csv"], ["**/*.csv"], ["./"], ["train.jsonl"] * 2)),
    ("data.train.path", ("./saved/null", "./saved/negative", "./saved/splits", "./saved/torn")),
    ("train.epochs", (0, 0.01, 1, 2.5, 10_000, 10**9)),
    ("train.global_batch_size", (0, 1, 2, 3, 7, 32, 1_048_576, 10**9)),
    ("train.micro_batch_size", (0, 1, 2, 3, 5, 32, "auto", 10**9)),
    ("train.precision", ("auto", "fp32", "bf16", "fp16", "tf32", "fp8", True)),
    ("train.strategy", ("ddp", "zero2", "zero3", "fsdp")),
    ("train.cpu_offload", (True, False)),
    ("train.gradient_checkpointing", (True, False)),
    ("train.compile", (True, False, "auto", "never")),
    ("train.optimizer.name", ("adamw", "sgd")),
    ("train.optimizer.lr", (0.0, 1e-300, 1e-5, 10.0, 11.0, -1.0, math.nan, math.inf, 1e30)),
    ("train.optimizer.weight_decay", (0.0, 1.0, 2.0)),
    ("train.optimizer.max_grad_norm", (0.0, 1e-300, 1e300)),
    ("train.lr_schedule", ({"type": "cosine"}, {"type": "constant", "warmup_ratio": 1.0}, {})),
    ("train.eval.every", ("1steps", "0.001epoch", "1ms", "9" * 20 + "d", "0s", "1e3steps")),
    ("train.eval.every", (f"{'9' * 400}steps", f"{'9' * 400}epochs", "0.5steps", "1e400d")),
    ("train.eval.metrics", (["accuracy"], ["mcc", "f1"], ["perplexity"], ["token_accuracy"], [])),
    ("train.eval.metrics", (["repetition", "distinct_1"], ["accuracy", "accuracy"], ["bleu"])),
    ("train.checkpoint", ({"keep": 1}, {"max_size": "1"}, {"max_size": "1EiB"}, {"every": "5s"})),
    ("train.checkpoint", ({"max_size": 1e300}, {"max_size": "many"}, {"every": "0.5epoch"})),
    ("train.checkpoint", ({"max_size": -1}, {"max_size": 10**30}, {"max_size": "inf"})),
    ("train.retry", ({}, {"on_events": ["oom"]}, {"max_attempts": 0})),
    ("train.min_workers", (1, 2, 10**9)),
    ("train.hang_after", ("1h", "1s", "999999999d", "1e9d", "9" * 400 + "d")),
    ("resources", [{"any_of": [{"accelerators": name}]} for name in PLACES]),
    ("resources", [{"ordered": [{"accelerators": {name: 1}}]} for name in PLACES]),
    ("resources", ({}, {"any_of": [{"accelerators": "cpu:1"}], "max_hourly_cost": 1e-9})),
    ("prices", ({"cpu": 0}, {"T4": 1e300}, {"cpu": -1}, {"": 1}, {"[red]": 1}, {"cpu": "free"})),
    ("owned", ({"cpu": {"purchase": 1, "life": "1ms"}}, {"cpu": {"purchase": 1e308}})),
    ("owned", ({"cpu": {"purchase": 1, "life": "0s"}}, {"cpu": {"purchase": 1, "busy": 1e-300}})),
    ("budget", ({"max_cost": 1e-9}, {"max_cost": 0}, {"max_duration": "1s"}, {"max_duration": 5})),
    ("serve", [{"route": route} for route in ROUTES]),
    ("serve", ({"route": "/a", "engine": "onnx-int8"}, {"route": "/a", "precision": "fp16"})),
    ("serve", ({"route": "/a", "slo": {"error_rate": "<1e"}}, {"route": "/a", "grpc": True})),
    ("serve", ({"route": "/a", "rollout": {"steps": []}}, {"route": "/a", "auth": {}})),
    ("serve", [{"route": "/a", "accelerators": name} for name in PLACES]),
    ("sweep", [{"search_space": space} for space in SPACES]),
    ("sweep", [{"search_space": {"train.optimizer.lr": [1e-3]}, **fields} for fields in SWEEPS]),
    ("storage", ("./here", "s3://", "s3://b", "gs://b/c", "", "job.yaml", "\x00", "~nobody/x")),
    ("tracking", ({"mlflow": {"uri": "http://u:p@h"}}, {"mlflow": {}}, {"mlflow": None})),
    ("secrets", (["HF_TOKEN"], ["a b"], [1], "HF_TOKEN")),
    ("notify", ([{"slack": "env:A"}], [{"webhook": "http://h/x", "on": ["no"]}], [{}], "env:A")),
    ("name", ("a", "Ä", "a" * 64, "-", "../x", 5, None, "on")),
    ("version", (1, 2, "1", 1.0, True)),
    ("seed", (0, -1, 2**32, 1.5, 2**32 - 1)),
)
"""Fields with values that are worth writing, right ones and wrong ones."""
TYPES: Sequence[pa.DataType] = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.string()),
    *(pa.large_string(), pa.binary(), pa.decimal128(38, 2), pa.timestamp("ns"), pa.date32()),
    *(pa.time64("us"), pa.duration("s"), pa.list_(pa.string()), pa.struct([("a", pa.int64())])),
    *(pa.dictionary(pa.int8(), pa.string()), pa.map_(pa.string(), pa.int64()), pa.binary(2)),
    *(pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])), pa.string_view()),
    *(pa.timestamp("us", "UTC"), pa.large_list(pa.int8()), pa.list_(pa.float32(), 2)),
    *(pa.decimal256(60, 2), pa.month_day_nano_interval(), pa.duration("ns")),
)
"""Types of parquet columns."""
SPOILERS: Sequence[Callable[[bytes], bytes]] = (
    *(lambda _: b"", lambda _: b"\x00", lambda _: b"\n\n", lambda _: b"[]", lambda _: b"{}"),
    *(lambda _: b"null", lambda _: b"5", lambda _: b'""', lambda _: b"[" * 5000, lambda _: b"PAR1"),
    *(lambda old: old[: len(old) // 2], lambda old: old + b"\xff\xfe", lambda old: old[:-1]),
    *(
        lambda old: old.replace(b"\n", b"\r"),
        lambda old: b"\xef\xbb\xbf" + old,
        lambda old: old * 2,
    ),
    *(lambda old: "é".encode("latin-1") + old, lambda old: old.decode("latin-1").encode("utf-16")),
    *(lambda old: gzip.compress(old), lambda old: old.split(b"\n")[0], lambda old: b'"' + old),
    *(lambda old: old.replace(b",", b";"), lambda old: old.replace(b"label", b"text")),
    *(lambda old: old + b"\n{}", lambda old: old + b"\nnull", lambda old: old.replace(b"{", b"[")),
    *(lambda old: old.replace(b'"label"', b'"label": 1, "label"'), lambda old: b"\x1f\x8b" + old),
    lambda old: old.replace(b'"text"', b'""'),
)
"""Ways of spoiling a data file."""
RESHAPERS: Sequence[Callable[[str], str]] = (
    *(lambda text: f"- {text}", lambda text: "", lambda text: f"{text}\n---\n{text}", str.upper),
    *(lambda text: text + "name: twice\n", lambda text: text.replace("  ", "\t"), lambda _: "a"),
    *(lambda text: text.replace("name", "na\x00me"), lambda text: text + "deep: " + "[" * 100),
    *(lambda text: text + "deep: " + "{a: " * 100 + "}" * 100, lambda text: text + "? [a]\n: b\n"),
    *(lambda text: text + "a: &a {b: 1}\nc: *a\n", lambda text: text + "<<: {a: 1}\n"),
    *(lambda text: text + "seed: 0o17\n", lambda text: text + "seed: 017\n", lambda _: "# nothing"),
    *(lambda text: text + "seed: 2026-01-01\n", lambda text: text + "seed: 1:30\n"),
    *(lambda text: text + "seed: !!int 5\n", lambda text: text + "seed: !x 5\n", lambda _: "5"),
    *(lambda text: text + "seed: 1_000\n", lambda text: text + "seed: 0x1F\n", lambda _: "[]"),
    *(lambda text: text + f"seed: {'9' * 5000}\n", lambda text: text + "seed: 1e400\n"),
    *(lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n"), lambda _: "null"),
    *(lambda text: text.replace("\n", "\r"), lambda text: text[: len(text) // 2], lambda _: "''"),
    *(lambda text: text + "x" * 300_000, lambda text: text.replace(":", ""), lambda _: "\x85"),
    *(lambda text: "%YAML 1.1\n---\n" + text, lambda text: text + "...\n", lambda _: "{}"),
    *(lambda text: text.replace("data:", "data: |"), lambda text: text + "\ud800: 1\n"),
    *(lambda text: text + "1: 2\n", lambda text: text + "~: 2\n", lambda text: text + "on: 2\n"),
    *(lambda text: text + "- 1\n", lambda text: text + " b: 1\n", lambda text: text + "'\n"),
    *(lambda text: text + "a: [b\n", lambda text: text + '"\\ud800": 1\n', lambda _: "---"),
    *(lambda text: text + 'seed: "\\ud800"\n', lambda text: text + 'storage: "\\0"\n'),
)
"""Ways of writing a job file oddly."""
