"""Send sentences to the endpoint of the newest run and print the predicted labels.

python examples/ask.py ["a sentence" …]
"""

import json
import sys
from pathlib import Path

import orchestrator as winnow

SENTENCES = (
    "A warm, funny and beautifully acted film.",
    "Two hours of my life that I will never get back.",
    "The plot is thin, but the performances carry it.",
)


def main() -> int:
    """Send the request and print the response; returns the exit code."""
    endpoints = Path(".winnow/runs").glob("*/endpoint.json")
    newest_last = sorted(endpoints, key=lambda p: p.stat().st_mtime)
    if not newest_last:
        sys.stderr.write("error: no run with an endpoint in .winnow; run `make quickstart`\n")
        return 1
    url = json.loads(newest_last[-1].read_text(encoding="utf-8"))["url"]
    texts = sys.argv[1:] or list(SENTENCES)
    try:
        answers = winnow.predict(url, texts)
    except winnow.WinnowError as error:
        sys.stderr.write(f"error: {error}; deploy it again\n")
        return 1
    print(f"\nanswers of {url}")
    for text, answer in zip(texts, answers, strict=True):
        assert isinstance(answer, winnow.Label)  # as classifiers answer
        print(f"  {answer.label:>8} {answer.score:.3f}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
