"""Rows that are written are read back as they were."""

from datetime import date
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.training.data import readers, writers
from jobs.training.data.table import Table


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.text(st.characters()), min_size=1, max_size=8))
def test_text_stays_as_it_is_written(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(writers.to_json_lines(Table({"t": texts, "m": [[{"n": "ü"}]] * len(texts)})))
    found = readers.read_file(path, "a.jsonl")
    assert found.values("t") == texts
    assert found.values("m")[0] == [{"n": "ü"}]


def test_classes_are_written_by_name_and_other_values_as_text() -> None:
    table = Table({"l": [1, 0, -1], "d": [date(2024, 1, 2), None, None]}, {"l": ("no", "ja, ü")})
    assert writers.to_json_lines(table).decode().splitlines() == [
        '{"l": "ja, ü", "d": "2024-01-02"}',
        '{"l": "no", "d": null}',
        '{"l": null, "d": null}',
    ]
