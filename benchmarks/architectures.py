"""Every architecture of the installed transformers, as a table: what is right, what is refused.

    python benchmarks/architectures.py [--task text-classification|causal-lm]
                                       [--only NAME ... | --rest] [--jobs N]

Each architecture is built with two small layers, random weights and a tokenizer of 300 words
(`tests/tiny.py`), trained on sentences whose words decide the answer, and compared:

- **loop**: its first 12 losses are those of a loop in plain PyTorch,
- **packed**: causal-lm rows share rows, or why they do not,
- **checkpointing**: the losses are the same with gradient checkpointing,
- **ddp, zero2, zero3**: two workers have the losses of one,
- **published**: transformers alone gives the saved model's rows the scores of training,
- **LoRA**: the same for an adapter, alone and merged,
- **engines** of a CPU that answer alone and in lists as training did.

A cell is `yes`, the sentence that a user reads, or **wrong**; what cannot be made small is listed
by itself. Writes `benchmarks/results/architectures.json` and `docs/reference/architectures.md`;
`--rest` judges what that file lacks and keeps its other rows.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks/results/architectures.json"
sys.path.insert(0, str(ROOT))


from jobs import errors  # noqa: E402 - runs from a clone, installed or not
from jobs.errors import WinnowError, first_line  # noqa: E402
from jobs.spec import task_registry  # noqa: E402
from jobs.spec.model import LoraSpec  # noqa: E402
from jobs.spec.serve import EngineName  # noqa: E402
from jobs.spec.train import OptimizerSpec, Strategy  # noqa: E402
from jobs.training import eval_sample, plain_scores, publication  # noqa: E402
from jobs.training.config import TrainingConfig  # noqa: E402
from jobs.training.corpus import load_corpus  # noqa: E402
from jobs.training.data import batches  # noqa: E402
from jobs.training.data.batches import FILLER  # noqa: E402
from jobs.training.engine.learning_rate import rate_at  # noqa: E402
from jobs.training.events import Event, Started, Stepped  # noqa: E402
from jobs.training.loop import train  # noqa: E402
from jobs.training.session import build_session  # noqa: E402
from jobs.training.task import training_of  # noqa: E402
from jobs.training.world import World  # noqa: E402
from serve.batching.rows import Tokenizer  # noqa: E402
from serve.engines import acceptance, engine_factory, selection  # noqa: E402
from serve.engines.engine_factory import EngineFactory  # noqa: E402
from tests import tiny  # noqa: E402
from tests.builders import language_config, language_data, training_config  # noqa: E402
from tests.jobs.training import workers  # noqa: E402

LOSSES, LOSS_BOUND = 12, 1e-6
SHARED_BOUND = 1e-5
"""Of losses on two workers, whose gradients are summed in another order."""
STRATEGIES: tuple[Strategy, ...] = ("ddp", "zero2", "zero3")
SCORE_BOUND = 1e-3
LIMIT_S = 240
"""Longest time for one architecture; what takes longer is not judged."""
GOOD = ("superb", "moving", "delightful", "fresh", "brilliant")
BAD = ("dull", "awful", "tedious", "clumsy", "lifeless")
ENGINES: tuple[EngineName, ...] = ("openvino-fp32", "onnx-fp32", "torch-fp32")
NAMES: dict[str, Mapping[str, Any]] = {
    "text-classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
MOST_WEIGHTS = 50_000_000
"""Of what counts as small."""
YES, WRONG = "yes", "**wrong**"
Row = dict[str, str]


def main() -> int:
    """Judges every architecture, writes JSON and table, and exits with 1 if a cell is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", action="append", choices=NAMES)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+")
    which.add_argument("--rest", action="store_true", help="what the result file lacks")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each for one architecture")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/reference/architectures.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    before = json.loads(RESULT.read_text(encoding="utf-8")) if arguments.rest else {}
    found: dict[str, dict[str, Row]] = {task: before.get(task, {}) for task in NAMES}
    with (
        tempfile.TemporaryDirectory() as name,
        concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        write_rows(Path(name))
        for task in arguments.task or NAMES:
            kinds = arguments.only or sorted(set(NAMES[task]) - set(found[task]))
            each = functools.partial(judged, task=task, data=Path(name))
            if arguments.jobs > 1:
                each = functools.partial(elsewhere, task=task)
            rows = (pool.map if arguments.jobs > 1 else map)(each, kinds)
            for kind, row in zip(kinds, rows, strict=True):
                found[task][kind] = row
                print(task, kind, json.dumps(row), flush=True)
                if not arguments.only:
                    write(found, arguments.out)
    judgements = [text for rows in found.values() for row in rows.values() for text in row.values()]
    return int(any(WRONG in text for text in judgements))


def write(found: Mapping[str, Mapping[str, Row]], out: Path) -> None:
    """Writes the rows judged so far, in the order of their names."""
    rows = {task: dict(sorted(found[task].items())) for task in NAMES}
    result = {"transformers": transformers.__version__, "torch": torch.__version__, **rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    out.write_text(page(result), encoding="utf-8")


def write_rows(folder: Path) -> None:
    """Sentences whose words decide the label and the answer."""
    draw = random.Random(3)
    for name, count in (("train", 96), ("eval", 32)):
        texts, chats = ["text,label"], []
        for index in range(count):
            words, label = ((GOOD, "positive"), (BAD, "negative"))[index % 2]
            text = f"a {draw.choice(words)} film {'indeed ' * draw.randrange(5)}"
            texts.append(f"{text},{label}")
            chats.append(json.dumps({"prompt": f"What is {text}?", "response": f" It is {label}."}))
        (folder / f"{name}.csv").write_text("\n".join(texts) + "\n", encoding="utf-8")
        (folder / f"{name}.jsonl").write_text("\n".join(chats) + "\n", encoding="utf-8")


def elsewhere(kind: str, task: str) -> Row:
    """The same in a process of its own, which may crash alone."""
    command = [sys.executable, __file__, "--task", task, "--only", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *_, last = [line for line in done.stdout.splitlines() if line.startswith(task)] or [""]
    if not last:
        return {"trains": f"{WRONG}: its process ended with code {done.returncode}"}
    row: Row = json.loads(last.split(maxsplit=2)[2])
    return row


def judged(kind: str, task: str, data: Path) -> Row:
    """All cells of one architecture."""
    with tempfile.TemporaryDirectory() as name, limited():
        folder = Path(name)
        auto = transformers.AutoModelForSequenceClassification
        if task == "causal-lm":
            auto = transformers.AutoModelForCausalLM
        try:
            with torch.device("meta"):
                made = auto.from_config(tiny.config_of(kind))
            if (size := sum(weight.numel() for weight in made.parameters())) > MOST_WEIGHTS:
                return {"small": f"has {size:,} weights at least"}
            base = tiny.save(folder / "base", kind, auto)
            model, ids = auto.from_pretrained(base).eval(), torch.arange(3, 11)[None]
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
        except Exception as error:  # noqa: BLE001 - configurations refuse small values in many ways
            return {"small": first_line(error)[:100]}
        try:
            row = cells(base, task, data, folder)
            return {
                title: text.replace(base, "it").replace("|", "/") for title, text in row.items()
            }
        except TimeoutError:
            return {"small": f"took longer than {LIMIT_S} s"}


def cells(base: str, task: str, data: Path, folder: Path) -> Row:
    """What training, publishing and serving make of a base."""
    config = configured(base, task, data)
    events: list[Event] = []
    row: Row = {}
    try:
        reference = train(config, events.append, folder / "whole")
    except WinnowError as error:
        return {"trains": str(error)}
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001 - what is not a sentence of ours is a fault
        return {"trains": f"{WRONG}: {type(error).__name__} {first_line(error)[:80]}"}
    row["trains"] = YES
    started = next(event for event in events if isinstance(event, Started))
    if task == "causal-lm":
        refused = [text for text in started.remarks if text.startswith("rows are not packed: ")]
        row["packed"] = refused[0].removeprefix("rows are not packed: ") if refused else YES
    losses = [event.loss for event in events if isinstance(event, Stepped)][:LOSSES]
    row["loop"] = cell(lambda: far(losses, plain_losses(config)), LOSS_BOUND)
    row["checkpointing"] = cell(lambda: far(losses, checkpointed(config)), LOSS_BOUND)
    model = Path(reference.path) / "model"
    for strategy in STRATEGIES:
        shared = functools.partial(on_two_workers, config, strategy, folder)
        row[strategy] = shown(shared, losses)
    row["published"] = cell(lambda: proof(model, task), SCORE_BOUND)
    for merge in (False, True):
        lora = LoraSpec(type="lora", r=4, alpha=8, dropout=0.0, merge=merge)
        adapted = dataclasses.replace(
            config, model=config.model.model_copy(update={"adapter": lora})
        )
        name = "LoRA merged" if merge else "LoRA"
        scored = functools.partial(proof_of, adapted, folder / name)
        row[name] = cell(scored, SCORE_BOUND)
    if task == "text-classification":
        row["engines"] = engines(model, folder / "exports", config.data.max_length)
    return row


def configured(base: str, task: str, data: Path) -> TrainingConfig:
    """A short job without dropout, as far as the architecture has any."""
    rate = OptimizerSpec(lr=1e-3)
    fields: dict[str, Any] = {"optimizer": rate, "epochs": 4.0, "global_batch_size": 16}
    fields["micro_batch_size"] = 16
    if task == "causal-lm":
        rows = language_data(data, max_length=64)
        config = language_config(data, base, data=rows, **fields)
    else:
        config = training_config(data, base, **fields)
    still = config.model.model_copy(update={"dropout": 0.0, "task": task, "base": base})
    with contextlib.suppress(WinnowError):
        made = dataclasses.replace(config, model=still)
        build_session(made, load_corpus(made), CPU)
        return made
    return dataclasses.replace(config, model=still.model_copy(update={"dropout": None}))


CPU = World(0, 1, torch.device("cpu"))


def plain_losses(config: TrainingConfig) -> list[float]:
    """A loop in plain PyTorch over the same batches, from the same weights."""
    session = build_session(config, load_corpus(config), CPU)
    model, tokens = session.model.train(), session.corpus.train
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() > 1]
    rest = [p for p in trained if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": config.optimizer.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ],
    )
    store, found = type(session.eval_store)(tokens, CPU.device), list[float]()
    total = session.batch_plan.total_steps
    for rows in all_batches(config, tokens.lengths):
        real = rows[rows != FILLER]
        # as wide as in training: padding moves the last bit, which experts are chosen by
        width = batches.fit_widths(tokens.lengths[real].max()[None], session.batch_plan.widths)
        batch = store.gather(torch.from_numpy(real), int(width[0]))
        for group in optimizer.param_groups:
            group["lr"] = rate_at(len(found), total, config.optimizer.lr, config.lr_schedule)
        loss = training_of(config.model.task).loss(model, batch, torch.ones(len(real)))
        loss = loss / max(1, int(tokens.targets[real].sum()))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(trained, config.optimizer.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        if len(found) == LOSSES:
            break
    return found


def all_batches(config: TrainingConfig, lengths: Any) -> Iterator[Any]:
    """Row numbers of each batch, epoch after epoch."""
    for epoch in range(LOSSES):
        yield from batches.epoch_batches(lengths, config.global_batch_size, config.seed, epoch)


def checkpointed(config: TrainingConfig) -> list[float]:
    """Returns the first losses of a run with gradient checkpointing."""
    events: list[Event] = []
    train(dataclasses.replace(config, gradient_checkpointing=True), events.append)
    return [event.loss for event in events if isinstance(event, Stepped)][:LOSSES]


def on_two_workers(config: TrainingConfig, strategy: Strategy, folder: Path) -> list[float]:
    """The first losses of two workers, each with half of every batch."""
    half = config.global_batch_size // 2
    made = dataclasses.replace(config, strategy=strategy, micro_batch_size=half)
    log = folder / f"{strategy}.jsonl"
    group = workers.start(made, 2, None, log)
    try:
        codes = workers.finish(group)
    finally:
        workers.kill(group, 0)
    if any(codes):
        raise WorkerError(log.with_suffix(".error").read_text(encoding="utf-8"))
    return workers.losses(workers.read(log))[:LOSSES]


class WorkerError(Exception):
    """What a worker raised, as Python shows it."""


def shown(measure: Callable[[], list[float]], losses: Sequence[float]) -> str:
    """A cell for losses that workers had; a sentence of ours that ended them is theirs."""
    try:
        return cell(lambda: far(losses, measure()), SHARED_BOUND)
    except WorkerError as error:
        found = re.match(r"(\w+)\((['\"])(.*)\2\)$", str(error), re.DOTALL)
        is_ours = found and issubclass(getattr(errors, found[1], Exception), WinnowError)
        return found[3] if found and is_ours else f"{WRONG}: {str(error)[:80]}"


def saved(config: TrainingConfig, folder: Path) -> Path:
    """The model of a run."""
    return Path(train(config, lambda _: None, folder).path) / "model"


def proof_of(config: TrainingConfig, folder: Path) -> float:
    """The same of a model that is trained first."""
    return proof(saved(config, folder), config.model.task)


def proof(model: Path, name: str) -> float:
    """How far plain transformers scores from training."""
    task = task_registry.find(name)
    found = plain_scores.scores_of(model, "cpu", task.auto_class, task.activation)
    is_loss = task.activation == "token-loss"
    difference, refusal = publication.compare(
        eval_sample.read(model), publication.PlainScores(**found), SCORE_BOUND, is_loss=is_loss
    )
    return float("inf") if refusal else difference


def engines(model: Path, exports: Path, max_length: int) -> str:
    """Engines that pass the acceptance check and answer as training did, alone and in lists."""
    maker = EngineFactory(model, exports, Tokenizer(model, max_length), "cpu", 1)
    sample = engine_factory.read_eval_sample(model, "softmax")
    assert sample.scores is not None
    selection.CHECK_THRESHOLD = 0.0  # slow engines are judged too
    try:
        choice = selection.choose(maker, ENGINES, sample, is_timed=False)
    except WinnowError as error:
        return str(error)
    allowed = [trial.engine for trial in choice.trials if not trial.refusal]
    for name in allowed:
        engine = maker.make(name, sample)
        for batch in (1, 7, len(sample.rows)):
            scores = acceptance.scores(engine, sample.rows, batch)
            if abs(scores - sample.scores).max() > SCORE_BOUND:
                return f"{name} {WRONG}"
    return ", ".join(name.partition("-")[0] for name in allowed) or "torch, one by one"


def far(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest difference, as a share of the value."""
    return max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(one, other, strict=True))


def cell(measure: Callable[[], float], bound: float) -> str:
    """`yes` within the bound, the sentence that a user reads, or wrong with how far it is."""
    try:
        difference = measure()
    except WinnowError as error:
        return str(error)
    except (TimeoutError, WorkerError):
        raise
    except Exception as error:  # noqa: BLE001 - what is not a sentence of ours is a fault
        return f"{WRONG}: {type(error).__name__} {first_line(error)[:80]}"
    return YES if difference <= bound else f"{WRONG}: {difference:.2g}"


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises TimeoutError inside the block after LIMIT_S seconds."""

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def page(result: dict[str, Any]) -> str:
    """The table for the docs."""
    lines = [
        "# Architectures",
        "",
        f"Written by `benchmarks/architectures.py` with transformers {result['transformers']} and"
        f" torch {result['torch']}: each architecture with two small layers and random weights. A"
        " cell is `yes`, the sentence that a user reads, or wrong.",
        "",
        "The first 12 losses are those of a loop in plain PyTorch (loop), with gradient"
        " checkpointing too, and on two workers (ddp, zero2, zero3); causal-lm samples share rows"
        " (packed); plain transformers gives the saved model's rows the scores of training"
        " (published), also with an adapter (LoRA) and with one that is merged; engines are those"
        " of a CPU that answer alone and in lists as training did.",
    ]
    for task in NAMES:
        rows: dict[str, Row] = result.get(task, {})
        built = {kind: row for kind, row in rows.items() if "small" not in row}
        titles = list(dict.fromkeys(title for row in built.values() for title in row))
        lines += ["", f"## {task}", "", f"| architecture | {' | '.join(titles)} |"]
        lines.append(f"| --- |{' --- |' * len(titles)}")
        for kind, row in built.items():
            lines.append(f"| {kind} | {' | '.join(row.get(title, '') for title in titles)} |")
        left = [kind for kind, row in rows.items() if "small" in row]
        if left:
            lines += ["", f"Not made small, so not tried: {', '.join(left)}."]
        if missing := sorted(set(NAMES[task]) - set(rows)):
            lines += ["", f"Not judged yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
