"""Passes the variables in a job's `secrets` from the driver to workers, in memory only."""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jobs.errors import RunError, hide
from jobs.spec import JobSpec

Work = Callable[..., object]
"""A function that every worker of a group runs. Its arguments are a payload, a function that
reports events, and, if the group has a `leave` event, a function that returns whether to leave."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secret environment variables of a job; their values are hidden in logs and errors."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def bound_to(self, work: Work) -> Work:
        """Returns `work` as a function that first sets the variables in its process."""
        return functools.partial(_with, self, work)


def _with(secrets: Secrets, work: Work, *arguments: object) -> object:
    hide(secrets.values)
    os.environ.update(secrets.values)
    return work(*arguments)


def secrets_of(spec: JobSpec) -> Secrets:
    """Read a job's secrets from this process's environment.

    Raises:
        RunError: if a variable is not set.
    """
    missing = [name for name in spec.secrets if not os.environ.get(name)]
    if missing:
        raise RunError(
            f"secrets names {', '.join(missing)}, which is not set; set it in the"
            " environment of `winnow run`, or of the cluster's nodes for `winnow submit`"
        )
    hide(spec.secrets)
    return Secrets({name: os.environ[name] for name in spec.secrets})
