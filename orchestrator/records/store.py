"""Stores measurements for reuse by later runs with the same workload and environment."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from jobs.spec.data import SourceSpec
from jobs.storage import files, manifest
from jobs.storage.storage import Storage
from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from orchestrator.decisions.measurement import Launch, Measurement
from orchestrator.decisions.plan import Candidate


@dataclass(frozen=True, slots=True)
class Stored:
    """A measurement, with the launch times of its worker group."""

    measurement: Measurement
    launch: Launch | None


STORED = TypeAdapter(Stored)


class Store:
    """Measurements in a storage, each under a digest of its workload."""

    def __init__(self, storage: Storage) -> None:
        self._objects = storage.objects

    def find(self, candidate: Candidate, config: TrainingConfig) -> Stored | None:
        """Returns the stored measurement of this exact workload in any environment, or None."""
        key = _key(candidate, config)
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
        """Record a measurement, if it is complete and was not disturbed."""
        key = _key(candidate, config)
        if key is None or measurement.overheads is None or measurement.disturbances:
            return
        self._objects.write(key, STORED.dump_json(Stored(measurement, launch), indent=2))


def is_same_environment(stored: Stored, environment: Mapping[str, str]) -> bool:
    """Returns whether a measurement was taken with these versions and this hardware."""
    return stored.measurement.environment == dict(environment)


def _key(candidate: Candidate, config: TrainingConfig) -> str | None:
    """Returns the key of a workload; None if the data's digest would be expensive."""
    rows = [_identity(source) for source in (config.data.train, config.data.eval)]
    if None in rows:
        return None
    of_speed = replace(config, stop_after_s=None, accepts_changes=False, early_stopping=None)
    work = TRAINING_CONFIG.dump_json(of_speed)
    parts = (work, candidate.placement.name.encode(), *(str(row).encode() for row in rows))
    return f"measurements/{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}.json"


def _identity(source: SourceSpec) -> str | None:
    """Returns the digest of files of this machine; None for other sources."""
    try:
        places = files.local_files(source) or ()
        return "/".join(manifest.identity(place) for place in places) or None
    except OSError:
        return None
