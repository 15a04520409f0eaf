"""What a whole run came to."""

from dataclasses import dataclass

from orchestrator.decisions.select import Winner
from orchestrator.records.receipt import Receipt
from serve.deploy.endpoint import Endpoint
from serve.version import ModelVersion


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run came to; None for stages the job leaves out."""

    run: str
    folder: str
    winner: Winner
    model: ModelVersion
    receipt: Receipt
    endpoint: Endpoint | None
    report: str
