"""lm-evaluation-harness over a model's folder: the numbers of its own command, or one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import transformers

from jobs.spec.harness import HarnessSpec
from jobs.training import harness
from jobs.training.harness import HarnessProgress, HarnessResult
from tests import harness_tasks, tiny
from tests.conftest import BAD, GOOD

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TASKS = ("film_choice", "film_text")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness") / "model"
    return Path(tiny.save(folder, "llama", transformers.AutoModelForCausalLM))


@pytest.fixture(scope="module")
def tasks(model: Path) -> Path:
    """Tasks whose right texts are what the model writes for the good adjectives alone."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    answers = {}
    for word in GOOD + BAD:
        ids = tokenizer(f"Is a {word} film good?", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            written = network.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
        text = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
        answers[word] = text if word in GOOD else "something else"
    return harness_tasks.write(model.parent / "tasks", answers)


def spec_of(folder: Path, **fields: object) -> HarnessSpec:
    return HarnessSpec.model_validate(
        {"tasks": list(TASKS), "include_path": str(folder), **fields}, strict=False
    )


def evaluated(spec: HarnessSpec, model: Path, limit_s: float | None = None) -> HarnessResult:
    return harness.evaluate(spec, model, "cpu", limit_s, lambda _: None)


def own_command(tasks: Path, model: Path, output: Path, *options: str) -> dict[str, float]:
    """What the command of lm_eval says of a folder, by task and key."""
    command = [sys.executable, "-P", "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu"]
    command += ["--model_args", f"pretrained={model}", "--tasks", ",".join(TASKS)]
    command += ["--include_path", str(tasks), "--output_path", str(output), *options]
    done = subprocess.run(command, cwd=tasks, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (written,) = output.rglob("results_*.json")
    results = json.loads(written.read_bytes())["results"]
    return {
        f"{task}:{key}": value
        for task in TASKS
        for key, value in results[task].items()
        if "," in key
    }


def test_the_numbers_are_those_of_lm_evals_own_command(
    model: Path, tasks: Path, tmp_path: Path
) -> None:
    """Earns its half minute: lm_eval itself is the reference, with other code to load the model."""
    options = ("--limit", "8", "--num_fewshot", "2", "--batch_size", "4")
    reference = own_command(tasks, model, tmp_path / "out", *options)
    found = evaluated(spec_of(tasks, limit=8, num_fewshot=2, batch_size=4), model)
    names = {
        "film_choice/acc": "film_choice:acc,none",
        "film_choice/acc_norm": "film_choice:acc_norm,none",
        "film_text/exact_match/whole": "film_text:exact_match,whole",
        "film_text/exact_match/letters": "film_text:exact_match,letters",
    }
    assert found.failure == ""
    assert found.values == {ours: reference[theirs] for ours, theirs in names.items()}
    errors = {ours: theirs.replace(",", "_stderr,") for ours, theirs in names.items()}
    assert found.errors == {ours: reference[theirs] for ours, theirs in errors.items()}
    assert found.rows == {"film_choice": 8, "film_text": 8}


def test_a_model_reaches_what_transformers_writes_with_it(model: Path, tasks: Path) -> None:
    progress: list[HarnessProgress] = []
    found = harness.evaluate(spec_of(tasks), model, "cpu", None, progress.append)
    assert found.values["film_text/exact_match/whole"] == len(GOOD) / len(GOOD + BAD)
    assert found.rows == {"film_choice": len(GOOD + BAD), "film_text": len(GOOD + BAD)}
    assert progress  # by which a worker shows that it does not hang


def test_tasks_are_described_without_their_rows(tasks: Path) -> None:
    (tasks / "choices.jsonl").rename(tasks / "elsewhere.jsonl")
    try:
        found = harness.describe(spec_of(tasks))
    finally:
        (tasks / "elsewhere.jsonl").rename(tasks / "choices.jsonl")
    assert found["film_choice"].metrics == ("film_choice/acc", "film_choice/acc_norm")
    assert found["film_text"].metrics == (
        "film_text/exact_match/whole",
        "film_text/exact_match/letters",
    )


def test_tasks_that_lm_eval_has_are_known_and_slips_are_near_misses() -> None:
    """Earns its 20 s: lm_eval reads all its thousands of tasks."""
    names = ("gsm8k", "helaswag", "mmlu", "ai2_arc", "humaneval")
    found = harness.describe(HarnessSpec(tasks=names))
    assert "gsm8k/exact_match/strict-match" in (found["gsm8k"].metrics or ())
    assert not found["helaswag"].is_known
    assert found["helaswag"].meant[0] == "hellaswag"
    assert found["mmlu"].metrics == ("mmlu/acc",)
    assert found["ai2_arc"].metrics == ()  # a tag, whose members have the numbers
    assert found["humaneval"].is_unsafe


def test_rows_that_cannot_be_read_give_one_sentence(
    model: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "tasks"
    folder.mkdir()
    text = (tasks / "choice.yaml").read_text(encoding="utf-8").replace("path: json", "path: a/b")
    (folder / "choice.yaml").write_text(text, encoding="utf-8")
    found = evaluated(spec_of(folder, tasks=["film_choice"]), model)
    assert found.values == {}
    begin = "the rows of its tasks cannot be read (ConnectionError: Couldn't reach 'a/b' on the Hub"
    assert found.failure.startswith(begin)
    assert found.failure.endswith("name tasks of local files in train.eval.harness.include_path")
    assert "\n" not in found.failure


def test_a_model_that_cannot_be_loaded_and_a_limit_of_time_are_failures(
    model: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "PROGRESS_EVERY_S", 60.0)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert evaluated(spec_of(tasks), tmp_path).failure.startswith("lm_eval failed: ")
    late = evaluated(spec_of(tasks), model, limit_s=0.05)
    assert late.failure == "it took longer than the 0 s that it may take"
    assert late.seconds < harness.PROGRESS_EVERY_S


def test_a_process_that_is_killed_is_a_failure(model: Path, tasks: Path) -> None:
    """As the kernel kills it where memory is short."""

    def kill(_: HarnessProgress) -> None:
        for child in psutil.Process().children():
            if str(harness.SCRIPT) in child.cmdline():
                child.kill()

    found = harness.evaluate(spec_of(tasks), model, "cpu", None, kill)
    assert found.values == {}
    assert found.failure.startswith("lm_eval failed: its process ended with -9, and wrote last: ")


def test_an_adapter_is_judged_on_its_base(model: Path, tasks: Path, tmp_path: Path) -> None:
    import peft

    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    torch.manual_seed(0)
    drawn = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False)
    adapted = peft.get_peft_model(base, drawn)
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    adapted.save_pretrained(adapter)
    adapted.merge_and_unload().save_pretrained(merged)
    for folder in (adapter, merged):
        tiny.tokenizer().save_pretrained(folder)
    found = evaluated(spec_of(tasks), adapter)
    assert found.values == evaluated(spec_of(tasks), merged).values
    # the base writes other words
    assert found.values["film_text/exact_match/whole"] < len(GOOD) / len(GOOD + BAD)


def test_the_process_ends_with_the_one_that_started_it(tasks: Path, tmp_path: Path) -> None:
    """A worker that is killed must not leave a process with its device behind."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"tasks": ["gsm8k"], "include_path": None}), encoding="utf-8")
    command = [sys.executable, "-P", str(harness.SCRIPT), "describe", str(settings), "out.json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ""}
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == 1
    assert not (tmp_path / "out.json").exists()
