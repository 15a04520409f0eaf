"""Which candidates need no probe, because others have shown how micro batches matter."""

from collections.abc import Mapping
from dataclasses import replace

from jobs.training.config import TRAINING_CONFIG, TrainingConfig
from jobs.training.events import BUSY_SHARE, Probed, Unprobed


def beyond_slower(
    candidate: str, config: TrainingConfig, known: Mapping[str, tuple[TrainingConfig, Probed]]
) -> Unprobed | None:
    """Returns why a candidate needs no probe; None if it does. `known` are those before it, by id.

    Over micro batches, all else alike, the time of a step falls until the device is busy and rises
    when memory is short: if 16 rows are slower than 32, so are 8. A slower time that other programs
    may have caused says nothing.
    """
    for between, slower in known.values():
        better = known.get(slower.better)
        if better is None or not slower.is_given_up or not _is_undisturbed(slower):
            continue
        low, high = sorted((config.micro_batch_size, better[0].micro_batch_size))
        is_between = low < between.micro_batch_size < high
        if is_between and len({_but_size(each) for each in (config, between, better[0])}) == 1:
            return Unprobed(candidate, slower.candidate, slower.better)
    return None


def _is_undisturbed(probed: Probed) -> bool:
    others = probed.speed.others_cpu_share if probed.speed else 0.0
    return probed.is_steady and others <= BUSY_SHARE


def _but_size(config: TrainingConfig) -> bytes:
    return bytes(TRAINING_CONFIG.dump_json(replace(config, micro_batch_size=1)))
