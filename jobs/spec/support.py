"""Parts of the format that no stage honours yet: refused, because ignoring them would mislead."""

from collections.abc import Callable, Iterator

from jobs.spec.job import JobSpec
from jobs.spec.rules import Path, Violation


def _is_chat(spec: JobSpec) -> bool:
    return spec.model.task == "causal-lm"


NOT_YET: tuple[tuple[str, Callable[[JobSpec], bool]], ...] = (
    ("serve.engine", lambda s: _is_chat(s) and s.serve is not None and s.serve.engine != "auto"),
    ("serve.grpc", lambda s: _is_chat(s) and s.serve is not None and s.serve.grpc),
    (
        "serve.fronts",
        lambda s: _is_chat(s) and s.serve is not None and s.serve.fronts not in ("auto", 0),
    ),
)
"""Field and the test that tells whether a job uses it in a way no stage honours."""


def unsupported(spec: JobSpec) -> Iterator[Violation]:
    """Fields in use that no stage honours yet."""
    for name, is_used in NOT_YET:
        if is_used(spec):
            path: Path = tuple(name.split("."))
            yield Violation(path, "is not supported yet; remove it or change it")
