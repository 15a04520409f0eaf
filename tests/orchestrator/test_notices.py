"""How often progress is passed on."""

import threading
from pathlib import Path

from jobs.storage.storage import open_storage
from orchestrator.context import Context
from orchestrator.notices import Notice, Pace, Remark
from orchestrator.records.runs import Run
from tests.builders import job


def test_a_pace_lets_one_of_a_key_pass_in_an_interval_and_the_last_always() -> None:
    now = [0.0]
    pace = Pace(5.0, lambda: now[0])
    assert pace.is_due("fit", is_last=False)
    assert pace.is_due("probe", is_last=False)  # another key has an interval of its own
    now[0] = 4.9
    assert not pace.is_due("fit", is_last=False)
    assert pace.is_due("fit", is_last=True)
    now[0] = 5.1  # 0.2 s after the last that passed
    assert not pace.is_due("fit", is_last=False)
    assert pace.is_due("probe", is_last=False)


def test_a_signal_s_handler_may_tell_something_while_its_thread_does(tmp_path: Path) -> None:
    """A handler runs between two instructions of whatever the thread does."""
    from orchestrator import pipeline

    told, storage = list[str](), open_storage(tmp_path)

    def notify(notice: Notice) -> None:
        assert isinstance(notice, Remark)
        told.append(notice.text)
        if notice.text == "a step":
            context.remark("leaving")  # as the handler does

    context = pipeline._measured(Context(job(), Run("r", storage), storage, notify, 0))
    thread = threading.Thread(target=context.remark, args=["a step"], daemon=True)
    thread.start()
    thread.join(30)
    assert told == ["a step", "leaving"]
