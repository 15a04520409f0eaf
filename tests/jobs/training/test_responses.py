"""What a language model writes for evaluation rows, and metrics that compare it with responses."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from jobs.errors import DataError, JobFileError
from jobs.loader import load
from jobs.spec.model import LoraSpec, ModelSpec
from jobs.spec.quantities import Cadence
from jobs.spec.train import EvalSpec, OptimizerSpec
from jobs.training import text_metrics
from jobs.training.config import TrainingConfig
from jobs.training.events import Evaluated, Event
from jobs.training.generation import SessionGenerator
from jobs.training.loop import train
from tests import tiny
from tests.builders import language_config, language_data
from tests.jobs.training import workers

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ("exact_match", "rougeL", "bleu", "chrf")


def learning(folder: Path, base: str, epochs: int = 3, **fields: Any) -> TrainingConfig:
    """A run that is judged once, before it answers every row well."""
    return language_config(
        folder,
        base,
        data=language_data(folder, **{"packing": False, **fields}),
        epochs=float(epochs),
        eval=EvalSpec(every=Cadence(epochs, "epoch")),
        optimizer=OptimizerSpec(lr=1e-2),
        metrics=NAMES,
    )


def judged(config: TrainingConfig, folder: Path) -> tuple[dict[str, float], Path]:
    """Metrics of a run, and the folder of its model."""
    events: list[Event] = []
    reference = train(config, events.append, folder)
    return [e.metrics for e in events if isinstance(e, Evaluated)][-1], Path(
        reference.path
    ) / "model"


def answers_alone(
    folder: Path, rows: Path, *, is_chat: bool, most: int = 100
) -> tuple[list[str], list[str]]:
    """What plain transformers writes for each row by itself within `most` tokens, and responses."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    written, right = [], []
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if is_chat:
            text = tokenizer.apply_chat_template(
                row["messages"][:1], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            ids = tokenizer(row["prompt"])["input_ids"]
            ids = ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids
        found = model.generate(
            torch.tensor([ids]), max_new_tokens=min(40, most - len(ids)), do_sample=False
        )
        written.append(tokenizer.decode(found[0, len(ids) :], skip_special_tokens=True))
        right.append(row["response"])
    return written, right


@pytest.mark.parametrize("form", ["pairs", "messages"])
def test_metrics_are_those_of_answers_to_each_row_alone(
    form: str, questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    """Prompts of several lengths share a batch there, and none here."""
    is_chat = form == "messages"
    columns = {"messages": "messages", "prompt": None, "response": None} if is_chat else {}
    found, folder = judged(learning(questions, tiny_llama, 8, **columns), tmp_path)
    written, right = answers_alone(folder, questions / "eval.jsonl", is_chat=is_chat)
    expected = text_metrics.compute(NAMES, written, [[text] for text in right])
    assert expected["exact_match"] > 0
    assert {name: found[name] for name in NAMES} == pytest.approx(expected, abs=1e-9)


@pytest.mark.workers
@pytest.mark.parametrize(("strategy", "count"), [("ddp", 2), ("zero3", 2), ("ddp", 4)])
def test_metrics_are_the_same_on_any_number_of_workers(
    strategy: Any, count: int, questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(learning(questions, tiny_llama, 2), micro_batch_size=8 // count)
    expected, _ = judged(dataclasses.replace(config, micro_batch_size=8), tmp_path / "one")
    events = workers.run(dataclasses.replace(config, strategy=strategy), count, tmp_path)
    found = [event["metrics"] for event in events if event["event"] == "Evaluated"][-1]
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_model_that_answers_otherwise_beside_padding_answers_prompts_of_one_length(
    questions: Path, tmp_path: Path
) -> None:
    """GPT-2 has learned positions; this one counts them from the padding on."""
    is_exact: list[bool] = []
    base = tiny.save(tmp_path / "gpt2", "gpt2", transformers.AutoModelForCausalLM)
    forward = transformers.GPT2LMHeadModel.forward

    pads_exactly = SessionGenerator._pads_exactly

    def recorded(*asked: Any) -> bool:
        is_exact.append(pads_exactly(*asked))
        return is_exact[-1]

    def blind(self: Any, *arguments: Any, **inputs: Any) -> Any:
        if inputs.get("past_key_values") is not None or not self.training:
            inputs.pop("position_ids", None)
        return forward(self, *arguments, **inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.GPT2LMHeadModel, "forward", blind)
        blind.__wrapped__ = forward  # type: ignore[attr-defined]
        patch.setattr(SessionGenerator, "_pads_exactly", lambda *asked: recorded(*asked))
        found, folder = judged(learning(questions, base, 8), tmp_path / "run")
    assert is_exact == [False]
    written, right = answers_alone(folder, questions / "eval.jsonl", is_chat=False)
    expected = text_metrics.compute(NAMES, written, [[text] for text in right])
    assert {name: found[name] for name in NAMES} == pytest.approx(expected, abs=1e-9)


def test_answers_are_the_likeliest_tokens_whatever_the_base_prefers(
    questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_llama, base)
    expected, _ = judged(learning(questions, str(base), 8), tmp_path / "plain")
    settings = {"repetition_penalty": 9.0, "num_beams": 3, "num_return_sequences": 2}
    transformers.GenerationConfig(**settings).save_pretrained(base)
    found, folder = judged(learning(questions, str(base), 8), tmp_path / "run")
    assert found == pytest.approx(expected, abs=1e-9)
    assert transformers.GenerationConfig.from_pretrained(folder).num_beams == 3


@pytest.mark.workers
def test_shards_of_an_adapter_write_what_one_worker_writes(
    questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    lora = LoraSpec(type="lora", r=4, dropout=0.0)
    config = dataclasses.replace(
        learning(questions, tiny_llama, 2),
        model=ModelSpec(base=tiny_llama, task="causal-lm", adapter=lora),
        metrics=(*NAMES, "distinct_1"),
    )
    expected, _ = judged(config, tmp_path / "one")
    sharded = dataclasses.replace(config, strategy="zero3", micro_batch_size=4)
    events = workers.run(sharded, 2, tmp_path)
    found = [event["metrics"] for event in events if event["event"] == "Evaluated"][-1]
    assert found == pytest.approx(expected, abs=1e-4)


def test_models_with_few_positions_write_whole_answers(questions: Path, tmp_path: Path) -> None:
    """The longest prompt leaves no room for the longest answer, and shorter ones do."""
    auto, most = transformers.AutoModelForCausalLM, 40
    base = tiny.save(tmp_path / "gpt2", "gpt2", auto, n_positions=most)
    found, folder = judged(learning(questions, base, 8, max_length=most), tmp_path / "run")
    rows = tmp_path / "eval.jsonl"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    lines = (questions / "eval.jsonl").read_text(encoding="utf-8").splitlines()
    whole = [line for line in lines if length_of(json.loads(line), tokenizer) <= most]
    assert len(whole) > 0
    rows.write_text("\n".join(whole), encoding="utf-8")
    written, right = answers_alone(folder, rows, is_chat=False, most=most)
    expected = text_metrics.compute(NAMES, written, [[text] for text in right])
    assert {name: found[name] for name in NAMES} == pytest.approx(expected, abs=1e-9)


def length_of(row: dict[str, str], tokenizer: Any) -> int:
    parts = tokenizer(row["prompt"])["input_ids"][:-1], tokenizer(row["response"])["input_ids"][1:]
    return sum(map(len, parts))


def test_rows_without_a_whole_response_are_refused(
    questions: Path, tiny_llama: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"no evaluation row ends within data\.max_length"):
        judged(learning(questions, tiny_llama, 1, max_length=24), tmp_path)


def test_documents_have_no_responses_to_compare_with(questions: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        f"""version: 1
name: documents
model: {{base: tiny, task: causal-lm}}
data:
  train: {{path: {questions}/train.jsonl}}
  eval: {{path: {questions}/eval.jsonl}}
  text: prompt
train:
  eval: {{metrics: [perplexity, exact_match]}}
""",
        encoding="utf-8",
    )
    with pytest.raises(JobFileError, match="exact_match compares what is written with a response"):
        load(path)
