"""Validates the values of a job file, whose task is known though other fields are wrong."""

from typing import Any

from jobs.errors import TaskError
from jobs.spec import task_registry
from jobs.spec.data import NAMED_TASK
from jobs.spec.job import JobSpec
from jobs.spec.task import Task


def validate(values: Any) -> JobSpec:
    """Returns the job of a file's values; the data section is that of the task that they name.

    Raises:
        pydantic.ValidationError: with every field that is wrong.
    """
    task = named_task(values)
    return JobSpec.model_validate(values, context={NAMED_TASK: task.name} if task else None)


def named_task(values: Any) -> Task | None:
    """Returns the task that the values name, or the default; None if they name no known task."""
    model = values.get("model") if isinstance(values, dict) else None
    if not isinstance(model, dict):
        return None
    try:
        return task_registry.find(str(model.get("task", task_registry.DEFAULT_TASK)))
    except TaskError:
        return None
