"""What `winnow hardware --probe` makes of a burn."""

from jobs.training.events import HardwareMeasured
from orchestrator.cli.hardware import measured_rows


def test_rates_are_shown_as_shares_of_the_catalogue_s_peak() -> None:
    found = HardwareMeasured(2, {"bf16": 494.5}, 2400.0, 50.0, 225.0)
    shares = {name: share for name, _, share in measured_rows("H200", found)}
    assert shares == {
        "bf16 matrix": "50%",
        "memory": "50%",
        "from host": "–",
        "all-reduce over 2": "50%",
    }
