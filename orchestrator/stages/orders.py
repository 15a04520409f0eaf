"""What the workers of a run are told to do; who tells them need not import torch."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ray.cloudpickle

from jobs.training.config import TrainingConfig
from jobs.training.events import Report
from jobs.training.probing.timing import GiveUp

Leave = Callable[[], bool]


def probe_in_worker(
    payload: tuple[bytes, Mapping[str, GiveUp]], report: Report, leave: Leave
) -> None:
    """Probe candidates, of which the payload has pickled requests and when a probe stops early."""
    from jobs.training.probing.probe import probe_all

    requests, rules = ray.cloudpickle.loads(payload[0]), payload[1]
    limited = [dataclasses.replace(each, give_up=rules.get(each.candidate)) for each in requests]
    probe_all(limited, report)


def train_in_worker(config: TrainingConfig, report: Report, leave: Leave, kept: Any) -> None:
    """Train without checkpoints, as a trial does, in the session that the last one left if it can.

    `kept` is a `jobs.training.restart.Kept`, whose module imports torch.
    """
    from jobs.training.loop import train

    train(config, report, leave=leave, kept=kept)
