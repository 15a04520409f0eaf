"""The harness section: tasks of lm-evaluation-harness that judge the published model."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from jobs.errors import shown
from jobs.spec.base import Items, SpecModel
from jobs.spec.quantities import PositiveDuration

MARK = "/"
"""Separates the task, the metric and the filter in the name of a harness metric. No metric of ours
has it."""
NOT_IN_NAMES = re.compile(r"[^\w.:/-]")
"""Matches characters that a tracker refuses in the name of a metric."""

TaskName = Annotated[str, Field(min_length=1, max_length=256)]


class HarnessSpec(SpecModel):
    """Tasks of lm-evaluation-harness, which judge the published model once, after training.

    A list of tasks is short for `tasks`. Package: `raywinnow[eval]`, on every node.
    """

    tasks: Annotated[Items[TaskName], Field(min_length=1)]
    """Tasks, groups or tags, such as `gsm8k`, `mmlu` or `ai2_arc`; `lm_eval ls tasks` lists them.
    Their metrics are named `task/metric`, and `task/metric/filter` where a task has filters, such
    as `hellaswag/acc_norm` and `gsm8k/exact_match/strict-match`."""
    num_fewshot: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Solved examples before each question; left out, each task has its own number."""
    limit: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Only the first rows of each task: a number, or a share below 1."""
    apply_chat_template: bool = False
    """Whether questions are put into the model's chat template."""
    include_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Folder with YAML files of further tasks, relative to the job file; every node needs it. Paths
    in these files are relative to it."""
    batch_size: Annotated[int, Field(ge=1, le=65_536)] | Literal["auto"] = 8
    """Questions per forward pass; `auto` lets lm_eval try which number fits into memory, which may
    be 1 for models of long contexts."""
    max_duration: PositiveDuration | None = None
    """Longest duration; what takes longer fails. So much of a budget is kept for it; without it the
    harness gets what training leaves of the budget."""

    def has_metric(self, name: str) -> bool:
        """Returns whether a name is that of a metric of one of the tasks, as far as it shows."""
        task, mark, metric = name.partition(MARK)
        return bool(mark and metric) and task in map(valid_name, self.tasks)


def valid_name(text: str) -> str:
    """Returns a text that every tracker accepts as the name of a metric, or as a part of it."""
    return NOT_IN_NAMES.sub("_", text)


def metric_name(task: str, key: str) -> str:
    """Returns our name of a number that lm_eval calls `metric,filter`, such as acc,none."""
    metric, _, chosen = key.partition(",")
    parts = (task, metric) if chosen in ("", "none") else (task, metric, chosen)
    return valid_name(MARK.join(parts))


def _as_mapping(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a list of tasks; write [{value}]")
    return {"tasks": value} if isinstance(value, list | tuple) else value


class _ListOrMapping:
    """The JSON Schema of the section, or of a list of tasks."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tasks = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
        return {"anyOf": [tasks, handler(schema)]}


Harness = Annotated[HarnessSpec, BeforeValidator(_as_mapping), _ListOrMapping()]
"""The section, or a list of its tasks."""
