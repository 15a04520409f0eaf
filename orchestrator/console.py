"""Shows the progress of a run: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable

import rich.console
import rich.progress
import rich.text

from orchestrator.notices import Notice, Pace, Progress, Remark, StageFinished, StageStarted

PLAIN_INTERVAL_S = 5.0
"""Shortest time between two progress lines of a stage without a terminal."""


class Console:
    """Shows notices on stderr; use it as a context manager, which removes the bars at the end."""

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = rich.console.Console(stderr=True, highlight=False, quiet=quiet)
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("{task.description:>8}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.fields[count]}"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[text]}", markup=False),
            console=self._out,
            transient=True,
            disable=not self._out.is_terminal or quiet,
        )
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._pace = Pace(PLAIN_INTERVAL_S, clock)

    def __enter__(self) -> "Console":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, notice: Notice) -> None:
        """Show one notice."""
        match notice:
            case StageStarted(stage, text):
                self._line(stage, f"{text or 'started'} …")
                self._begin_bar(stage, text)
            case Progress():
                self._progress(notice)
            case StageFinished(stage, text):
                self._end_bars()
                self._line(stage, f"✓ {text}")
            case Remark(text):
                self._line("", text)

    def _progress(self, notice: Progress) -> None:
        is_last, count = notice.done == notice.total, f"{notice.done}/{notice.total}"
        is_due = not self._out.is_terminal and self._pace.is_due(notice.stage, is_last=is_last)
        if notice.is_result or is_due:
            self._line(notice.stage, f"{count} {notice.text}")
        if notice.stage not in self._tasks:  # probes go on beside trials
            self._add_bar(notice.stage)
        text = "" if notice.is_result else notice.text
        self._bars.update(
            self._tasks[notice.stage],
            completed=notice.done,
            total=notice.total,
            count=count,
            text=text,
        )
        if is_last and len(self._tasks) > 1:
            self._bars.remove_task(self._tasks.pop(notice.stage))

    def _begin_bar(self, stage: str, text: str = "") -> None:
        """Show a moving bar in place of those of other stages, until progress is known."""
        self._end_bars()
        self._add_bar(stage, text)

    def _add_bar(self, stage: str, text: str = "") -> None:
        self._tasks[stage] = self._bars.add_task(stage, total=None, count="", text=text)

    def _end_bars(self) -> None:
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()

    def _line(self, stage: str, text: str) -> None:
        # assembled, because rich would read brackets in texts as markup
        line = rich.text.Text.assemble((f"{stage:>8}", "bold"), f" {text}")
        self._out.print(line, soft_wrap=True)
