"""Tags of every scheme, CoNLL files, spans of characters, and job files that mix things up."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import seqeval.metrics
import seqeval.scheme
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import DataError
from jobs.spec.data import SourceSpec
from jobs.tasks.token_classification import metrics, rows, tags
from jobs.tasks.token_classification.task import TokenData
from jobs.training.data import conll_files, encoding, readers
from jobs.training.data.tokens import IGNORED, TOKEN_LABELS, TokenStore
from jobs.training.model import location
from tests.builders import MINILM

SCHEMES = {
    "BIO": seqeval.scheme.IOB2,
    "IOB1": seqeval.scheme.IOB1,
    "BIOES": seqeval.scheme.IOBES,
    "BILOU": seqeval.scheme.BILOU,
}
ENTITIES = ("person", "creative-work", "x")
"""One has a hyphen itself."""
Span = tuple[int, int, str]
LABELS = ("O", *(f"{prefix}-{entity}" for entity in sorted(ENTITIES) for prefix in "BI"))


@st.composite
def sentences(draw: st.DrawFn) -> tuple[int, list[Span]]:
    """Number of words, and entities that do not overlap."""
    spans, words = list[Span](), draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(1, 3))
        spans.append((words, words + length, draw(st.sampled_from(ENTITIES))))
        words += length + draw(st.integers(0, 2))
    return max(1, words), spans


def written(words: int, spans: Sequence[Span], scheme: str) -> list[str]:
    """The tags of a sentence in a scheme."""
    last, alone = {"BIOES": "ES", "BILOU": "LU"}.get(scheme, "IB")
    found, ends = ["O"] * words, dict[int, str]()
    for start, end, entity in spans:
        for at in range(start, end):
            found[at] = f"I-{entity}"
        found[end - 1] = f"{last}-{entity}"
        found[start] = f"{alone if end - start == 1 else 'B'}-{entity}"
        if scheme == "IOB1" and ends.get(start) != entity:
            found[start] = f"I-{entity}"
        ends[end] = entity
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(sentences(), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_every_scheme_becomes_the_same_tags(
    scheme: str, drawn: list[tuple[int, list[Span]]]
) -> None:
    found = tags.to_bio([written(*each, scheme) for each in drawn], "rows")
    assert found == [written(*each, "BIO") for each in drawn]
    entities = seqeval.scheme.Entities(found, seqeval.scheme.IOB2).entities
    assert [[e.to_tuple()[1:] for e in row] for row in entities] == [
        [(entity, start, end) for start, end, entity in spans] for _, spans in drawn
    ]


@pytest.mark.parametrize(
    ("given_rows", "reason"),
    [
        (
            [["O", "I-a"], ["B-a", "O"]],
            "row 1: tag 2, 'I-a', follows O, and an entity begins with B-a",
        ),
        ([["B-a", "I-b"]], "row 1: tag 2, 'I-b', follows B-a, and an entity begins with B-b"),
        ([["B-a", "E-b"]], "row 1: tag 1, 'B-a', is followed by E-b"),
        ([["S-a"], ["O", "E-a"]], "row 2: tag 2, 'E-a', follows O"),
        ([["S-a", "L-a"]], "mixes tags of BIOES and of BILOU"),
        ([["O"], ["NOUN"]], "row 2: tag 1, 'NOUN', is of no known scheme; a tag is O, or B-,"),
        ([["B-"]], "'B-', is of no known scheme"),
        ([["b-a"]], "'b-a', is of no known scheme"),
    ],
)
def test_tags_of_no_scheme_are_refused_with_their_row(
    given_rows: list[list[str]], reason: str
) -> None:
    with pytest.raises(DataError) as caught:
        tags.to_bio(given_rows, "rows")
    assert reason in str(caught.value)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS)), min_size=1),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=120, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_metrics_are_those_of_seqeval_in_strict_mode(rows_: list[list[tuple[str, str]]]) -> None:
    """Of any labels, also an I- that continues nothing; summed over rows judged apart."""
    true = [[one for one, _ in row] for row in rows_]
    predicted = [[other for _, other in row] for row in rows_]
    width = max(map(len, rows_)) + 1
    total = torch.zeros(3, len(ENTITIES), dtype=torch.float64)
    for one, other in zip(true, predicted, strict=True):
        filled = [
            torch.tensor([[LABELS.index(label) for label in row] + [0] * (width - len(row))])
            for row in (one, other)
        ]
        counted = metrics.count(filled[0], filled[1], torch.ones(1), len(ENTITIES))
        ignored = metrics.count(filled[0], filled[1], torch.zeros(1), len(ENTITIES))
        assert not ignored.any()
        total += counted
    found = metrics.compute(total.numpy())
    strict = {"mode": "strict", "scheme": seqeval.scheme.IOB2}
    macro = seqeval.metrics.f1_score(true, predicted, average="macro", **strict)
    assert found == pytest.approx(
        {
            "precision": seqeval.metrics.precision_score(true, predicted, **strict),
            "recall": seqeval.metrics.recall_score(true, predicted, **strict),
            "f1": seqeval.metrics.f1_score(true, predicted, **strict),
            "f1_macro": macro if total.any() else 0.0,
        }
    )


def test_conll_files_have_a_list_for_each_column(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(
        b"\xef\xbb\xbf-DOCSTART- -X- O O\r\n\r\nEU NNP B-NP B-ORG\r\nrejects VBZ B-VP O\r\n \t\r\n"
        b"\xc2\xa0 NN O O\n"
    )
    found = readers.read_file(path, "a.conll")
    assert {name: found.values(name) for name in found.columns} == {
        "tokens": [["EU", "rejects"], ["\u00a0"]],
        "2": [["NNP", "VBZ"], ["NN"]],
        "3": [["B-NP", "B-VP"], ["O"]],
        "tags": [["B-ORG", "O"], ["O"]],
    }
    path.write_text("New York\tB-place\n#tag\tO\n\n\nEiffel\tB-place", encoding="utf-8")
    assert readers.read_file(path, "a.conll").values("tokens") == [["New York", "#tag"], ["Eiffel"]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a O\nb\n", "line 2 has one column: 'b'"),
        ("a\tO\nb\tX\tO\n", "line 2 has 3 columns, and the first line 2"),
        ("a\tO\n\tO\n", "line 2 has an empty token or tag"),
        ("\n\n", "has no rows"),
    ],
)
def test_conll_files_are_refused_with_their_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        readers.read_file(path, "a.conll")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(location.locate(MINILM))


def encoded(folder: Path, lines: Sequence[Any], tokenizer: Any, **fields: Any) -> Any:
    """The token columns of rows, as training has them."""
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    source = SourceSpec(path=str(path))
    data = TokenData(train=source, eval=source, **{"max_length": 32, **fields})
    table = rows.encode(source, data, tokenizer, ())
    return encoding.token_set(table, tokenizer), encoding.label_names(table), table


def test_the_first_token_of_each_word_is_labelled(tmp_path: Path, tokenizer: Any) -> None:
    line = {"tokens": ["Lovelace", "\u200b", "visits", "Tübingen", "."]}
    line["tags"] = ["S-person", "B-place", "I-place", "E-place", "O"]
    found, names, table = encoded(tmp_path, [line], tokenizer)
    assert names == ("O", "B-person", "I-person", "B-place", "I-place")
    assert table.column("token_labels").type.value_type == pa.int8()
    labels = dict(
        zip(
            tokenizer.convert_ids_to_tokens(found.columns["input_ids"].tolist()),
            found.columns[TOKEN_LABELS].tolist(),
            strict=True,
        )
    )
    assert {token: label for token, label in labels.items() if label != IGNORED} == {
        "love": 1,
        "visits": 3,
        "tub": 4,
        ".": 0,
    }  # the word without a token leaves its entity to the next one
    assert found.targets.tolist() == [4]
    batch = TokenStore(found, torch.device("cpu")).gather(torch.tensor([0]), 16)
    assert batch[TOKEN_LABELS][0, -3:].tolist() == [IGNORED] * 3


def test_spans_of_characters_become_labels(tmp_path: Path, tokenizer: Any) -> None:
    text = "👩‍👩‍👧 Ada\u00a0Lovelace,\n東京 cafe\u0301!"
    wanted = {"Ada\u00a0Lovelace": "person", "東京": "place", "cafe\u0301": "place"}
    spans = [
        {"start": text.index(part), "end": text.index(part) + len(part), "label": label}
        for part, label in wanted.items()
    ]
    lists = {name: [span[name] for span in spans] for name in ("start", "end", "label")}
    lines = [{"text": text, "spans": spans[::-1]}, {"text": text, "spans": lists}]
    found, names, _ = encoded(tmp_path, lines, tokenizer, text="text", spans="spans")
    both = found.columns[TOKEN_LABELS].reshape(2, -1).tolist()
    assert both[0] == both[1]
    tokens = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    seen = [
        (text[start:end], names[label])
        for (start, end), label in zip(tokens, both[0], strict=True)
        if label not in (IGNORED, 0)
    ]
    assert seen[:2] == [("Ada", "B-person"), ("Lovelace"[: len(seen[1][0])], "I-person")]
    assert next(each for each in seen[2:] if each[1][0] == "B") == ("東", "B-place")
    assert seen[-1][1] == "B-place"


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([(0, 3, "a"), (2, 5, "b")], r"row 2: the spans 0–3 \(a\) and 2–5 \(b\) overlap"),
        ([(0, 99, "a")], r"row 2: the span 0–99 \(a\) exceeds the text, which has 9 characters"),
        ([(3, 4, "a")], "covers white space only"),
        ([(3, 3, "a")], "does not begin before its end"),
        ([("0", 3, "a")], "is no span; write {start, end, label}"),
        ([(0, 2, "a"), (2, 3, "b")], "'Ad' and 'a' share 'Ada', which is one word"),
    ],
)
def test_spans_that_cannot_be_learnt_are_refused_with_their_row(
    tmp_path: Path, tokenizer: Any, spans: list[Any], reason: str
) -> None:
    own = [dict(zip(("start", "end", "label"), span, strict=True)) for span in spans]
    lines = [{"text": "fine", "spans": []}, {"text": "Ada \tBob.", "spans": own}]
    with pytest.raises(DataError, match=reason):
        encoded(tmp_path, lines, tokenizer, text="text", spans="spans")


def test_parquet_files_with_numbers_for_tags_have_their_names(
    tmp_path: Path, tokenizer: Any
) -> None:
    import datasets

    kinds = datasets.Features(
        {
            "tokens": datasets.Sequence(datasets.Value("string")),
            "ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-a", "I-a"])),
        }
    )
    made = datasets.Dataset.from_dict(
        {"tokens": [["x", "y", "z"]], "ner_tags": [[0, 1, 2]]}, features=kinds
    )
    made.to_parquet(tmp_path / "rows.parquet")
    made.save_to_disk(tmp_path / "saved")
    for path in ("rows.parquet", "saved"):
        source = SourceSpec(path=str(tmp_path / path))
        data = TokenData(train=source, eval=source, tags="ner_tags")
        table = rows.encode(source, data, tokenizer, ())
        assert encoding.label_names(table) == ("O", "B-a", "I-a")
        assert table["token_labels"].to_pylist() == [[IGNORED, 0, 1, 2, IGNORED]]


def test_conll_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("a X O\n", encoding="utf-8")
    assert list(conll_files.read(path, "a").columns) == ["tokens", "2", "tags"]
