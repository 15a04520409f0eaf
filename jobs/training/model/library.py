"""Turns what transformers, tokenizers and peft raise into errors of ours."""

import contextlib
from collections.abc import Iterator

from jobs.errors import ModelError, WinnowError, first_line


@contextlib.contextmanager
def as_model_error(clause: str) -> Iterator[None]:
    """Raises a ModelError with this clause for whatever a library raises inside.

    Errors of ours pass, and so do those of memory and the GPU.
    """
    try:
        yield
    except WinnowError:
        raise
    except Exception as error:
        from jobs.training.memory import is_of_the_machine  # torch, which planning does not need

        if is_of_the_machine(error):
            raise
        raise ModelError(f"{clause}: {first_line(error)}") from None
