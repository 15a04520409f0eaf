"""Ways of writing a job file wrong: each gets a clear message at the right place."""

import time

import pytest

from cluster.catalogue import accelerator_rules
from jobs.errors import JobFileError
from jobs.loader import loads
from tests.builders import MINIMAL


def problems_of(text: str | bytes) -> list[str]:
    """What is wrong with a job file, as the command line prints it."""
    with pytest.raises(JobFileError) as caught:
        loads(text, extra_rules=[accelerator_rules])
    return [str(problem) for problem in caught.value.problems]


SYNTAX = [
    ("", "job.yaml:1:1: the file is empty"),
    ("- a\n- b\n", "job.yaml:1:1: a job file is a mapping"),
    ("just words\n", "job.yaml:1:1: a job file is a mapping"),
    ("a:\n\tb: 1\n", "job.yaml:2:1: a tab cannot indent YAML"),
    ("a: 1\n---\nb: 2\n", "job.yaml:2:1: a job file holds one document"),
    ("a: \x01\n", "job.yaml:1:1: character U+0001 is not allowed"),
    (b"name: caf\xe9\n", "job.yaml:1:10: byte 0xe9 is not UTF-8"),
    ("? [a]\n: b\n", "job.yaml:1:3: a key must be plain text"),
    ("a: &x [1]\nb: *x\n", "job.yaml:2:4: aliases (`*name`) are not allowed"),
    ("a: !!python/object:os.system ls\n", "job.yaml:1:4: tag 'tag:yaml.org,2002:python"),
    ("a: !env HOME\n", "job.yaml:1:4: tag '!env' is not allowed"),
    ("[" * 5000, "job.yaml:1:21: nested deeper than 20 levels"),
    ("a: " + "[" * 30 + "]" * 30, "nested deeper than 20 levels"),
    ("a: [" + "1, " * 20_000 + "1]", "more than 10,000 keys and values"),
    ("# " + "x" * 300_000, "the file has 300,002 bytes; a job file has at most 262,144"),
    ('storage: "a\\0b"\n', "job.yaml:1:10: character U+0000 is not allowed; remove it"),
    ('"\\ud800": 1\n', "job.yaml:1:1: character U+D800 is not allowed; remove it"),
    ("%YAML 9.9\n---\na: 1\n", "job.yaml:1:1: not valid YAML"),
]


@pytest.mark.parametrize(("text", "message"), SYNTAX)
def test_text_that_is_no_plain_yaml_is_refused(text: str | bytes, message: str) -> None:
    begin = time.process_time()
    assert message in problems_of(text)[0]
    assert time.process_time() - begin < 2.0


FIELDS = [
    ("version: 2", "version: 2 is not 1"),
    ("name: My Job", "name: 'My Job' is not a job's name; use up to 63 lower-case letters"),
    ("name: ../etc", "name: '../etc' is not a job's name"),
    ("seed: -1", "seed: -1 must be at least 0"),
    ("seed: 1.5", "seed: 1.5 is not a whole number"),
    ("tranin: {}", "tranin: unknown key; did you mean 'train'?"),
    ("train: {lr: 1e-5}", "train.lr: unknown key; write train.optimizer.lr"),
    ("train: {learning_rate: 1e-5}", "train.learning_rate: unknown key; write train.optimizer.lr"),
    ("train: {num_train_epochs: 3}", "train.num_train_epochs: unknown key; write train.epochs"),
    ("train: {bf16: true}", "train.bf16: unknown key; write train.precision: bf16"),
    ("train: {max_length: 3}", "train.max_length: unknown key; it stands at data.max_length"),
    ("learning_rate: 1e-5", "learning_rate: unknown key; write train.optimizer.lr"),
    (
        "train: {optimizer: {learning_rate: 1e-5}}",
        "train.optimizer.learning_rate: unknown key; write train.optimizer.lr",
    ),
    (
        "resources: {any_of: [{accelerators: T4, batch_size: 8}]}",
        "resources.any_of[0].batch_size: unknown key; write train.global_batch_size",
    ),
    ("train: {Epochs: 3}", "train.Epochs: unknown key; write 'epochs'"),
    ("train: {turns: 3}", "train.turns: unknown key; known here: checkpoint, compile,"),
    ("owned: {T4: {purchse: 3}}", "owned.T4.purchse: unknown key; did you mean 'purchase'?"),
    ("train: epochs 3", "train: 'epochs 3' is not a mapping of keys; write `epochs: 3`"),
    ("train: {epochs 3}", "train.epochs 3: unknown key; write `epochs: 3`"),
    (
        "resources: {any_of: [accelerators T4]}",
        "'accelerators T4' is not a mapping of keys; write `accelerators: T4`",
    ),
    (
        "resources: {any_of: {accelerators: T4}}",
        "is not a list; write [a, b], or - before each item",
    ),
    ("gpus: 2", "gpus: unknown key; write resources.any_of: [{accelerators: T4:1}]"),
    ("train: {epohcs: 3}", "train.epohcs: unknown key; did you mean 'epochs'?"),
    ("train: {epochs: three}", "train.epochs: 'three' is not a number"),
    ("train: {epochs: '3'}", "train.epochs: '3' is not a number"),
    ("train: {epochs: .nan}", "train.epochs: nan is not a finite number"),
    ("train: {epochs: 1e999}", "train.epochs: inf is not a finite number"),
    ("train: {epochs: 0}", "train.epochs: 0 must be greater than 0"),
    ("train: [epochs, 3]", "train: ['epochs', 3] is not a mapping of keys"),
    ("train: {global_batch_size: true}", "train.global_batch_size: true is not a whole number"),
    ("train: {global_batch_size: 1.5}", "train.global_batch_size: 1.5 is not a whole number"),
    ("train: {precision: bf61}", "precision: 'bf61' is not one of fp32, tf32, fp16, bf16, auto;"),
    ("train: {precision: on}", "train.precision: 'on' is not one of"),
    ("train: {micro_batch_size: many}", "train.micro_batch_size: 'many' is not a whole number"),
    ("train: {micro_batch_size: 5}", "micro batch size 5 does not divide the global batch of 32"),
    ("train: {eval: {every: 1:30}}", "train.eval.every: '1:30' is no interval"),
    ("train: {eval: {every: 30}}", "train.eval.every: 30 is no interval"),
    ("train: {eval: {every: " + "9" * 400 + "epochs}}", "is not positive and whole in steps"),
    ("train: {hang_after: 50000d}", "train.hang_after: '50000d' is longer than any run"),
    ("owned: {T4: {purchase: 1, life: 0s}}", "owned.T4.life: '0s' is no time at all"),
    ("train: {eval: {metrics: []}}", "train.eval.metrics: has 0 items but needs at least 1"),
    ("train: {eval: {metrics: accuracy}}", "metrics: 'accuracy' is not a list; write [a, b]"),
    ("train: {checkpoint: {every: 10}}", "train.checkpoint.every: 10 is no interval"),
    ("train: {optimizer: {lr: fast}}", "train.optimizer.lr: 'fast' is not a number"),
    ("train: {optimizer: {lr: 0.0}}", "train.optimizer.lr: 0.0 must be greater than 0"),
    (
        "train: {optimizer: {momentum: 0.9}}",
        "train.optimizer.momentum: adamw takes no momentum; remove it (it is for sgd and muon)",
    ),
    (
        "train: {optimizer: {name: muon, nesterov: true}}",
        "muon always uses Nesterov's momentum; remove nesterov",
    ),
    (
        "train: {optimizer: {name: sgd, momentum: 0.0, nesterov: true}}",
        "train.optimizer.nesterov: Nesterov's momentum needs a momentum above 0",
    ),
    (
        "train: {optimizer: {name: muon}, strategy: zero2}",
        "train.optimizer.name: muon needs whole matrices, which zero2 divides",
    ),
    ("train: {optimizer: {name: adam}}", "train.optimizer.name: 'adam' is not one of"),
    (
        "train: {lr_schedule: {power: 2.0}}",
        "train.lr_schedule.power: a linear schedule has no power; write type: polynomial",
    ),
    (
        "train: {lr_schedule: {type: constant, floor: 0.1}}",
        "train.lr_schedule.floor: a constant schedule has no floor; use linear, cosine",
    ),
    (
        "train: {early_stopping: {metric: perplexity}}",
        "train.early_stopping.metric: 'perplexity' is not a metric of text-classification; it has",
    ),
    (
        "train: {early_stopping: {patience: 0}}",
        "train.early_stopping.patience: 0 must be at least 1",
    ),
    ("train: {optim: adafactor}", "train.optim: unknown key; write train.optimizer.name"),
    (
        "train: {lr_scheduler_type: cosine}",
        "train.lr_scheduler_type: unknown key; write train.lr_schedule.type",
    ),
    (
        "train: {early_stopping_patience: 3}",
        "unknown key; write train.early_stopping.patience",
    ),
    ("train: {cpu_offload: yes}", "train.cpu_offload: 'yes' is not true or false"),
    ("train: {cpu_offload: true}", "cpu_offload needs strategy zero2 or zero3"),
    ("resources: {any_of: []}", "resources: needs one of any_of (the sweep finds the best) and"),
    (
        "resources: {any_of: [{accelerators: T4:1}], ordered: [{accelerators: L4:1}]}",
        "resources: needs one of any_of (the sweep finds the best) and ordered",
    ),
    (
        "resources: {ordered: [{accelerators: T4:5}]}",
        "resources.ordered[0].accelerators: global batch size 32 is not divisible by 5",
    ),
    ("resources: {any_of: [{accelerators: T4:0}]}", "'T4:0' names no accelerators"),
    ("resources: {any_of: [{accelerators: T5:1}]}", "'T5' is not known; did you mean T4?"),
    (
        "resources: {any_of: [{accelerators: T4:5}]}",
        "global batch size 32 is not divisible by 5 workers; use 30 or 35",
    ),
    (
        "resources: {any_of: [{accelerators: T4:2}, {accelerators: t4:2}]}",
        "resources.any_of[1].accelerators: t4:2 is listed twice",
    ),
    ("resources: {any_of: [{accelerators: T4:1}], max_hourly_cost: -1}", "must be greater than 0"),
    ("prices: {RTX9999: 1.0}", "prices.RTX9999: accelerator 'RTX9999' is not known"),
    ("owned: {RTX9999: {purchase: 1}}", "owned.RTX9999: accelerator 'RTX9999' is not known"),
    ("prices: {T4: free}", "prices.T4: 'free' is not a number"),
    ("serve: {route: sentiment}", "serve.route: 'sentiment' is not a route; start with /"),
    ("serve: {}", "serve.route: is required"),
    ("storage: s3://", "'s3://' is neither a folder nor a bucket; write s3://bucket/prefix"),
    ("storage: gs://models/x", "'gs://models/x' is neither a folder nor a bucket"),
    ("serve: {route: /a, replicas: {min: 4, max: 2}}", "serve.replicas.min: min 4 is above max 2"),
    ("serve: {route: /a, batching: {max_wait: 5}}", "serve.batching.max_wait: 5 has no clear unit"),
    ("serve: {route: /a, rollout: {gate: [speed]}}", "'speed' is no rule of a gate; write slo"),
    ("serve: {route: /a, engine: tensorrt}", "serve.engine: 'tensorrt' is not one of"),
    ("serve: {route: /a, precision: fp16}", "precision is fp16, which cpu lacks; use fp32, bf16"),
    (
        "serve: {route: /a, fallback: [T4]}",
        "serve.fallback[0]: cores and accelerators cannot replace each other; remove this",
    ),
    (
        "serve: {route: /a, accelerators: L40S, fallback: ['T4:2']}",
        "serve.fallback[0]: its count must be that of L40S:1; use T4:1",
    ),
    (
        "serve: {route: /a, accelerators: T4, fallback: [L40S, Tesla T4]}",
        "serve.fallback[1]: T4 is listed twice; remove one",
    ),
    (
        "serve: {route: /a, accelerators: L40S, fallback: [T4], precision: bf16}",
        "serve.fallback[0]: precision is bf16, which T4 lacks",
    ),
    (
        "serve: {route: /a, accelerators: L40S, autoscaling: {targets: {T4: 2}}}",
        "no replica runs on it; use one of accelerators and fallback: L40S",
    ),
    ("sweep: {}", "sweep.search_space: is required"),
    ("model: {base: bert-base-uncased, task: ner}", "; write 'token-classification'"),
    (
        "sweep: {search_space: {train.optimizer.momentum: [0.8, 0.95]}}",
        "search_space.train.optimizer.momentum[0]: adamw takes no momentum; remove it",
    ),
    (
        "sweep: {search_space: {train.lr_schedule.floor: [0.1]},"
        " objective: {minimize: cost}}\ntrain: {lr_schedule: {type: constant}}",
        "search_space.train.lr_schedule.floor[0]: a constant schedule has no floor",
    ),
    (
        "sweep: {search_space: {train.lr: [1, 2]}}",
        "sweep.search_space.train.lr: is not a field of a job",
    ),
    (
        "sweep: {search_space: {train.optimzer.lr: [0.1]}}",
        "is not a field of a job; write train.optimizer.lr",
    ),
    (
        "sweep: {search_space: {train.precison: [fp32]}}",
        "is not a field of a job; did you mean 'train.precision'?",
    ),
    (
        "sweep: {search_space: {batch_size: [8]}}",
        "is not a field of a job; did you mean 'train.micro_batch_size'?",
    ),
    (
        "sweep: {search_space: {epochs: [8]}}",
        "is not a field of a job; these can be searched: train.micro_batch_size",
    ),
    ("sweep: {search_space: {train.epochs: [1, 2]}}", "train.epochs: cannot be searched"),
    ("sweep: {search_space: {seed: {uniform: [1, 5]}}}", "seed: needs a list of values"),
    ("sweep: {search_space: {seed: [1.5]}}", "seed[0]: 1.5 is not a whole number"),
    (
        "sweep: {search_space: {train.precision: [fp32, int3]}}",
        "sweep.search_space.train.precision[1]: 'int3' is not one of",
    ),
    ("sweep: {search_space: {train.optimizer.lr: [-1]}}", "lr[0]: -1 must be greater than 0"),
    (
        "sweep: {search_space: {train.optimizer.lr: {loguniform: [1e-3, 1e-5]}}}",
        "range [0.001, 1e-05] does not rise",
    ),
    (
        "sweep: {search_space: {train.optimizer.lr: {loguniform: [0.0, 1e-5]}}}",
        "loguniform starts at 0; it must start above 0",
    ),
    (
        "sweep: {search_space: {train.optimizer.lr: [0.1]}, objective: {minimize: speed}}",
        "sweep.objective.minimize: 'speed' is not cost, time or a metric of train.eval.metrics",
    ),
    (
        "sweep: {search_space: {train.optimizer.lr: [0.1]}, objective: {maximize: bleu}}",
        "'bleu' is not a metric of text-classification; it has accuracy",
    ),
    (
        "sweep: {search_space: {train.optimizer.lr: [0.1]}, objective: {}}",
        "sweep.objective: needs exactly one of minimize and maximize",
    ),
    (
        "sweep: {search_space: {train.optimizer.lr: [0.1]},"
        " objective: {minimize: cost, subject_to: {time: '<=30'}}}",
        "'<=30' has the wrong unit for time; write it like '<=30m'",
    ),
    (
        "sweep: {search_space: {train.optimizer.lr: [0.1]},"
        " objective: {minimize: cost, subject_to: {accuracy: '>=90'}}}",
        "accuracy is never above 1",
    ),
]


@pytest.mark.parametrize(("line", "message"), FIELDS)
def test_fields_that_cannot_be_used_are_refused(line: str, message: str) -> None:
    key = line.split(":")[0]
    kept = [row for row in MINIMAL.splitlines() if not row.startswith(f"{key}:")]
    found = problems_of("\n".join([*kept, line]))
    matching = [problem for problem in found if message in problem]
    assert matching, found
    assert matching[0].startswith(f"job.yaml:{len(kept) + 1}:")


HABITS = [
    ("train: {optimizer: adamw_torch}", "train.optimizer: ", "write {name: adamw}"),
    ("train: {optimizer: {name: adamw_torch}}", "train.optimizer.name: ", "write 'adamw'"),
    ("train: {optimizer: {name: adamw_hf}}", "train.optimizer.name: ", "write 'adamw'"),
    ("train: {optimizer: {name: paged_adamw_8bit}}", "train.optimizer.name: ", "write 'adamw'"),
    ("train: {optimizer: {betas: [0.9, 0.95]}}", "betas: ", "remove it: the betas of AdamW are"),
    ("train: {adam_beta1: 0.9}", "train.adam_beta1: ", "remove it: the betas of AdamW are 0.9"),
    ("train: {adam_epsilon: 1e-8}", "adam_epsilon: ", "remove it: the epsilon of AdamW is 1e-8"),
    ("evaluation: {every: 500}", "evaluation: ", "write train.eval, such as {every: 100steps}"),
    ("train: {evaluation: {every: 500}}", "train.evaluation: ", "write train.eval, such as"),
    ("train: {eval: {every: 500}}", "train.eval.every: ", "write 500steps, 0.25epoch or"),
    ("train: {eval: 500}", "train.eval: ", "write {every: 500steps}"),
    ("train: {lr_schedule: cosine}", "train.lr_schedule: ", "write {type: cosine}"),
    ("train: {lr_schedule: {type: constant_with_warmup}}", "type: ", "write 'constant'"),
    ("train: {per_device_train_batch_size: 8}", "batch_size: ", "write train.global_batch_size"),
    ("train: {per_device_eval_batch_size: 8}", "batch_size: ", "remove it: the batch of an"),
    ("train: {metric_for_best_model: f1}", "model: ", "write train.early_stopping.metric"),
    ("train: {early_stopping: true}", "train.early_stopping: ", "write {patience: 3}"),
    ("train: {precision: bfloat16}", "train.precision: ", "write 'bf16'"),
    ("bf16: true", "bf16: ", "write train.precision: bf16, fp16, tf32 or auto"),
    ("train: {deepspeed: ds.json}", "train.deepspeed: ", "write train.strategy: zero2 or zero3"),
]


@pytest.mark.parametrize(("line", "path", "message"), HABITS)
def test_words_of_other_trainers_are_answered_with_what_to_write(
    line: str, path: str, message: str
) -> None:
    (problem,) = problems_of(f"{MINIMAL}{line}\n")
    assert problem.startswith("job.yaml:8:")
    assert path in problem
    assert message in problem


def test_precision_that_an_accelerator_lacks_is_refused_at_the_accelerator() -> None:
    text = (
        MINIMAL
        + """\
train: {precision: bf16}
resources:
  any_of:
    - {accelerators: A100-80GB:1}
    - {accelerators: V100-16GB:1}
    - {accelerators: T4:2}
"""
    )
    found = problems_of(text)
    assert [problem.split(": ")[0] for problem in found] == ["job.yaml:12:22", "job.yaml:13:22"]
    assert "precision is bf16, which T4 lacks; use fp32, fp16" in found[1]


def test_fields_that_no_stage_honours_yet_are_refused() -> None:
    chat = MINIMAL.replace("bert-base-uncased}", "gpt2, task: causal-lm}")
    found = problems_of(chat + "serve: {route: /chat, grpc: true}\n")
    assert [p for p in found if "serve.grpc: is not supported yet" in p]


def test_secrets_are_names_of_variables() -> None:
    found = problems_of(MINIMAL + 'secrets: [HF_TOKEN, "hf_abc=1"]\n')
    assert [problem.split(": ")[:2] for problem in found] == [["job.yaml:8:21", "secrets[1]"]]


def test_duplicate_keys_name_both_lines() -> None:
    assert problems_of(MINIMAL + "name: twice\n") == [
        "job.yaml:8:1: name: duplicate key; first written in line 2; keep one of them"
    ]


def test_missing_sections_are_named() -> None:
    found = problems_of("version: 1\n")
    assert found == [
        "job.yaml:1:1: name: is required",
        "job.yaml:1:1: model: is required",
        "job.yaml:1:1: data: is required",
    ]


def test_all_problems_are_reported_at_once() -> None:
    text = MINIMAL + "seed: x\ntrain: {precision: fp61, epoch: 3}\n"
    text += "serve: {route: /a, replicas: {min: 2, max: 1}}\n"
    found = problems_of(text)
    assert len(found) == 4
    assert "serve.replicas.min: min 2 is above max 1" in found[-1]


FAULTY = """\
resources:
  any_of:
    - {accelerators: "T4:0"}
    - {accelerators: T5}
    - {accelerators: L4, spto: true}
    - {accelerators: L9}
serve:
  accelerators: H9
  fallback: ["T4:0", "L4:0", T9, T8]
prices: {T7: free, T6: 1}
"""


@pytest.mark.parametrize(
    "lost", ["", "version: 1\n", "name: reviews\n", "model: {base: bert-base-uncased}\n"]
)
def test_accelerators_are_checked_beside_every_other_error(lost: str) -> None:
    unknown = ["resources.any_of[1].accelerators", "resources.any_of[3].accelerators"]
    unknown += ["serve.accelerators", "serve.fallback[2]", "serve.fallback[3]", "prices.T6"]
    problems = problems_of(MINIMAL.replace(lost, "") + FAULTY)
    found = [problem.split(": ")[1:3] for problem in problems]
    assert [path for path, what in found if "is not known" in what] == unknown
    others = ["resources.any_of[0].accelerators", "resources.any_of[2].spto", "serve.route"]
    assert {*others, "serve.fallback[0]", "prices.T7"} <= {path for path, _ in found}


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("resources: {any_of: [{accelerators: 'T4:0'}]}", ["resources.any_of[0].accelerators"]),
        ("resources: {any_off: [{accelerators: T4}]}", ["resources.any_off"]),
        ("serve: {route: /a, rollout: {steps: [5, all]}}", ["serve.rollout.steps[1]"]),
    ],
)
def test_a_faulty_value_breaks_no_rule_besides(text: str, paths: list[str]) -> None:
    assert [problem.split(": ")[1] for problem in problems_of(MINIMAL + text)] == paths


@pytest.mark.parametrize("path", ["²", "s3://bucket/rows", "a b", "train.txt"])
def test_a_path_that_names_no_rows_is_refused(path: str) -> None:
    found = problems_of(MINIMAL.replace("train.csv", path))
    assert f"data.train.path: {path} is no hub id and no file that ends in .csv" in found[0]


def test_text_column_equal_to_the_label_is_refused() -> None:
    text = MINIMAL.replace("text: text", "text: [label, text]")
    assert "column 'label' is already a text column" in problems_of(text)[0]


def test_judging_on_the_training_rows_is_refused() -> None:
    text = MINIMAL.replace("eval.csv", "train.csv")
    assert "is the same as data.train" in problems_of(text)[0]


def test_a_short_silence_is_no_hang() -> None:
    (problem,) = problems_of(MINIMAL + "train: {hang_after: 5s}\n")
    assert "train.hang_after: 5s of silence is no hang yet; use 1m or more" in problem


PROMPTS = MINIMAL.replace("text: text", "prompt: question\n  response: answer").replace(
    "{base: bert-base-uncased}", "{base: bert-base-uncased, task: causal-lm}"
)


MASKED = MINIMAL.replace("uncased}", "uncased, task: masked-lm}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL.replace("  text: text\n", ""), "data.text: is missing; name the column"),
        (
            MINIMAL + "  prompt: p\n",
            "data.prompt: is for causal-lm or preference; the task is text-",
        ),
        (PROMPTS + "  label: text\n", "data.label: is for text-classification"),
        (PROMPTS.replace("  response: answer\n", ""), "needs the columns prompt and response"),
        (PROMPTS + "  text: story\n", "or the column messages, or the column text"),
        (PROMPTS + "  messages: turns\n", "data: causal-lm needs the columns prompt and response"),
        (
            MASKED + "  prompt: p\n",
            "data.prompt: is for causal-lm or preference; the task is mask",
        ),
        (MASKED.replace("  text: text\n", ""), "data.text: is required"),
        (MASKED + "  mask_share: 0.9\n", "data.mask_share: 0.9 must be at most 0.5"),
        (MASKED + "train: {eval: {metrics: [f1]}}\n", "'f1' is not a metric of masked-lm"),
        (MASKED + "serve: {route: /a, grpc: true}\n", "serve.grpc: is not supported yet"),
        (
            MASKED.replace("masked-lm}", "masked-lm, adapter: {type: lora}}"),
            "model.adapter: peft loads no adapter of masked-lm; set model.adapter.merge to true",
        ),
        (PROMPTS + "train: {eval: {metrics: [f1]}}\n", "'f1' is not a metric of causal-lm"),
        (MINIMAL + "train: {eval: {metrics: [perplexity]}}\n", "'perplexity' is not a metric of"),
        (
            MINIMAL.replace("uncased}", "uncased, adapter: {type: lora}}") + "serve: {route: /a}\n",
            "an endpoint of text-classification serves whole models; set merge to true",
        ),
        (
            PROMPTS + "serve: {route: /a, adapters: {slots: 2}}\n",
            "serve.adapters: is for adapters that are not merged; remove it",
        ),
        (
            PROMPTS.replace("causal-lm}", "causal-lm, adapter: {type: lora}}")
            + "serve: {route: /a, adapters: {slots: 0}}\n",
            "serve.adapters.slots: 0 must be at least 1",
        ),
        (
            PROMPTS.replace("causal-lm}", "causal-lm, adapter: {type: lora}}")
            + "serve: {route: /a, adapters: {slots: 256, rank: 1024}}\n",
            "serve.adapters.slots: 256 of rank 1024 are 262,144 columns in each layer; at most",
        ),
        (
            PROMPTS.replace("causal-lm}", "causal-lm, adapter: {type: lora}}")
            + "serve: {route: /a, adapters: {rank: 8}}\n",
            "serve.adapters.rank: 8 is less than model.adapter.r, 16",
        ),
        (
            PROMPTS.replace(
                "causal-lm}", "causal-lm, adapter: {type: lora, target_modules: [lm_head]}}"
            )
            + "serve: {route: /a}\n",
            "target_modules: an endpoint adapts no output layer (lm_head); remove it or set merge",
        ),
        (
            PROMPTS.replace("causal-lm}", "causal-lm, adapter: {type: lora}}")
            + "serve: {route: /a, engine: openvino}\n",
            "serve.engine: openvino serves no adapters; use auto or torch, or merge the adapter",
        ),
        (
            MINIMAL + "serve: {route: /a, adapters: {slots: 2}}\n",
            "serve.adapters: is not supported yet for text-classification",
        ),
        (
            PROMPTS + "serve: {route: /a, rollout: {gate: [slo, 'accuracy>=0']}}\n",
            "serve.rollout.gate[1]: accuracy is not judged for causal-lm; it has",
        ),
        (
            PROMPTS + "serve: {route: /a, engine: onnx-fp32}\n",
            "serve.engine: onnx-fp32 does not serve causal-lm; use auto, or torch, vllm, openvino",
        ),
        (
            PROMPTS + "serve: {route: /a, engine: vllm}\n",
            "serve.engine: vllm runs on GPUs, and serve.accelerators is cpu; use auto, torch or",
        ),
        (
            PROMPTS + "serve: {route: /a, engine: openvino, accelerators: 'T4:1'}\n",
            "serve.engine: openvino runs on CPUs, and serve.accelerators is T4:1; use auto, torch",
        ),
        (
            PROMPTS + "serve: {route: /a, engine: openvino, precision: bf16}\n",
            "serve.precision: bf16 is no precision in which openvino writes text; use fp32",
        ),
        (
            MINIMAL + "serve: {route: /a, engine: vllm}\n",
            "serve.engine: vllm does not serve text-classification; use auto, or openvino-int8,",
        ),
        (PROMPTS + "serve: {route: /a, grpc: true}\n", "serve.grpc: is not supported yet"),
        (PROMPTS + "serve: {route: /a, fronts: 2}\n", "serve.fronts: is not supported yet"),
        (
            PROMPTS
            + "sweep: {search_space: {train.optimizer.lr: [0.1]},"
            + " objective: {minimize: token_accuracy}}",
            "token_accuracy is better when higher; write `maximize: token_accuracy`",
        ),
        (
            PROMPTS
            + "sweep: {search_space: {train.optimizer.lr: [0.1]},"
            + " objective: {maximize: perplexity}}",
            "perplexity is better when lower; write `minimize: perplexity`",
        ),
    ],
)
def test_columns_and_metrics_that_do_not_suit_the_task_are_refused(text: str, message: str) -> None:
    assert message in "\n".join(problems_of(text))


def test_a_language_model_needs_no_text_column() -> None:
    assert loads(PROMPTS).metrics == ("token_accuracy", "perplexity")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("early_stopping: 5", "{patience: 5}"),
        ("early_stopping: false", ""),
        ("early_stopping: loss", ""),
        ("eval: epoch", "{every: 1epoch}"),
        ("eval: 5m", "{every: 5m}"),
        ("eval: steps", ""),
        ("checkpoint: best", ""),
        ("checkpoint: 0", ""),
        ("optimizer: sgd", "{name: sgd}"),
        ("optimizer: lion", ""),
        ("lr_schedule: cosine", "{type: cosine}"),
        ("lr_schedule: warmup", ""),
    ],
)
def test_a_section_written_as_one_value_is_told_only_what_would_be_accepted(
    line: str, meant: str
) -> None:
    (found,) = problems_of(f"{MINIMAL}train:\n  {line}\n")
    assert "is not a mapping of keys" in found
    assert found.endswith(f"; write {meant}" if meant else "keys")
    if meant:
        name = line.partition(":")[0]
        loads(f"{MINIMAL}train:\n  {name}: {meant}\n", "job.yaml")
