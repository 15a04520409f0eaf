"""Stores measurements for reuse by later runs with the same workload and environment."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from jobs.spec.data import SourceSpec
from jobs.storage import files, manifest
from jobs.storage.storage import Storage
from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from orchestrator.decisions.candidate import Candidate
from orchestrator.decisions.measurement import Launch, Measurement


@dataclass(frozen=True, slots=True)
class Stored:
    """A measurement, with the launch times of its worker group."""

    measurement: Measurement
    launch: Launch | None


STORED = TypeAdapter(Stored)


class Store:
    """Measurements in a storage, each under a digest of its workload.

    The rows of a source are hashed once: a store is for one sweep, whose rows do not change.
    """

    def __init__(self, storage: Storage) -> None:
        self._objects = storage.objects
        self._identities: dict[tuple[str, ...], str | None] = {}

    def find(self, candidate: Candidate, config: TrainingConfig) -> Stored | None:
        """Returns the stored measurement of this exact workload in any environment, or None."""
        key = self._key(candidate, config)
        stored = self._objects.read(key) if key else None
        try:
            return STORED.validate_json(stored.content) if stored else None
        except ValidationError:
            return None  # written by another release, so it is measured again

    def keep(
        self,
        candidate: Candidate,
        config: TrainingConfig,
        measurement: Measurement,
        launch: Launch | None,
    ) -> None:
        """Record a measurement, if it is complete, not disturbed and not of an earlier run."""
        key = self._key(candidate, config)
        is_complete = measurement.overheads is not None and not measurement.disturbances
        if key is None or not is_complete or measurement.is_reused:
            return
        self._objects.write(key, STORED.dump_json(Stored(measurement, launch), indent=2))

    def _key(self, candidate: Candidate, config: TrainingConfig) -> str | None:
        """Returns the key of a workload; None if the data's digest would be expensive."""
        rows = [self._identity(source) for source in (config.data.train, config.data.eval)]
        if None in rows:
            return None
        evaluation = config.eval.model_copy(update={"harness": None})
        of_speed = replace(
            config, stop_after_s=None, accepts_changes=False, early_stopping=None, eval=evaluation
        )
        work = TRAINING_CONFIG.dump_json(of_speed)
        parts = (work, candidate.placement.name.encode(), *(str(row).encode() for row in rows))
        return f"measurements/{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}.json"

    def _identity(self, source: SourceSpec) -> str | None:
        if source.paths not in self._identities:
            self._identities[source.paths] = _identity(source)
        return self._identities[source.paths]


def is_same_environment(stored: Stored, environment: Mapping[str, str]) -> bool:
    """Returns whether a measurement was taken with these versions and this hardware."""
    return stored.measurement.environment == dict(environment)


def _identity(source: SourceSpec) -> str | None:
    """Returns the digest of files of this machine; None for other sources."""
    try:
        places = files.local_files(source) or ()
        return "/".join(manifest.identity(place) for place in places) or None
    except OSError:
        return None
