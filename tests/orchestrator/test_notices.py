"""How often progress is passed on."""

from orchestrator.notices import Pace


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
