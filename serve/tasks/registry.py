"""The endpoint of a task, by the task's name. Its module is imported on first use."""

from jobs.spec import task_registry
from serve.tasks.endpoint import TaskEndpoint


def endpoint_of(task: str) -> TaskEndpoint:
    """Returns the endpoint of a task; raises TaskError if no task of this name is registered."""
    endpoint: TaskEndpoint = task_registry.resolve(task_registry.find(task).endpoint)
    return endpoint
