"""The pages of the documentation, their blocks of code and the code in their sentences."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs/reference/commands.md"
FOLDERS = ("docs", "infra", "benchmarks")
PAGES = sorted(
    {*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).glob("**/*.md"))}
    - {GENERATED}
)
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
OURS = "in the job file |"
"""Head of the last column of tables whose other columns are in the words of other tools."""


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of each."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    """A page's path in the repository."""
    return str(page.relative_to(ROOT))


def inline_code(page: Path) -> list[str]:
    """Code in sentences and tables that is in our own words."""
    found: list[str] = []
    compares = False
    for line in ANY_BLOCK.sub("", page.read_text(encoding="utf-8")).splitlines():
        compares = line.startswith("|") and (compares or line.endswith(OURS))
        cells = re.split(r"(?<!\\)\|", line)
        found += INLINE.findall(cells[-2] if compares else line)
    return found
