"""What a job's `secrets` name: from the memory of the driver to that of workers, never written."""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.errors import RunError, hide
from jobs.spec import JobSpec
from orchestrator.stages.group import Work


@dataclass(frozen=True, slots=True)
class Secrets:
    """Environment variables of a job; what is printed or logged of them is nothing."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def given_to(self, work: Work) -> Work:
        """The same work in a process that has them among its variables."""
        return functools.partial(_with, self, work)


def _with(secrets: Secrets, work: Work, *arguments: object) -> object:
    hide(secrets.values)
    os.environ.update(secrets.values)
    return work(*arguments)


def secrets_of(spec: JobSpec) -> Secrets:
    """From this process's environment; raises RunError where one is not set."""
    missing = [name for name in spec.secrets if not os.environ.get(name)]
    if missing:
        raise RunError(
            f"secrets names {', '.join(missing)}, not set where this runs; set it in the"
            " environment of `winnow run`, or of the cluster's nodes for `winnow submit`"
        )
    hide(spec.secrets)
    return Secrets({name: os.environ[name] for name in spec.secrets})
