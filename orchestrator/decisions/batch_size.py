"""Which micro batches suit a job's global batch and a number of workers."""

from collections.abc import Callable

from cluster.memory_estimate import Verdict
from cluster.placement import Placement
from jobs.spec import JobSpec

LARGEST_UNKNOWN_MICRO_BATCH = 32
"""Largest micro batch of `auto` if the model's size, and so its memory, is unknown."""


def choose(
    spec: JobSpec, placement: Placement, verdict: Callable[[int], Verdict]
) -> tuple[int, str]:
    """Returns the micro batch of `auto` and the reason.

    It is the largest power of two that divides a worker's share and fits, or the whole share if the
    loss compares the rows of a batch. `verdict` says whether a micro batch fits.
    """
    share = max(1, spec.train.global_batch_size // placement.workers)
    if spec.data.needs_whole_batch:
        return share, f"{share}: the loss compares all rows of the global batch"
    powers = [2**n for n in range(share.bit_length()) if share % 2**n == 0]
    verdicts = {size: verdict(size) for size in powers}
    if "unknown" in verdicts.values():
        known = [size for size in powers if size <= LARGEST_UNKNOWN_MICRO_BATCH]
        return known[-1], f"{known[-1]}: the model's memory is unknown"
    fitting = [size for size in powers if verdicts[size] == "fits"]
    chosen = fitting[-1] if fitting else powers[0]
    return chosen, f"{chosen}: the largest that fits {placement.memory_gib:.0f} GiB"


def refusal(spec: JobSpec, workers: int, micro_batch_size: object) -> str:
    """Returns why a job cannot run with a micro batch on so many workers; empty if it can."""
    batch = spec.train.global_batch_size
    share, remainder = divmod(batch, workers)
    if remainder or not isinstance(micro_batch_size, int) or share % micro_batch_size:
        return (
            f"micro batch {micro_batch_size} x {workers} workers does not divide the global batch"
            f" of {batch}"
        )
    if spec.data.needs_whole_batch and micro_batch_size != share:
        return (
            f"the loss compares all rows of the global batch of {batch}, so the micro batch on"
            f" {workers} workers must be {share}"
        )
    return ""
