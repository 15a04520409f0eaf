"""Made-up jobs: strategies that draw a job file and its data, right but for a few places."""

import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import transformers
import yaml
from hypothesis import strategies as st

from jobs.loader import overrides
from tests import oddities, tiny

Row = dict[str, Any]
JOB_FILE = "job.yaml"
CLASSIFIERS = ("bert", "roberta", "t5", "gpt2", "xlnet")
DECODERS = ("llama", "gpt2", "mamba", "bloom")
"""Families of models whose folders `save_models` writes."""
SPOILT: Mapping[str, Callable[[Path], object]] = {
    "absent": shutil.rmtree,
    "no-tokenizer": lambda place: [path.unlink() for path in place.glob("token*")],
    "no-weights": lambda place: (place / "model.safetensors").unlink(),
    "torn-weights": lambda place: (place / "model.safetensors").write_bytes(b"\x00" * 50),
    "pickled": lambda place: (place / "model.safetensors").rename(place / "pytorch_model.bin"),
    "empty": lambda place: [path.unlink() for path in place.iterdir()],
    "bare-tokenizer": lambda place: _without_ends(place / "tokenizer.json"),
    "no-config": lambda place: (place / "config.json").unlink(),
    "torn-tokenizer": lambda place: (place / "tokenizer.json").write_text("{"),
    "list-tokenizer": lambda place: (place / "tokenizer.json").write_text("[]"),
    "list-tokenizer-config": lambda place: (place / "tokenizer_config.json").write_text("[]"),
    "odd-tokenizer-config": lambda place: (place / "tokenizer_config.json").write_text(
        '{"tokenizer_class": 5, "pad_token": 7, "model_max_length": "x"}'
    ),
    "python-tokenizer": lambda place: (place / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "CanineTokenizer"}'
    ),
    "template": lambda place: (place / "chat_template.jinja").write_text("{% for x %}"),
    "strict-template": lambda place: (place / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content.strip() }}{{ m.tool_calls[0].function.name }}{% endfor %}"
    ),
    "folder-config": lambda place: [
        (place / "config.json").unlink(),
        (place / "config.json").mkdir(),
    ],
    "other-family": lambda place: _changed(place, model_type="roberta"),
    "float-weights": lambda place: _changed(place, dtype="float16"),
    "no-such-dtype": lambda place: _changed(place, dtype="int3"),
}
"""Folders of a model that something is wrong with, and how it came so."""
CONFIGS: Mapping[str, Any] = {
    **{f"config-{n}": text for n, text in enumerate(("{", "[]", "null", "5", '"x"', "{}", "\x00"))},
    **{
        f"field-{n}": values
        for n, values in enumerate(
            (
                {"model_type": "no-such"},
                {"model_type": 5},
                {"model_type": None},
                {"model_type": ["bert"]},
                {"hidden_size": "many"},
                {"hidden_size": -32},
                {"hidden_size": 31},
                {"hidden_size": 1e400},
                {"num_attention_heads": 0},
                {"num_attention_heads": "x"},
                {"num_attention_heads": 5},
                {"num_hidden_layers": 0},
                {"num_hidden_layers": 10**6},
                {"num_hidden_layers": 2.5},
                {"vocab_size": -1},
                {"vocab_size": 10},
                {"vocab_size": None},
                {"vocab_size": 10**15},
                {"intermediate_size": [1]},
                {"max_position_embeddings": "x"},
                {"max_position_embeddings": 8},
                {"max_position_embeddings": -1},
                {"pad_token_id": 10**6},
                {"pad_token_id": "x"},
                {"hidden_act": "none"},
                {"hidden_act": 5},
                {
                    "id2label": {"0": "a", "1": "b", "2": "c"},
                    "architectures": ["XForSequenceClassification"],
                },
                {"id2label": {"x": "a"}, "architectures": ["XForSequenceClassification"]},
                {"id2label": ["a"]},
                {"architectures": "Bert"},
                {"architectures": [5]},
                {"quantization_config": {"quant_method": "bitsandbytes"}},
                {"auto_map": {"AutoModel": "x.Y", "AutoConfig": "x.Z"}, "model_type": "mine"},
                {"num_key_value_heads": 0},
                {"attention_probs_dropout_prob": 7},
                {"hidden_dropout_prob": "x"},
                {"_attn_implementation": "flash_attention_3"},
                {"transformers_version": 5},
                {"is_decoder": True},
            )
        )
    },
}
"""What else may stand in a model's config.json, as a text or as other values of fields."""
BROKEN = (*SPOILT, *CONFIGS)


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A job file and the data beside it."""

    text: bytes
    """Of the job file."""
    files: Mapping[str, bytes]

    def write(self, folder: Path) -> Path:
        """Write all into a folder; returns the job file."""
        for old in folder.glob("*.*"):
            if old.is_file():
                old.unlink()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        path = folder / JOB_FILE
        path.write_bytes(self.text)
        return path

    def __repr__(self) -> str:
        shown = [f"--- {name}\n{content[:300]!r}" for name, content in self.files.items()]
        return "\n".join(["", self.text.decode("utf-8", "backslashreplace")[:2000], *shown])


@dataclass(slots=True)
class _Draft:
    """A job as it is being made up."""

    values: Row
    rows: dict[str, list[Row]]
    spoil: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    reshape: Callable[[str], str] = str


def save_models(folder: Path, names: Sequence[str] = (*CLASSIFIERS, *DECODERS)) -> None:
    """Write tiny models, folders that hold none, and data sets as `datasets` saves them."""
    for name in dict.fromkeys(names):
        is_decoder = name in DECODERS
        auto = transformers.AutoModelForCausalLM if is_decoder else transformers.AutoModel
        tiny.save(folder / "models" / name, name, auto)
    for name, spoil in SPOILT.items():
        spoil(shutil.copytree(folder / "models/bert", folder / "models" / name))
    for name, found in CONFIGS.items():
        place = shutil.copytree(folder / "models/bert", folder / "models" / name)
        if isinstance(found, dict):
            _changed(place, **found)
        else:
            (place / "config.json").write_text(found)
    _save_data(folder / "saved")


def _without_ends(path: Path) -> None:
    """A tokenizer that puts nothing before and behind a text, which may so have no token."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))


def _changed(place: Path, **fields: Any) -> None:
    path = place / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _save_data(folder: Path) -> None:
    kind = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    for name, labels in (("null", [0, None, 1, 0]), ("negative", [0, -1, 1, 1]), ("torn", [0, 1])):
        texts = [f"a film {n}" for n in labels]
        saved = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=kind)
        saved.save_to_disk(str(folder / name))
    datasets.DatasetDict({"test": saved}).save_to_disk(str(folder / "splits"))
    next((folder / "torn").glob("*.arrow")).write_bytes(b"torn")


@st.composite
def jobs(
    draw: st.DrawFn, *, oddities_at_most: int = 3, bases: Mapping[str, Sequence[str]] | None = None
) -> MadeUp:
    """A job that is right but for a few places."""
    known = bases or {"text-classification": CLASSIFIERS, "causal-lm": DECODERS}
    task = draw(st.sampled_from(tuple(known)))
    columns = ("text", "label")
    if task == "causal-lm":
        columns = draw(st.sampled_from([("prompt", "response"), ("messages",)]))
    endings = ("jsonl", "json", "parquet", "typed.parquet", "csv", "tsv", "csv.gz", "jsonl.gz")
    ending = draw(st.sampled_from(endings[: 3 if columns == ("messages",) else None]))
    draft = _Draft(
        values={
            "version": 1,
            "name": "made-up",
            "model": {"base": f"./models/{draw(st.sampled_from(known[task]))}", "task": task},
            "data": {
                "train": {"path": f"train.{ending}"},
                "eval": {"path": f"eval.{ending}"},
                "max_length": 32,
                **{name: name for name in columns if name != "label"},
            },
            "train": {"epochs": 0.5, "global_batch_size": 4, "optimizer": {"lr": 1e-3}},
        },
        rows={split: draw(_rows(columns)) for split in ("train", "eval")},
    )
    for change in draw(st.lists(CHANGES, max_size=oddities_at_most)):
        change(draft)
    contents = {
        f"{split}.{ending}": _typed(rows, [draw(st.sampled_from(oddities.TYPES)) for _ in rows[0]])
        if ending.startswith("typed")
        else _written(rows, ending)
        for split, rows in draft.rows.items()
    }
    text = draft.reshape(_as_yaml(draft.values))
    return MadeUp(
        text.encode("utf-8", "surrogatepass"),
        {
            name: draft.spoil.get(name.partition(".")[0], bytes)(content)
            for name, content in contents.items()
        },
    )


def _rows(columns: Sequence[str]) -> st.SearchStrategy[list[Row]]:
    turns = [{"role": "user", "content": "Is it?"}, oddities.YES]
    good = {
        "text": st.sampled_from(["a superb film", "a dull film", "an awful, awful film"]),
        "label": st.sampled_from(["no", "yes"]),
        "prompt": st.sampled_from(["Is a film good?", "What is it?"]),
        "response": st.sampled_from([" Yes.", " No, it is not."]),
        "messages": st.sampled_from([turns, [*turns, *turns]]),
    }
    drawn = st.fixed_dictionaries({name: good[name] for name in columns})
    two = [{"label": "no"}, {"label": "yes"}] if "label" in columns else [{}, {}]
    return st.lists(drawn, min_size=2, max_size=8).map(
        lambda rows: [{**row, **dict(label)} for row, label in zip(rows, two * 4, strict=False)]
    )


def _setting(path: str, value: Any) -> Callable[[_Draft], None]:
    def change(draft: _Draft) -> None:
        overrides.put(draft.values, path, value)

    return change


def _settings(options: Sequence[tuple[str, Sequence[Any]]]) -> st.SearchStrategy[Any]:
    fields = st.sampled_from(options)
    return fields.flatmap(
        lambda one: st.sampled_from(tuple(one[1])).map(lambda value: _setting(one[0], value))
    )


def _with_labels(split: str, labels: Sequence[Any]) -> Callable[[_Draft], None]:
    def change(draft: _Draft) -> None:
        for name in ("train", "eval") if split == "both" else (split,):
            for number, row in enumerate(draft.rows[name]):
                if "label" in row:
                    row["label"] = labels[number % len(labels)]

    return change


def _with_value(split: str, number: int, value: Any) -> Callable[[_Draft], None]:
    """Another value of the first column in a row, or in all rows for row 9."""

    def change(draft: _Draft) -> None:
        rows = draft.rows[split]
        for row in rows if number == 9 else rows[number % len(rows) :][:1]:
            row[next(iter(row))] = value
            if "response" in row and number % 2:
                row["response"] = value

    return change


def _with_rows(split: str, kind: str) -> Callable[[_Draft], None]:
    def change(draft: _Draft) -> None:
        rows = draft.rows[split]
        match kind:
            case "one":
                del rows[1:]
            case "none":
                draft.spoil[split] = lambda old: old.split(b"\n")[0] + b"\n"
            case "fewer":
                rows[-1] = dict(list(rows[-1].items())[1:]) or {"other": 1}
            case "more":
                rows[0]["other"] = 1
            case "many":
                rows *= 20

    return change


def _spoiling(split: str, spoil: Callable[[bytes], bytes]) -> Callable[[_Draft], None]:
    def change(draft: _Draft) -> None:
        draft.spoil[split] = spoil

    return change


def _reshaping(reshape: Callable[[str], str]) -> Callable[[_Draft], None]:
    def change(draft: _Draft) -> None:
        draft.reshape = reshape

    return change


SPLITS = st.sampled_from(["train", "eval"])
CHANGES: st.SearchStrategy[Callable[[_Draft], None]] = st.one_of(
    _settings(oddities.OPTIONS),
    _settings([(path, oddities.VALUES) for path, _ in oddities.OPTIONS]),
    _settings([(path, oddities.VALUES) for path in oddities.UNKNOWN]),
    _settings([("model.base", [f"./models/{name}" for name in BROKEN])]),
    _settings([("model.base", [f"./models/{name}" for name in (*DECODERS, *CLASSIFIERS)])]),
    st.builds(
        _with_labels, st.sampled_from(["train", "eval", "both"]), st.sampled_from(oddities.LABELS)
    ),
    st.builds(
        _with_value,
        SPLITS,
        st.sampled_from([0, 1, 9]),
        st.sampled_from([*oddities.TEXTS, *oddities.TURNS]),
    ),
    st.builds(_with_rows, SPLITS, st.sampled_from(["one", "none", "fewer", "more", "many"])),
    st.builds(_spoiling, SPLITS, st.sampled_from(oddities.SPOILERS)),
    st.builds(_reshaping, st.sampled_from(oddities.RESHAPERS)),
)


def _written(rows: Sequence[Row], ending: str) -> bytes:
    """A file of these rows, whatever its format makes of odd values."""
    content: bytes
    match ending.split(".")[0]:
        case "jsonl":
            content = "\n".join(map(json.dumps, rows)).encode()
        case "json":
            content = json.dumps(list(rows)).encode()
        case "parquet":
            content = _parquet(rows)
        case separated:
            text = io.StringIO()
            titles = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.writer(text, delimiter="\t" if separated == "tsv" else ",")
            writer.writerow(titles)
            writer.writerows([row.get(name) for name in titles] for row in rows)
            content = text.getvalue().encode("utf-8", "surrogatepass")
    return gzip.compress(content) if ending.endswith(".gz") else content


def _parquet(rows: Sequence[Row]) -> bytes:
    try:
        table = pa.Table.from_pylist([dict(row) for row in rows])
    except (pa.ArrowException, OverflowError, UnicodeError):  # what Arrow cannot hold
        table = pa.table(
            {
                name: [str(row.get(name)).encode("utf-8", "replace") for row in rows]
                for name in rows[0]
            }
        )
    return _of_table(table)


def _typed(rows: Sequence[Row], types: Sequence[pa.DataType]) -> bytes:
    """A parquet file with a column of each of these types, without values where none fits."""
    columns = {}
    for (name, _), kind in zip(rows[0].items(), types, strict=True):
        values = [row.get(name) for row in rows]
        columns[name] = _array(values, kind)
    return _of_table(pa.table(columns))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    for attempt in (
        values,
        [0, 1] * len(values),
        [[]] * len(values),
        [b"ab", b"\xff\xff"] * len(values),
    ):
        try:
            return pa.array(attempt[: len(values)], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError, UnicodeError):
            continue
    return pa.nulls(len(values), kind)


def _of_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    try:
        pyarrow.parquet.write_table(table, sink)
    except pa.ArrowException:  # a type that parquet lacks
        return b"PAR1"
    return bytes(sink.getvalue())


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _as_yaml(values: Row) -> str:
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
