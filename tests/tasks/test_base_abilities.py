"""A base that cannot do the task is refused when a job is validated or planned, from its files."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from jobs.errors import JobFileError
from jobs.spec import task_registry
from jobs.training.model import abilities, tables
from orchestrator.loading import load_job
from orchestrator.planning import plan_on
from tests.builders import inventory, job

COLUMNS = {
    "preference": "prompt: text\n  chosen: label\n  rejected: other",
    "text-classification": "text: text",
    "token-classification": "tokens: words",
    "causal-lm": "text: text",
    "sentence-embedding": "anchor: text\n  positive: label",
    "seq2seq": "source: text\n  target: label",
    "masked-lm": "text: text",
}
JOB = """\
version: 1
name: reviews
model:
  base: {base}
  task: {task}
data:
  train: {{path: train.csv}}
  eval: {{path: eval.csv}}
  {columns}
"""


def save(folder: Path, model_type: str, tokenizer: str = "", **fields: object) -> Path:
    """Write what planning reads of a base: its configuration and its tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {"tokenizer_class": tokenizer} if tokenizer else {}
    files = {
        "config.json": {"model_type": model_type, **fields},
        "tokenizer_config.json": named,
        "tokenizer.json": {},
        "model.safetensors": {},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder


def problems(folder: Path, base: Path | str, task: str) -> list[str]:
    """What validation says of a job's base."""
    rows = "text,label,words\na,b,c\nd,e,f\n"
    for name in ("train.csv", "eval.csv"):
        (folder / name).write_text(rows + name, encoding="utf-8")
    text = JOB.format(base=base, task=task, columns=COLUMNS[task])
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    try:
        load_job(folder / "job.yaml", reads_rows=False)
    except JobFileError as error:
        return [f"{p.line}:{p.column}: {p.path}: {p.message}" for p in error.problems]
    return []


CANNOT = [
    ("bert", "seq2seq", "no model for seq2seq", "text-classification, token-classification"),
    ("bert", "causal-lm", "it sees the words", "masked-lm"),
    ("roberta", "causal-lm", "it sees the words", "sentence-embedding"),
    ("t5", "causal-lm", "no model for causal-lm", "seq2seq"),
    ("t5", "masked-lm", "no model for masked-lm", "seq2seq"),
    ("t5", "sentence-embedding", "needs a second text", "seq2seq"),
    ("xlnet", "causal-lm", "it sees the words", "text-classification"),
    ("bert-generation", "preference", "it sees the words", "sentence-embedding"),
    ("llama", "masked-lm", "no model for masked-lm", "preference"),
    ("whisper", "sentence-embedding", "does not read text alone", ""),
    ("llama", "masked-lm", "no model for masked-lm", "causal-lm"),
    ("llama", "seq2seq", "no model for seq2seq", "causal-lm"),
    ("gpt2", "masked-lm", "no model for masked-lm", "causal-lm"),
    ("bart", "token-classification", "no model for token-classification", "seq2seq"),
    ("vit", "sentence-embedding", "or any other task; choose another base", ""),
]


@pytest.mark.parametrize(("model_type", "task", "why", "able"), CANNOT)
def test_a_base_that_cannot_do_the_task_is_refused_with_the_tasks_that_it_can_do(
    model_type: str, task: str, why: str, able: str, tmp_path: Path
) -> None:
    base = save(tmp_path / "base", model_type)
    (found,) = problems(tmp_path, base, task)
    assert found.startswith(f"4:9: model.base: {base} has the type {model_type}, ")
    assert why in found
    assert able in found.rpartition("one of its tasks:")[2]


@pytest.mark.parametrize(
    ("model_type", "task", "fields"),
    [
        ("bert", "text-classification", {}),
        ("bert", "causal-lm", {"is_decoder": True}),
        ("bart", "causal-lm", {}),
        ("bart", "sentence-embedding", {}),
        ("qwen3", "preference", {}),
        ("t5", "seq2seq", {}),
        ("llama", "sentence-embedding", {}),
        ("modernbert", "sentence-embedding", {}),
        ("of-a-package", "masked-lm", {}),
    ],
)
def test_a_base_that_can_do_the_task_or_is_unknown_passes(
    model_type: str, task: str, fields: dict[str, object], tmp_path: Path
) -> None:
    assert problems(tmp_path, save(tmp_path / "base", model_type, **fields), task) == []


@pytest.mark.parametrize(
    ("model_type", "tokenizer"),
    [("roberta", "BertweetTokenizer"), ("roberta", "PhobertTokenizer"), ("canine", "")],
)
def test_a_base_without_a_fast_tokenizer_is_refused(
    model_type: str, tokenizer: str, tmp_path: Path
) -> None:
    base = save(tmp_path / "base", model_type, tokenizer)
    (found,) = problems(tmp_path, base, "token-classification")
    assert found.startswith(f"4:9: model.base: the tokenizer of {base}, ")
    assert "is written in Python, and endpoints run those of the package tokenizers alone" in found


@pytest.mark.parametrize("tokenizer", ["BertTokenizer", "PreTrainedTokenizerFast", "Unheard"])
def test_other_tokenizers_pass(tokenizer: str, tmp_path: Path) -> None:
    base = save(tmp_path / "base", "bert", tokenizer)
    assert problems(tmp_path, base, "token-classification") == []


def test_a_base_of_the_hub_is_known_once_it_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    assert problems(tmp_path, "some/bert", "seq2seq") == []
    save(cache / "models--some--bert/snapshots/abc", "bert")
    (cache / "models--some--bert/refs").mkdir()
    (cache / "models--some--bert/refs/main").write_text("abc", encoding="utf-8")
    (found,) = problems(tmp_path, "some/bert", "seq2seq")
    assert found.startswith("4:9: model.base: some/bert has the type bert, ")


def test_the_plan_refuses_a_base_too(tmp_path: Path) -> None:
    base = save(tmp_path / "base", "llama", hidden_size=8, num_hidden_layers=1, vocab_size=8)
    spec = job(model__base=str(base), model__task="masked-lm")
    with pytest.raises(JobFileError, match=r"model\.base: .* no model for masked-lm"):
        plan_on(spec, inventory(T4=1))


def test_tables_are_those_of_transformers() -> None:
    import transformers
    from transformers.models.auto import tokenization_auto

    for task in task_registry.ours():
        own = getattr(transformers, task.auto_class)._model_mapping._model_mapping
        assert tables.model_types(task.auto_class) == own.keys()
    ours, theirs = tables.tokenizers(), tokenization_auto.TOKENIZER_MAPPING_NAMES
    assert len(ours) > 200
    installed = [kind for kind in ours if theirs.get(kind)]
    written = {kind: tables.is_python_tokenizer(ours[kind], kind) for kind in installed}
    assert written == {k: tables.is_python_tokenizer(theirs[k], k) for k in installed}
    for elsewhere in ("bertweet", "bert", "../bertweet", "**"):
        assert tables.is_python_tokenizer("BertweetTokenizer", elsewhere)
    assert not tables.is_python_tokenizer("BertTokenizer", "bert")
    assert abilities.CAUSAL in {task.auto_class for task in task_registry.ours()}
