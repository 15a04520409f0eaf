"""Runs tasks of lm-evaluation-harness on a model's folder, or looks tasks up by their names.

It runs by its path, in its own process, and imports nothing of this project: lm_eval changes the
random state, the environment and the logging of its process. Arguments: `evaluate` or `describe`, a
JSON file with the settings, and the JSON file to write. It ends with its standard input, so that it
does not outlive the process that started it.
"""

import difflib
import json
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MEANT = 3
"""Most names that are suggested for an unknown one."""


class DataError(Exception):
    """The rows of a task cannot be read."""


def manager_of(names: Sequence[str], include_path: str | None) -> Any:
    """Returns the task manager that knows the names.

    lm_eval reads thousands of files to know its own tasks, which takes 10 s; they are left out if
    `include_path` has all the names.
    """
    from lm_eval.tasks import TaskManager

    class Manager(TaskManager):  # type: ignore[misc]
        def load(self, task_list: Any) -> Any:
            try:
                return super().load(task_list)
            except Exception as error:
                raise DataError(f"{type(error).__name__}: {error}") from error

    if include_path:
        alone = Manager(include_path=include_path, include_defaults=False)
        entries = [alone.task_index.get(name) for name in names]
        if all(entry and entry.kind.name in ("TASK", "PY_TASK") for entry in entries):
            return alone
    return Manager(include_path=include_path)


def describe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns by name of a task what it is: `meant` names if unknown, else its `keys`.

    Keys are the names of its numbers, such as acc,none; none if only its members have numbers; None
    if they are not known before it has run. `is_unsafe` tells whether it executes code that the
    model writes.
    """
    names = settings["tasks"]
    manager = manager_of(names, settings["include_path"])
    found: dict[str, Any] = {}
    for name in names:
        entry = manager.task_index.get(name)
        if entry is None:
            meant = difflib.get_close_matches(name, manager.all_tasks, n=MEANT, cutoff=0.75)
            found[name] = {"meant": meant}
        else:
            is_unsafe = bool((entry.cfg or {}).get("unsafe_code"))
            keys = [] if entry.kind.name == "TAG" else keys_of(entry.cfg)
            found[name] = {"keys": keys, "is_unsafe": is_unsafe}
    return found


def keys_of(config: Mapping[str, Any] | None) -> list[str] | None:
    """Returns the names of the numbers of a task or group; None if its file does not tell them."""
    if not config or "class" in config or "process_results" in config:
        return None
    if "group" in config:
        aggregated = config.get("aggregate_metric_list") or []
        pairs = [(each, each.get("filter_list", "none")) for each in aggregated]
        return [
            f"{each['metric']},{one}"
            for each, chosen in pairs
            for one in ([chosen] if isinstance(chosen, str) else chosen)
        ]
    metrics = [str(each["metric"]) for each in config.get("metric_list") or []]
    if any(os.sep in metric for metric in metrics):
        return None  # a function of the task, whose name its file does not tell
    filters = [each["name"] for each in config.get("filter_list") or []] or ["none"]
    return [f"{metric},{one}" for metric in metrics for one in filters] or None


def load(folder: Path, device: str) -> tuple[Any, Any]:
    """Loads the model, as its model card says and in the type of its weights, and its tokenizer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kind: Any = transformers.AutoModelForCausalLM
    if (folder / "adapter_config.json").exists():
        import peft

        kind = peft.AutoPeftModelForCausalLM
    return kind.from_pretrained(folder, dtype="auto").to(device).eval(), tokenizer


def evaluate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns by task its `values` and `errors`, by their keys in lm_eval, and its rows."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    names = settings["tasks"]
    manager = manager_of(names, settings["include_path"])
    model, tokenizer = load(Path(settings["folder"]), settings["device"])
    results = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=settings["batch_size"]),
        tasks=list(names),
        num_fewshot=settings["num_fewshot"],
        limit=settings["limit"],
        apply_chat_template=settings["apply_chat_template"],
        task_manager=manager,
        log_samples=False,
    )
    assert results is not None  # there is one process
    index = manager.task_index
    kept = dict.fromkeys(each for name in names for each in reported(name, results, index))
    return {name: task_result(name, results) for name in kept}


def reported(name: str, results: Mapping[str, Any], index: Mapping[str, Any]) -> Iterator[str]:
    """Yields the task or group itself if it has numbers, else those of its members that do."""
    if values_of(results["results"].get(name, {})):
        yield name
        return
    members = results.get("group_subtasks", {}).get(name)
    if members is None and name not in results["results"]:
        members = sorted(getattr(index.get(name), "tags", ()))
    for member in members or ():
        yield from reported(member, results, index)


def values_of(numbers: Mapping[str, Any], *, are_errors: bool = False) -> dict[str, float]:
    """Returns the finite numbers of a task by `metric,filter`, or their standard errors."""
    found = {}
    for key, value in numbers.items():
        metric, comma, chosen = key.partition(",")
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if comma and is_number and metric.endswith("_stderr") == are_errors:
            found[f"{metric.removesuffix('_stderr')},{chosen}"] = float(value)
    return found


def task_result(name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a task's numbers are, their standard errors, and of how many rows."""
    numbers = results["results"][name]
    rows = results.get("n-samples", {}).get(name, {}).get("effective", numbers.get("sample_len"))
    return {
        "values": values_of(numbers),
        "errors": values_of(numbers, are_errors=True),
        "rows": int(rows or 0),
    }


def end_with_input() -> None:
    """Ends this process at the end of its standard input."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(action: str, settings: str, output: str) -> None:
    """Runs an action, and writes its result, or its failure and whether rows are missing."""
    end_with_input()
    acts = {"describe": describe, "evaluate": evaluate}
    try:
        written: dict[str, Any] = {
            "found": acts[action](json.loads(Path(settings).read_text(encoding="utf-8")))
        }
    except Exception as error:  # noqa: BLE001 - tasks are code of many people
        is_data = isinstance(error, DataError)
        text = str(error) if is_data else f"{type(error).__name__}: {error}"
        written = {"failure": text, "is_data": is_data}
    Path(output).write_text(json.dumps(written), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
