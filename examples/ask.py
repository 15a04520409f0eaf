"""Send sentences to the endpoint of the newest run and print the predicted labels.

python examples/ask.py ["a sentence" …]
"""

import json
import sys
from pathlib import Path

import httpx

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
        response = httpx.post(f"{url}/predict", json={"inputs": texts}, timeout=30.0)
        response.raise_for_status()
    except httpx.HTTPError as error:
        sys.stderr.write(f"error: {url} does not answer ({error}); deploy it again\n")
        return 1
    print(f"\nlabels predicted by {url}")
    for text, label in zip(texts, response.json(), strict=True):
        print(f"  {label['label']:>8} {label['score']:.3f}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
