"""The endpoint of a task, by the task's name; its module is imported when it is first needed."""

from jobs.spec import task_registry
from serve.tasks.endpoint import TaskEndpoint


def endpoint_of(task: str) -> TaskEndpoint:
    """How models of a task are served. Raises TaskError for a name that nobody registered."""
    found: TaskEndpoint = task_registry.resolve(task_registry.find(task).endpoint)
    return found
