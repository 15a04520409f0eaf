"""A rule that needs the disk: the data files and the model of a job are there."""

from collections.abc import Iterator
from pathlib import Path

from jobs.errors import ModelError
from jobs.spec import JobSpec
from jobs.spec.paths import has_variable
from jobs.spec.rules import Rule, Violation
from jobs.storage import files
from jobs.storage.storage import S3_SCHEME
from jobs.training.model import location as model_location


def files_exist(folder: Path) -> Rule:
    """A rule that checks paths relative to the job file's folder."""

    def check(spec: JobSpec) -> Iterator[Violation]:
        for split, source in (("train", spec.data.train), ("eval", spec.data.eval)):
            for path in source.paths if source.is_local else ():
                if not has_variable(path) and not files.matching(path, folder):
                    message = f"{path} does not exist; paths are relative to {folder.resolve()}"
                    yield Violation(("data", split, "path"), message)
        base = spec.model.base
        if base.startswith(S3_SCHEME) or has_variable(base):
            return  # the one is looked up when it is needed, the other is refused already
        try:
            place = model_location.locate(str(folder / base) if base.startswith(".") else base)
            if isinstance(place, Path):
                model_location.check(place, base)
        except ModelError as error:
            yield Violation(("model", "base"), str(error))

    return check
