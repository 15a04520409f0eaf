"""Where a model version answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A healthy application."""

    application: str
    url: str
    """Of the route; the task says where below it predictions are requested."""
    version: str
    """Id of the model version that answers."""
    grpc: str | None = None
    """Address of gRPC, where it answers that too."""
