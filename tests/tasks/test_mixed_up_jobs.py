"""Job files that mix up tasks, columns and metrics: each is refused where it is wrong.

Every job has its model in line 3, the columns of its data from line 7 on, and the rest below.
"""

from dataclasses import dataclass

import pytest

from jobs.errors import JobFileError
from jobs.loader import loads

JOB = """\
version: 1
name: reviews
model: {{base: some/base, task: {task}}}
data:
  train: {{path: train.csv}}
  eval: {{path: eval.csv}}
  {columns}
{rest}
"""
TEXT, MULTI, NUMBER = (
    "text: text",
    "text: text\n  problem: multi-label",
    "text: text\n  problem: regression",
)
PAIR, WORDS, SUMMARY, CHAT = (
    "anchor: a\n  positive: b",
    "tokens: t\n  tags: g",
    "source: a\n  target: b",
    "messages: m",
)
CLASSES, TOKENS, VECTORS, WRITER, CAUSAL, MASKED = (
    "text-classification",
    "token-classification",
    "sentence-embedding",
    "seq2seq",
    "causal-lm",
    "masked-lm",
)


@dataclass(frozen=True, slots=True)
class Mixed:
    """A job whose parts do not belong together, and the only complaint about it."""

    task: str
    columns: str
    where: str
    """Line, column and path."""
    what: str
    """What the message says, with the word to write."""
    rest: str = ""


def metrics(*names: str) -> str:
    return f"train: {{eval: {{metrics: [{', '.join(names)}]}}}}"


def objective(text: str) -> str:
    space = "search_space: {train.optimizer.lr: [1e-3]}"
    return f"sweep: {{{space}, objective: {{{text}}}}}"


def serving(text: str) -> str:
    return f"serve: {{route: /a, {text}}}"


COLUMNS = [
    Mixed(
        CLASSES,
        TEXT,
        "8:33: serve.max_context",
        "is not supported yet for text-classification; remove it or change it",
        rest=serving("max_context: 4096"),
    ),
    Mixed(
        CLASSES,
        TEXT,
        "8:36: serve.slo.p95_tpot",
        "is not supported yet for text-classification; remove it or change it",
        rest=serving("slo: {p95_tpot: 40ms}"),
    ),
    Mixed(WRITER, f"{SUMMARY}\n  tags: t", "9:3: data.tags", "is for token-classification"),
    Mixed(WRITER, f"{SUMMARY}\n  spans: t", "9:3: data.spans", "the task is seq2seq"),
    Mixed(WRITER, f"{SUMMARY}\n  label: t", "9:3: data.label", "is for text-classification"),
    Mixed(
        WRITER,
        f"{SUMMARY}\n  text: t",
        "9:3: data.text",
        "text-classification, token-classification, causal-lm, sentence-embedding or masked-lm",
    ),
    Mixed(
        CLASSES,
        f"{TEXT}\n  tokens: t",
        "8:3: data.tokens",
        "is for token-classification; the task is text-classification",
    ),
    Mixed(CLASSES, f"{TEXT}\n  messages: t", "8:3: data.messages", "is for causal-lm"),
    Mixed(CLASSES, f"{TEXT}\n  anchor: t", "8:3: data.anchor", "is for sentence-embedding"),
    Mixed(CLASSES, f"{TEXT}\n  mask_share: 0.2", "8:3: data.mask_share", "is for masked-lm"),
    Mixed(TOKENS, f"{WORDS}\n  problem: multi-label", "9:3: data.problem", "text-classification"),
    Mixed(TOKENS, f"{WORDS}\n  label: l", "9:3: data.label", "is for text-classification"),
    Mixed(TOKENS, f"{WORDS}\n  prompt: l", "9:3: data.prompt", "is for causal-lm"),
    Mixed(
        TOKENS,
        f"{WORDS}\n  positive: l",
        "9:3: data.positive",
        "is for text-classification or sentence-embedding",
    ),
    Mixed(TOKENS, "text: t", "5:3: data.spans", "is missing; `text` needs it"),
    Mixed(
        TOKENS, f"{WORDS}\n  text: t\n  spans: s", "8:9: data.tags", "either tokens and tags, or"
    ),
    Mixed(CAUSAL, f"{CHAT}\n  target: t", "8:3: data.target", "is for seq2seq"),
    Mixed(CAUSAL, f"{CHAT}\n  prompt: t", "5:3: data", "or the column messages, or the column"),
    Mixed(CAUSAL, f"{CHAT}\n  mask_share: 0.2", "8:3: data.mask_share", "is for masked-lm"),
    Mixed(CAUSAL, f"{CHAT}\n  prefix: a", "8:3: data.prefix", "is for seq2seq"),
    Mixed(MASKED, f"{TEXT}\n  packing: true", "8:3: data.packing", "is for causal-lm"),
    Mixed(MASKED, f"{TEXT}\n  max_target_length: 8", "8:3: data.max_target_length", "seq2seq"),
    Mixed(VECTORS, f"{PAIR}\n  label: l", "9:3: data.label", "is for text-classification"),
    Mixed(VECTORS, f"{PAIR}\n  score: l", "5:3: data", "text (two columns) and score"),
    Mixed(VECTORS, f"{PAIR}\n  generate: {{}}", "9:3: data.generate", "is for seq2seq"),
]
PROBLEMS = [
    Mixed(
        CLASSES,
        f"{NUMBER}\n  label_smoothing: 0.1",
        "9:20: data.label_smoothing",
        "is for problem: single-label or multi-label",
    ),
    Mixed(
        CLASSES,
        f"{NUMBER}\n  class_weights: balanced",
        "9:18: data.class_weights",
        "the problem is regression",
    ),
    Mixed(CLASSES, f'{NUMBER}\n  separator: ","', "9:14: data.separator", "problem: multi-label"),
    Mixed(CLASSES, f"{MULTI}\n  positive: x", "9:13: data.positive", "problem: single-label"),
    Mixed(CLASSES, f"{MULTI}\n  loss: huber", "9:9: data.loss", "problem: regression"),
    Mixed(CLASSES, f'{TEXT}\n  separator: ","', "8:14: data.separator", "problem: multi-label"),
    Mixed(CLASSES, f"{TEXT}\n  label: [a, b]", "8:10: data.label", "name one column"),
    Mixed(CLASSES, f"{NUMBER}\n  thresholds: [1]", "9:3: data.thresholds", "known here: class_"),
    Mixed(f"{CLASSES}/regression", MULTI, "5:3: data", "name the task without its variant"),
]
METRICS = [
    Mixed(CLASSES, TEXT, "8:26: train.eval.metrics[0]", "it has accuracy, f1", metrics("rouge1")),
    Mixed(CLASSES, TEXT, "8:30: train.eval.metrics[1]", "it has accuracy", metrics("f1", "rmse")),
    Mixed(CLASSES, MULTI, "9:26: train.eval.metrics[0]", "it has f1_micro", metrics("accuracy")),
    Mixed(CLASSES, NUMBER, "9:26: train.eval.metrics[0]", "it has rmse, r2", metrics("f1")),
    Mixed(TOKENS, WORDS, "9:26: train.eval.metrics[0]", "it has f1, precision", metrics("mcc")),
    Mixed(VECTORS, PAIR, "9:26: train.eval.metrics[0]", "it has mrr", metrics("spearman")),
    Mixed(WRITER, SUMMARY, "9:26: train.eval.metrics[0]", "rougeL", metrics("accuracy")),
    Mixed(CAUSAL, CHAT, "8:26: train.eval.metrics[0]", "it has token_accuracy", metrics("rmse")),
    Mixed(MASKED, TEXT, "8:26: train.eval.metrics[0]", "it has perplexity", metrics("distinct_1")),
    Mixed(
        CLASSES,
        NUMBER,
        "9:75: sweep.objective.maximize",
        "write `minimize: rmse`",
        objective("maximize: rmse"),
    ),
    Mixed(
        WRITER,
        SUMMARY,
        "9:75: sweep.objective.maximize",
        "'f1' is not a metric of seq2seq",
        objective("maximize: f1"),
    ),
    Mixed(
        TOKENS,
        WORDS,
        "9:34: train.early_stopping.metric",
        "it has f1, precision",
        "train: {early_stopping: {metric: perplexity}}",
    ),
]
SERVING = [
    Mixed(
        WRITER,
        SUMMARY,
        "9:37: serve.rollout.gate[0]",
        "accuracy is not judged for seq2seq; it has slo",
        serving("rollout: {gate: ['accuracy>=0']}"),
    ),
    Mixed(
        CLASSES,
        NUMBER,
        "9:37: serve.rollout.gate[0]",
        "it has slo, latency, rmse",
        serving("rollout: {gate: ['f1_micro>=0']}"),
    ),
    Mixed(TOKENS, WORDS, "9:26: serve.grpc", "is not supported yet", serving("grpc: true")),
    Mixed("ner", WORDS, "3:32: model.task", "write 'token-classification'"),
    Mixed("summarization", SUMMARY, "3:32: model.task", "write 'seq2seq'", metrics("rouge1")),
    Mixed("fill-mask", TEXT, "3:32: model.task", "write 'masked-lm'", metrics("perplexity")),
    Mixed("regresion", NUMBER, "3:32: model.task", "is not one of text-classification"),
]
ALL = [*COLUMNS, *PROBLEMS, *METRICS, *SERVING]


@pytest.mark.parametrize("mixed", ALL, ids=lambda mixed: f"{mixed.task} {mixed.where}")
def test_a_job_that_mixes_things_up_is_refused_once_where_it_is_wrong(mixed: Mixed) -> None:
    text = JOB.format(task=mixed.task, columns=mixed.columns, rest=mixed.rest)
    with pytest.raises(JobFileError) as caught:
        loads(text)
    (problem,) = caught.value.problems
    assert f"{problem.line}:{problem.column}: {problem.path}" == mixed.where
    assert mixed.what in problem.message


def test_each_bad_metric_of_a_list_is_reported_at_its_own_column() -> None:
    text = JOB.format(task=CLASSES, columns=TEXT, rest=metrics("rouge1", "f1", "bleu"))
    with pytest.raises(JobFileError) as caught:
        loads(text)
    assert [(p.column, p.path) for p in caught.value.problems] == [
        (26, "train.eval.metrics[0]"),
        (38, "train.eval.metrics[2]"),
    ]


@pytest.mark.parametrize(
    "model", ["{task: seq2seq}", "{base: some/base, task: seq2seq, dropout: 5}"]
)
def test_columns_are_those_of_the_task_though_the_model_section_is_wrong(model: str) -> None:
    text = JOB.format(task=WRITER, columns=SUMMARY, rest="")
    text = text.replace("{base: some/base, task: seq2seq}", model)
    with pytest.raises(JobFileError) as caught:
        loads(text)
    assert [problem.path.partition(".")[0] for problem in caught.value.problems] == ["model"]
