"""The committed page of paths and messages is the one that the code generates."""

from pathlib import Path

from serve.tools.openapi_reference import reference_text

PAGE = Path(__file__).parents[2] / "docs/reference/endpoint-reference.md"


def test_the_committed_page_is_current_and_has_every_path_and_message() -> None:
    text = reference_text()
    assert PAGE.read_text(encoding="utf-8") == text, "run `make schema`"
    for path in ("POST /predict", "POST /v1/chat/completions", "POST /v2/models/{name}/infer"):
        assert f"### `{path}`" in text
    assert "| `inputs` | string or Pair or array of string or Pair | `required` |" in text
    assert "| `top_k` | integer or null | `null` | Number of labels" in text
