"""The slowest tests of a run, as a table: `make durations`."""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

SLOWEST = 25


def table(reports: Sequence[Path]) -> str:
    """Markdown of the slowest tests of some JUnit reports, with the sum of each report.

    Times hold the fixtures that a test was the first to need.
    """
    lines = ["# The slowest tests", "", "Written by `make durations` after `make test-all`.", ""]
    found = []
    for report in reports:
        cases = list(ET.parse(report).getroot().iter("testcase"))
        seconds = sum(float(case.attrib["time"]) for case in cases)
        lines.append(f"- `{report.stem}`: {len(cases)} tests, {seconds:.0f} s in all processes")
        found += [(float(c.attrib["time"]), report.stem, name_of(c)) for c in cases]
    lines += ["", "| s | suite | test |", "| ---: | --- | --- |"]
    slowest = sorted(found, reverse=True)[:SLOWEST]
    lines += [f"| {seconds:.1f} | {suite} | `{name}` |" for seconds, suite, name in slowest]
    return "\n".join(lines) + "\n"


def name_of(case: ET.Element) -> str:
    """Module and function."""
    module = case.attrib["classname"].removeprefix("tests.")
    return f"{module}::{case.attrib['name'].partition('@')[0]}"


if __name__ == "__main__":
    sys.stdout.write(table([Path(name) for name in sys.argv[1:]]))
