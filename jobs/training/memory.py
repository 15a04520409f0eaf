"""Tells a lack of memory, of a device or of the host, from other errors."""

import torch

HOST_OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator
    "Cannot allocate memory",  # the operating system, when weights are mapped
    "could not create a primitive",  # oneDNN, which says no more when its buffers do not fit
)
"""What a RuntimeError says when the host's memory did not suffice."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device's memory, or the host's, did not suffice."""
    is_named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_named or any(words in str(error) for words in HOST_OUT_OF_MEMORY)


def is_of_the_machine(error: Exception) -> bool:
    """Whether an error is about memory or the GPU, and says nothing about a model or a job."""
    return is_out_of_memory(error) or "CUDA error" in str(error)
