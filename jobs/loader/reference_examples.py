"""An example for each section of the job file, shown in its reference.

Keys are the paths of sections as the reference names them; the empty one is the whole file. Each
example is a job once a model and data are added where it names none, which a test checks.
"""

from collections.abc import Mapping

from jobs.loader.reference_data_examples import DATA_EXAMPLES

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        """\
version: 1
name: sst2-bert
seed: 7
model: {base: bert-base-uncased}
data:
  train: {path: nyu-mll/glue, name: sst2, split: train}
  eval: {path: nyu-mll/glue, name: sst2, split: validation}
  text: sentence
train: {epochs: 3, global_batch_size: 64}
resources: {any_of: [{accelerators: L40S:1}, {accelerators: T4:4}]}
prices: {L40S: 0.9}
serve: {route: /sst2}
storage: s3://team/winnow
secrets: [HF_TOKEN]
""",
    ),
    "model": (
        """\
model:
  base: bert-base-uncased
  task: text-classification
  dropout: 0.2
""",
    ),
    "model.adapter": (
        """\
model:
  base: HuggingFaceTB/SmolLM2-360M-Instruct
  task: causal-lm
  adapter: {type: lora, r: 16, alpha: 32, merge: true}
data:
  train: {path: chats.jsonl}
  eval: {path: chats-eval.jsonl}
  messages: messages
""",
    ),
    **DATA_EXAMPLES,
    "train": (
        """\
train:
  epochs: 3
  global_batch_size: 64
  micro_batch_size: 16
  precision: bf16
  gradient_checkpointing: true
  min_workers: 2
""",
    ),
    "train.optimizer": (
        """\
train:
  optimizer: {lr: 5e-5, weight_decay: 0.01, layerwise_lr_decay: 0.9, head_lr: 1e-3}
""",
    ),
    "train.lr_schedule": (
        """\
train:
  lr_schedule: {type: cosine, warmup_ratio: 0.05, floor: 0.1}
""",
    ),
    "train.eval": (
        """\
train:
  eval: {every: 0.25epoch, metrics: [f1, accuracy]}
""",
    ),
    "train.eval.harness": (
        """\
model: {base: HuggingFaceTB/SmolLM2-360M-Instruct, task: causal-lm}
data: {train: {path: train.jsonl}, eval: {path: eval.jsonl}, messages: messages}
train:
  eval:
    harness: [gsm8k, hellaswag]
""",
        """\
model: {base: HuggingFaceTB/SmolLM2-360M-Instruct, task: causal-lm}
data: {train: {path: train.jsonl}, eval: {path: eval.jsonl}, messages: messages}
train:
  eval:
    harness: {tasks: [gsm8k, house_rules], include_path: ./eval-tasks, limit: 200, num_fewshot: 5}
""",
    ),
    "train.early_stopping": (
        """\
train:
  epochs: 20
  eval: {every: 0.5epoch, metrics: [f1]}
  early_stopping: {metric: f1, patience: 4}
""",
    ),
    "train.checkpoint": (
        """\
train:
  checkpoint: {every: 500steps, keep: 3, max_size: 20GiB}
""",
    ),
    "train.retry": (
        """\
train:
  retry: {on_events: [preemption, node_failure], max_attempts: 5}
""",
    ),
    "resources": (
        """\
resources:
  any_of: [{accelerators: A100-80GB:1}, {accelerators: L40S:2}, {accelerators: T4:4}]
  max_hourly_cost: 12
  autoscale: 15m
""",
    ),
    "resources.any_of[]": (
        """\
resources:
  ordered:
    - {accelerators: H100-SXM:1}
    - {accelerators: L4:2, spot: true}
""",
    ),
    "resources.wait": (
        """\
resources:
  any_of: [{accelerators: L40S:1}]
  wait: {timeout: 1h, then: fail}
""",
    ),
    "owned.NAME": (
        """\
owned:
  RTX4090: {purchase: 1800, life: 1095d, busy: 0.6, power_w: 450, usd_per_kwh: 0.3}
""",
    ),
    "sweep": (
        """\
sweep:
  search_space:
    train.micro_batch_size: [16, 32, 64]
    train.precision: [fp16, bf16]
    train.optimizer.lr: {loguniform: [1e-5, 1e-4]}
  trials: 8
  trial_share: 0.25
""",
    ),
    "sweep.search_space.NAME": (
        """\
sweep:
  search_space:
    train.optimizer.lr: {loguniform: [1e-5, 1e-4]}
    model.dropout: {uniform: [0.05, 0.3]}
""",
    ),
    "sweep.objective": (
        """\
sweep:
  search_space: {train.optimizer.lr: [2e-5, 5e-5]}
  objective: {minimize: cost, subject_to: {accuracy: ">=0.915", time: "<=30m"}}
""",
    ),
    "sweep.probe": (
        """\
sweep:
  search_space: {train.micro_batch_size: [16, 32]}
  probe: {warmup: 5s, duration: 20s, confirm: 1}
""",
    ),
    "budget": (
        """\
budget: {max_cost: 5, max_duration: 2h}
""",
    ),
    "serve": (
        """\
serve:
  route: /sst2
  accelerators: L40S:1
  fallback: [T4:1]
  precision: bf16
""",
    ),
    "serve.replicas": (
        """\
serve:
  route: /sst2
  replicas: {min: 0, max: 4}
""",
    ),
    "serve.autoscaling": (
        """\
serve:
  route: /sst2
  replicas: {min: 1, max: 4}
  autoscaling: {target_ongoing_requests: 16, upscale_delay: 5s, downscale_delay: 10m}
""",
    ),
    "serve.adapters": (
        """\
model:
  base: HuggingFaceTB/SmolLM2-360M-Instruct
  task: causal-lm
  adapter: {type: lora, merge: false}
data: {train: {path: train.jsonl}, eval: {path: eval.jsonl}, messages: messages}
serve:
  route: /support
  adapters: {slots: 4, rank: 32, models: ["sales-*"]}
""",
    ),
    "serve.batching": (
        """\
serve:
  route: /sst2
  batching: {max_batch_size: 32, max_wait: 2ms}
""",
    ),
    "serve.limits": (
        """\
serve:
  route: /sst2
  limits: {queue_tokens: 131072, requests_per_second: 50, timeout: 10s}
""",
    ),
    "serve.slo": (
        """\
serve:
  route: /sst2
  slo: {p95_latency: 50ms, error_rate: "<0.5%"}
""",
    ),
    "serve.rollout": (
        """\
serve:
  route: /sst2
  slo: {p95_latency: 50ms}
  rollout: {steps: [5, 25, 100], hold: 2m, gate: [slo, "accuracy>=-0.01", "latency<=1.5"]}
""",
    ),
    "serve.auth": (
        """\
serve:
  route: /sst2
  auth: {tokens_file: /etc/winnow/tokens}
""",
    ),
    "publish": ("publish: {hub: my-team/reviews, license: apache-2.0, language: [en]}\n",),
    "notify[]": (
        """\
notify:
  - {slack: env:SLACK_HOOK}
  - {webhook: env:MY_HOOK, on: [failed, waiting]}
""",
    ),
    "notify[].email": (
        """\
notify:
  - email: {to: [team@example.org], sender: winnow@example.org, smtp: env:SMTP_URL}
""",
    ),
    "tracking": (
        """\
tracking:
  mlflow: {uri: "http://mlflow.example:5000"}
  wandb: {entity: my-team}
  tags: {team: search}
""",
    ),
    "tracking.wandb": (
        """\
tracking:
  wandb: {project: sentiment, mode: offline}
""",
    ),
    "tracking.mlflow": (
        """\
tracking:
  mlflow: {uri: "sqlite:///mlflow.db", experiment: sentiment}
""",
    ),
}
