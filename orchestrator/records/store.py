"""Measurements that later runs may take over: only of the same work on the same ground."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from jobs.spec.data import SourceSpec
from jobs.storage import files, manifest
from jobs.storage.storage import Storage
from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from orchestrator.decisions.plan import Candidate
from orchestrator.decisions.predict import Launch, Measurement


@dataclass(frozen=True, slots=True)
class Stored:
    """A measurement with what starting its group took."""

    measurement: Measurement
    launch: Launch | None


STORED = TypeAdapter(Stored)


class Store:
    """Measurements, each under a digest of what was measured."""

    def __init__(self, storage: Storage) -> None:
        self._objects = storage.objects

    def find(self, candidate: Candidate, config: TrainingConfig) -> Stored | None:
        """What was measured of exactly this work, on whatever ground; None before it was."""
        key = _key(candidate, config)
        found = self._objects.read(key) if key else None
        try:
            return STORED.validate_json(found.content) if found else None
        except ValidationError:
            return None  # of another version: measured again

    def keep(
        self,
        candidate: Candidate,
        config: TrainingConfig,
        measurement: Measurement,
        launch: Launch | None,
    ) -> None:
        """Record a measurement that was carried through on a quiet machine."""
        key = _key(candidate, config)
        if key is None or measurement.overheads is None or measurement.disturbances:
            return
        self._objects.write(key, STORED.dump_json(Stored(measurement, launch), indent=2))


def is_same_ground(stored: Stored, environment: Mapping[str, str]) -> bool:
    """Whether a measurement holds where this environment is found."""
    return stored.measurement.environment == dict(environment)


def _key(candidate: Candidate, config: TrainingConfig) -> str | None:
    """None when the data cannot be told apart cheaply."""
    rows = [_identity(source) for source in (config.data.train, config.data.eval)]
    if None in rows:
        return None
    work = TRAINING_CONFIG.dump_json(replace(config, stop_after_s=None, accepts_changes=False))
    parts = (work, candidate.placement.name.encode(), *(str(row).encode() for row in rows))
    return f"measurements/{hashlib.sha256(b'|'.join(parts)).hexdigest()[:32]}.json"


def _identity(source: SourceSpec) -> str | None:
    """Of files of this machine; None for anything else, which is not looked at cheaply."""
    if not source.is_local or not source.is_file:
        return None
    try:
        places = [place for path in source.paths for place in files.matching(path)]
        return "/".join(manifest.identity(place) for place in places) or None
    except OSError:
        return None
