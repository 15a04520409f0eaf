"""Converts errors of transformers, tokenizers and peft into ModelError."""

import contextlib
from collections.abc import Iterator

from jobs.errors import ModelError, WinnowError, first_line


@contextlib.contextmanager
def as_model_error(clause: str) -> Iterator[None]:
    """Converts any error of a library inside the context into a ModelError.

    The message begins with `clause`. Errors of this project, of memory and of the GPU pass
    unchanged.

    Raises:
        ModelError: for any other error.
    """
    try:
        yield
    except WinnowError:
        raise
    except Exception as error:
        from jobs.training.out_of_memory import (
            is_machine_error,  # imports torch, which planning avoids
        )

        if is_machine_error(error):
            raise
        raise ModelError(f"{clause}: {first_line(error)}") from None
