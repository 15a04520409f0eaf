"""Recognises errors that mean too little memory, on a device or on the host; imports no torch."""

import sys

HOST_OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator
    "Cannot allocate memory",  # the operating system, when weights are mapped
    "could not create a primitive",  # oneDNN, which says no more when its buffers do not fit
)
"""Parts of RuntimeError messages that mean the host's memory is exhausted."""


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error means that the memory of a device or the host is exhausted."""
    torch = sys.modules.get("torch")  # without it nothing of torch has failed
    kinds = (MemoryError, torch.OutOfMemoryError) if torch else MemoryError
    is_named = isinstance(error, kinds)
    return is_named or any(words in str(error) for words in HOST_OUT_OF_MEMORY)


def is_machine_error(error: Exception) -> bool:
    """Returns whether an error concerns memory or the GPU, and not the model or the job."""
    return is_out_of_memory(error) or "CUDA error" in str(error)
