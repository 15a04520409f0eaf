"""Every engine gives transformers' scores, whatever the other texts of the batch are."""

import itertools
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from jobs.spec.serve import EngineName
from serve.batching.policy import Limits
from serve.batching.rows import Logits, Padding, Row, Tokenizer
from serve.batching.waiting import NOTHING
from serve.config import ReplicaConfig
from serve.engines import acceptance, engine_factory, openvino_engine, packing, selection, startup
from serve.engines.acceptance import AcceptanceCheck
from serve.engines.engine import Choice, Engine, EngineResult, OneByOne, Shape
from serve.engines.engine_factory import EngineFactory, EvalSample
from serve.engines.openvino_engine import OpenVinoEngine
from serve.engines.packing import Packing
from serve.engines.selection import PACKED_TOKENS
from serve.version import ModelVersion

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore:.*TracerWarning"),
]

TEXTS = [("a superb film",), ("dull " * 40,), ("x",), ("a moving and fresh and brilliant film",)]
BOUNDS: dict[EngineName, float] = {
    "torch-fp32": 1e-5,
    "onnx-fp32": 1e-4,
    "openvino-fp32": 1e-4,
    "torch-bf16": 0.02,
    "openvino-bf16": 0.02,
    "openvino-int8": 0.05,
}
"""Largest difference of a probability from transformers' in fp32."""


@pytest.fixture(scope="module")
def factory(version: ModelVersion, tmp_path_factory: pytest.TempPathFactory) -> EngineFactory:
    """Makes engines of the tiny model."""
    folder = Path(version.path)
    tokenizer = Tokenizer(folder, version.max_length)
    return EngineFactory(folder, tmp_path_factory.mktemp("exports"), tokenizer, "cpu", 1)


@pytest.fixture(scope="module")
def sample(version: ModelVersion) -> EvalSample:
    """The evaluation rows that were saved beside the model."""
    return engine_factory.read_eval_sample(Path(version.path))


def test_evaluation_rows_are_saved_beside_the_model(sample: EvalSample) -> None:
    assert len(sample.rows) == len(sample.labels) == 50
    assert set(sample.labels) == {0, 1}
    assert all(3 <= len(row) <= 32 and row.ids[0] == 101 for row in sample.rows)


def test_a_published_model_says_what_it_is(version: ModelVersion) -> None:
    config = json.loads((Path(version.path) / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "negative", "1": "positive"}


def test_rows_are_tokenised_as_transformers_does(
    version: ModelVersion, factory: EngineFactory
) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(version.path)
    for text, row in zip(TEXTS, factory.tokenizer.rows(TEXTS), strict=True):
        expected = reference(*text, truncation=True, max_length=32)
        assert list(row.ids) == expected["input_ids"]
    pair = ("it rained all day", "the street " * 30)
    expected = reference(*pair, truncation=True, max_length=32)
    (row,) = factory.tokenizer.rows([pair])
    assert (list(row.ids), list(row.types)) == (expected["input_ids"], expected["token_type_ids"])
    assert row.is_cut
    assert not factory.tokenizer.rows([("short",)])[0].is_cut


@pytest.mark.parametrize(
    "text",
    [
        "A Superb, well-made film (really)!",
        "[SEP] [sep] [CLS]",
        "tabs\tand\nlines",
        "\x00 control \x1f",
        "Äpfel, naïve café",
        "电影 movie",
        "İstanbul ẞ",
        "",
        " ",
        "~`@#$%^&*()_+{}|:<>?",
        "x" * 300,
    ],
)
@pytest.mark.parametrize("is_lower", [True, False])
def test_plain_texts_are_tokenised_the_same(
    text: str, *, is_lower: bool, factory: EngineFactory, tmp_path: Path
) -> None:
    shutil.copytree(factory.model, tmp_path / "model")
    told = tmp_path / "model/tokenizer_config.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"do_lower_case": is_lower}))
    tokenizer = Tokenizer(tmp_path / "model", 32)
    assert tokenizer._plain
    assert tokenizer._plain.is_lower is is_lower
    for given in [(text,), (text, "Another One")]:
        ours = tokenizer.rows([given])
        tokenizer._plain, kept = None, tokenizer._plain
        assert ours == tokenizer.rows([given])
        tokenizer._plain = kept


def test_only_plain_texts_go_around_the_normaliser(factory: EngineFactory) -> None:
    plain = factory.tokenizer._plain
    assert plain
    assert plain.texts([("One", "TWO two"), ("3",)]) == [("one", "two two"), ("3",)]
    for other in ("é", "[sep]", "a\tb", "\x7f"):
        assert plain.texts([("one",), ("two", other)]) is None


@pytest.mark.parametrize("name", BOUNDS)
def test_scores_equal_those_of_transformers_alone_and_together(
    name: EngineName, version: ModelVersion, factory: EngineFactory, sample: EvalSample
) -> None:
    engine = factory.make(name, sample)
    assert engine.name == name
    tokenizer = transformers.AutoTokenizer.from_pretrained(version.path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(version.path).eval()
    rows = factory.tokenizer.rows(TEXTS)
    together = acceptance.scores(engine, rows, len(rows))
    alone = acceptance.scores(engine, rows, 1)
    for number, text in enumerate(TEXTS):
        inputs = tokenizer(*text, truncation=True, max_length=32, return_tensors="pt")
        with torch.inference_mode():
            expected = model(**inputs).logits.softmax(dim=-1)[0].numpy()
        assert np.abs(together[number] - expected).max() < BOUNDS[name]
        assert np.abs(alone[number] - together[number]).max() < BOUNDS[name]


def test_padding_rounds_the_width_and_masks_what_it_adds() -> None:
    padding = Padding(pad_id=9, multiple=8)
    rows = [Row([1, 2, 3], [0, 0, 1]), Row([4] * 9, [0] * 9), Row([5], [0])]
    ids, mask, types = padding.apply(rows)
    assert ids.shape == mask.shape == types.shape == (3, 16)
    assert mask.sum(axis=1).tolist() == [3, 9, 1]
    assert ids[0].tolist() == [1, 2, 3, *[9] * 13]
    assert types[0, :4].tolist() == [0, 0, 1, 0]


def test_several_inputs_share_a_row() -> None:
    rows = [Row([7, 8], ()), Row([1, 2, 3, 4, 5], [0, 0, 1, 1, 1]), Row([6], ())]
    found = {name: array.tolist() for name, array in Packing(9, 4).apply(rows).items()}
    assert found == {
        "input_ids": [[1, 2, 3, 4, 5, 7, 8, 6]],
        "token_type_ids": [[0, 0, 1, 1, 1, 0, 0, 0]],
        "segment_ids": [[1, 1, 1, 1, 1, 2, 2, 3]],
        "position_ids": [[0, 1, 2, 3, 4, 0, 1, 0]],
        "first": [5, 0, 7],
    }


def test_rows_are_narrow_and_nearly_full() -> None:
    assert packing.arrange([3], 4) == (4, [[0]])
    assert packing.arrange([16] * 8, 1) == (16, [[index] for index in range(8)])
    assert packing.arrange([10, 30, 20], 1) == (30, [[1], [2, 0]])
    assert packing.arrange([300, 300], 1) == (300, [[0], [1]])  # no row of 600
    draw = random.Random(0)
    for _ in range(300):
        lengths = [draw.randint(1, draw.choice((8, 64, 300))) for _ in range(draw.randint(1, 40))]
        width, rows = packing.arrange(lengths, 4)
        assert sorted(itertools.chain.from_iterable(rows)) == list(range(len(lengths)))
        assert all(0 < sum(lengths[index] for index in row) <= width for row in rows)
        assert width % 4 == 0
        assert width < max(*lengths, packing.MOST_WIDTH) + 4 if len(lengths) > 1 else True
        assert len(rows) * width <= len(lengths) * (max(lengths) + 3)  # not more than by padding


def test_a_shape_is_kept_where_that_wastes_little() -> None:
    kept = Packing(9, 4, spare=20)
    assert kept.arrange([12]) == (12, [[0]])
    assert kept.arrange([5]) == (12, [[0]])  # 12 tokens instead of 8
    assert kept.arrange([7, 3]) == (12, [[0, 1]])
    assert kept.arrange([12, 11, 12]) == (12, [[0], [2], [1]])
    assert kept.arrange([9, 10]) == (12, [[1], [0], []])  # 36 tokens instead of 20
    assert kept.arrange([10]) == (12, [[0]])  # instead of 36
    assert kept.arrange([13]) == (16, [[0]])
    assert Packing(9, 4).arrange([12]) == (12, [[0]])


def test_a_row_that_is_there_for_the_shape_changes_nothing(
    factory: EngineFactory, sample: EvalSample
) -> None:
    engine = factory.make("openvino-fp32", sample)
    assert isinstance(engine, OpenVinoEngine)
    reference = acceptance.scores(factory.make("torch-fp32", sample), sample.rows, 1)
    engine.packing.spare = 1e6
    engine.run(sample.rows[:20])
    shape = engine.packing.last
    found = acceptance.scores(engine, sample.rows, 1)
    assert engine.packing.last == shape != (1, shape[1])
    assert np.abs(found - reference).max() < BOUNDS["openvino-fp32"]


def test_usual_shapes_are_one_row_for_few_inputs_and_full_batches_for_many_by_turns() -> None:
    def usual(lengths: Sequence[int], multiple: int, tokens: int) -> tuple[list[Shape], ...]:
        found = packing.usual_shapes(lengths, multiple, tokens)
        pairs = 2 * min(sum(rows == 1 for rows, _ in found), sum(rows > 1 for rows, _ in found))
        assert [rows == 1 for rows, _ in found[:pairs]] == [True, False] * (pairs // 2)
        return [s for s in found if s[0] == 1], [s for s in found if s[0] > 1]

    short, long = [16, 48, 64] * 20, [180, 250]
    few = [(1, width) for width in (16, 48, 64, 32, 80, 96, 112, 128)]  # those of lone ones first
    assert usual(short, 16, 512) == (few, [(rows, 64) for rows in (8, 9, 7, 10, 6, 11)])
    few = [(1, width) for width in (64, 32, 96, 128)]
    assert usual(short, 32, 256) == (few, [(rows, 64) for rows in (4, 5, 3, 6)])
    few = [(1, width) for width in (192, 256, 64, 128, 320, 384, 448, 512)]
    assert usual(long, 16, 512) == (few, [(3, 256)])
    assert packing.usual_shapes((), 16, 512)  # a model without evaluation rows


def test_every_row_is_as_full_as_it_can_be() -> None:
    assert packing.pack([6, 5, 5, 4], 10) == [[0, 3], [1, 2]]
    assert packing.pack([7, 6, 5, 5, 4, 4, 3, 2], 12) == [[0, 2], [1, 4, 7], [3, 5, 6]]  # best
    draw = random.Random(3)
    for _ in range(200):
        lengths = [draw.randint(2, 20) for _ in range(draw.randint(1, 12))]
        rows = packing.pack(lengths, 24)
        assert sorted(itertools.chain.from_iterable(rows)) == list(range(len(lengths)))
        longest, *others = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        sums = (
            sum(lengths[index] for index in (longest, *some))
            for count in range(len(others) + 1)
            for some in itertools.combinations(others, count)
        )
        assert rows[0][0] == longest
        assert sum(lengths[index] for index in rows[0]) == max(s for s in sums if s <= 24)


def test_a_shape_with_a_graph_of_its_own_is_taken_unless_it_wastes_much() -> None:
    laid = Packing(9, 4, static_shapes=((1, 32), (3, 16)))
    assert laid.arrange([31]) == (32, [[0]])
    assert laid.arrange([10, 11, 8]) == (32, [[1, 0, 2]])
    assert laid.arrange([16, 15, 16]) == (16, [[0], [2], [1]])
    assert laid.arrange([33]) == (36, [[0]])  # too long for any
    assert laid.arrange([12]) == (12, [[0]])  # 20 tokens would be wasted
    laid.spare = 25
    assert laid.arrange([12]) == (32, [[0]])
    assert laid.arrange([3] * 6) == (20, [[0, 1, 2, 3, 4, 5]])  # more than five have no room
    found = laid.apply([Row([1] * 31, ())])
    assert found["first"].tolist() == [0] * packing.capacity((1, 32))


def test_more_inputs_than_the_graph_of_their_shape_takes() -> None:
    laid = Packing(9, 16, static_shapes=((1, 16), (1, 32)))
    assert packing.capacity((1, 16)) == 2
    found = laid.apply([Row([1] * 5, ())] * 3)  # three of one word each
    assert found["segment_ids"].shape == (1, 16)
    assert found["first"].tolist() == [0, 5, 10]
    draw = random.Random(0)
    for _ in range(2000):
        most = draw.choice((3, 6, 12, 40))
        rows = [Row([7] * draw.randint(2, most), ()) for _ in range(draw.randint(1, 40))]
        found = laid.apply(rows)
        kept = found["first"][: len(rows)]
        assert (found["position_ids"].ravel()[kept] == 0).all()
        assert len(set(kept.tolist())) == len(rows)


@pytest.mark.parametrize("name", ["openvino-fp32", "openvino-int8"])
def test_graphs_of_their_own_shape_give_the_same_scores(
    name: EngineName, factory: EngineFactory, sample: EvalSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = factory.make(name, sample)
    assert isinstance(engine, OpenVinoEngine)
    before = acceptance.scores(engine, sample.rows, 1), acceptance.scores(engine, sample.rows, 50)
    engine.prepare([len(row) for row in sample.rows], Limits(batch_tokens=256), 32)
    monkeypatch.setattr(engine, "_request", None)  # the graph for any shape
    after = (
        acceptance.scores(engine, sample.rows, 1),
        acceptance.scores(engine, sample.rows[:30], 30),
    )
    assert np.abs(after[0] - before[0]).max() < 1e-5
    assert np.abs(after[1] - before[1][:30]).max() < 1e-5


@pytest.mark.parametrize("name", ["openvino-fp32", "openvino-int8"])
def test_texts_of_a_word_each_are_answered_together(
    name: EngineName, factory: EngineFactory, sample: EvalSample
) -> None:
    engine = factory.make(name, sample)
    words = factory.tokenizer.rows([(word,) for word in ("good", "bad", "so-so", "", "no", "yes")])
    alone = acceptance.scores(engine, words, 1)
    engine.prepare(
        [14] * 20, Limits(batch_tokens=256), 32
    )  # one of the shapes is a row of the least width
    engine.packing.spare = 0.0
    for count in range(1, len(words) + 1):
        found = acceptance.scores(engine, words[:count], count)
        assert np.abs(found - alone[:count]).max() < 1e-5


def test_a_larger_model_has_fewer_graphs_of_their_own_shape(
    factory: EngineFactory, sample: EvalSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = factory.make("openvino-fp32", sample)
    assert isinstance(engine, OpenVinoEngine)
    size = (factory.exports / "openvino-rows.bin").stat().st_size
    each = openvino_engine.STATIC_GRAPH_BYTES + openvino_engine.STATIC_WEIGHTS[engine.name] * size
    monkeypatch.setattr(openvino_engine, "STATIC_BYTES", 3 * each)
    engine.prepare([len(row) for row in sample.rows], Limits(batch_tokens=256), 32)
    assert len(engine.packing.static_shapes) == 3
    assert np.isfinite(engine.run(sample.rows)).all()  # as they come, whatever their shape


def test_what_another_shape_costs_is_timed(
    factory: EngineFactory, sample: EvalSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = factory.make("openvino-fp32", sample)
    assert isinstance(engine, OpenVinoEngine)
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    ran: list[int] = []

    def run(rows: Sequence[Row]) -> None:
        clock[0] += len(rows[0]) * 1e-5 + (3e-4 if ran[-1:] != [len(rows[0])] else 0.0)
        ran.append(len(rows[0]))

    monkeypatch.setattr(engine, "run", run)
    assert engine._shape_tokens(16) == pytest.approx(30)


@pytest.mark.parametrize("name", ["openvino-fp32", "openvino-int8"])
def test_neighbours_in_a_row_change_nothing(
    name: EngineName, factory: EngineFactory, sample: EvalSample
) -> None:
    engine = factory.make(name, sample)
    assert engine.is_packed
    found = acceptance.scores(engine, sample.rows, 50)
    assert np.abs(found - acceptance.scores(engine, sample.rows, 1)).max() < 1e-5
    reference = acceptance.scores(factory.make("torch-fp32", sample), sample.rows, 1)
    assert np.abs(found - reference).max() < BOUNDS[name]


@pytest.mark.parametrize(("flags", "widths"), [("avx2 amx_tile", {32}), ("avx2 amx", {16})])
def test_packed_rows_fill_the_tiles_of_a_cpu_that_has_some(
    flags: str,
    widths: set[int],
    factory: EngineFactory,
    sample: EvalSample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags}\n")
    monkeypatch.setattr(openvino_engine, "CPU_FLAGS", tmp_path / "cpuinfo")
    engine = factory.make("openvino-fp32", sample)
    assert isinstance(engine, OpenVinoEngine)
    rows = factory.tokenizer.rows([("x",), ("a superb film",)])
    laid = openvino_engine.packing_of(factory.tokenizer)
    assert {laid.apply([row])["input_ids"].shape[1] for row in rows} == widths
    reference = acceptance.scores(factory.make("torch-fp32", sample), rows, 1)
    assert np.abs(acceptance.scores(engine, rows, 1) - reference).max() < BOUNDS["openvino-fp32"]


def test_models_that_are_not_packed_are_padded(
    factory: EngineFactory, sample: EvalSample, tmp_path: Path
) -> None:
    shutil.copytree(factory.model, tmp_path / "model")
    config = transformers.DistilBertConfig(dim=16, hidden_dim=16, n_layers=1, n_heads=2)
    made = transformers.DistilBertForSequenceClassification(config)
    made.save_pretrained(tmp_path / "model")
    told = tmp_path / "model/tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    told.write_text(json.dumps(json.loads(told.read_text()) | names))
    tokenizer = Tokenizer(tmp_path / "model", 32)
    other = EngineFactory(tmp_path / "model", tmp_path / "exports", tokenizer, "cpu", 1)
    engine = other.make("openvino-fp32", sample)
    assert not engine.is_packed
    reference = acceptance.scores(other.make("torch-fp32", sample), sample.rows, 50)
    assert (
        np.abs(acceptance.scores(engine, sample.rows, 50) - reference).max()
        < BOUNDS["openvino-fp32"]
    )


class Fake:
    """An engine with made-up logits, which may depend on its batch."""

    name: EngineName = "onnx-fp32"
    is_packed, ahead = False, 0

    def __init__(self, wrong: int = 0, drift: float = 0.0) -> None:
        self._wrong, self._drift = wrong, drift

    def run(self, rows: list[Row]) -> Logits:
        """Gives the first id as the label, except for rows whose second id is below `wrong`."""
        signs = [
            (1 if row.ids[0] else -1) * (-1 if row.ids[1] < self._wrong else 1) for row in rows
        ]
        scores = [[0.0, 3.0 * sign + self._drift * len(rows)] for sign in signs]
        return np.array(scores, dtype=np.float32)


GATE = EvalSample(
    tuple(Row([number % 2, number], [0, 0]) for number in range(400)),
    tuple(number % 2 for number in range(400)),
)


@pytest.mark.parametrize(
    ("engine", "refusal"),
    [
        (Fake(), ""),
        (Fake(wrong=1), ""),
        (Fake(wrong=3), "its accuracy is 0.9925, and 1.0000"),
        (Fake(wrong=10), "another label"),
        (Fake(drift=0.05), "changes by"),
        (Fake(drift=float("nan")), "NaN or infinity"),
    ],
)
def test_the_gate_refuses_engines_that_answer_otherwise(engine: Engine, refusal: str) -> None:
    check = AcceptanceCheck(GATE, acceptance.scores(Fake(), GATE.rows, 32))
    trial = check.run(engine)
    assert (refusal in trial.refusal) if refusal else (trial.refusal == "")


@pytest.mark.parametrize(("is_packed", "budget"), [(False, 768), (True, PACKED_TOKENS)])
def test_budgets_are_timed_but_for_an_engine_that_packs(
    *, is_packed: bool, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Costly(Fake):
        """Every batch takes the same time, so that the largest budget is the fastest."""

        def run(self, rows: list[Row]) -> Logits:
            clock[0] += 2e-3
            return super().run(rows)

    clock = [0.0]
    monkeypatch.setattr("serve.engines.selection.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(selection, "WARM_S", 0.02)
    monkeypatch.setattr(selection, "TIMED_S", 0.08)
    engine, sample = Costly(), EvalSample((Row([0] * 24, []),) * 32, (0,) * 32)
    engine.is_packed = is_packed
    trial = selection.measure(EngineResult("onnx-fp32", ""), engine, sample, "cpu")
    assert trial.batch_tokens == budget
    assert trial.texts_per_s > 0


def test_the_fastest_that_passes_is_chosen_and_remembered(
    factory: EngineFactory, sample: EvalSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: tuple[EngineName, ...] = ("openvino-int8", "onnx-fp32", "torch-fp32")
    found = selection.choose(factory, names, sample)
    assert [trial.engine for trial in found.trials] == list(names)
    allowed = [trial for trial in found.trials if not trial.refusal]
    timed = [trial for trial in allowed if trial.alone_ms is not None]
    best = max(timed, key=lambda trial: trial.texts_per_s)
    assert (found.engine, found.batch_tokens) == (best.engine, best.batch_tokens)
    assert all(trial.texts_per_s > 0 for trial in allowed)

    def refuse(*_: object) -> EngineResult:
        raise AssertionError("measured again")

    monkeypatch.setattr(selection, "measure", refuse)
    assert selection.choose(factory, names, sample) == found


class Slow(Fake):
    """Takes its time for each row, and counts the rows."""

    name: EngineName = "torch-bf16"

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def run(self, rows: list[Row]) -> Logits:
        """Gives the logits of Fake."""
        self.rows += len(rows)
        time.sleep(1e-3 * len(rows))
        return super().run(rows)


def test_an_engine_that_is_far_too_slow_is_not_checked_on_all_rows(
    factory: EngineFactory, tmp_path: Path
) -> None:
    """Without bf16 in hardware, torch in bf16 would take minutes."""
    engines: dict[EngineName, Fake] = {"onnx-fp32": Fake(), "torch-bf16": Slow()}

    class Two(EngineFactory):
        def make(self, name: EngineName, sample: EvalSample) -> Engine:
            return engines[name]

    two = Two(factory.model, tmp_path, factory.tokenizer, "cpu", 1)
    sample = EvalSample(GATE.rows, GATE.labels, acceptance.scores(Fake(), GATE.rows, 32))
    choice = selection.choose(two, tuple(engines), sample, is_timed=False)
    assert choice.engine == "onnx-fp32"
    assert choice.trials[1].refusal.startswith("it is not checked: ")
    assert 0 < choice.trials[1].batch_texts_per_s <= 1000
    assert engines["torch-bf16"].rows == 2 * acceptance.CHECK_BATCH
    alone = selection.choose(two, ("torch-bf16",), sample, is_timed=False)
    assert (alone.engine, alone.trials[0].refusal) == ("torch-bf16", "")


class Capturing(Fake):
    """Captures a graph for each number of rows, which takes long; then a row takes `row_s`."""

    def __init__(self, name: EngineName, row_s: float, clock: list[float]) -> None:
        super().__init__()
        self.name, self._row_s, self._clock = name, row_s, clock
        self._captured = set[int]()

    def run(self, rows: list[Row]) -> Logits:
        """Gives the logits of Fake."""
        self._clock[0] += self._row_s * len(rows)
        if len(rows) not in self._captured:
            self._clock[0] += 2.0
            self._captured.add(len(rows))
        return super().run(rows)


def test_an_engine_is_not_judged_by_what_capturing_its_shapes_takes(
    factory: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fp16 after bf16 on a GPU without bf16 in hardware."""
    clock = [0.0]
    monkeypatch.setattr("serve.engines.selection.time.perf_counter", lambda: clock[0])
    engines: dict[EngineName, Fake] = {
        "torch-bf16": Capturing("torch-bf16", 3e-3, clock),
        "torch-fp16": Capturing("torch-fp16", 1e-3, clock),
        "torch-fp32": Capturing("torch-fp32", 2e-3, clock),
    }

    class Three(EngineFactory):
        def make(self, name: EngineName, sample: EvalSample) -> Engine:
            return engines[name]

    three = Three(factory.model, tmp_path, factory.tokenizer, "cpu", 1)
    sample = EvalSample(GATE.rows, GATE.labels, acceptance.scores(Fake(), GATE.rows, 32))
    choice = selection.choose(three, tuple(engines), sample)
    assert choice.engine == "torch-fp16"
    assert choice.texts_per_s == pytest.approx(1000, rel=0.01)
    assert [trial.alone_ms is not None for trial in choice.trials] == [True, True, False]


def test_an_engine_that_cannot_be_made_is_told_and_left_out(
    factory: EngineFactory, sample: EvalSample, tmp_path: Path
) -> None:
    broken = EngineFactory(factory.model, tmp_path, factory.tokenizer, "cpu", 1)
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    found: Choice = selection.choose(broken, ("onnx-fp32", "torch-fp32"), sample)
    assert found.engine == "torch-fp32"
    assert found.trials[0].refusal.startswith("cannot be created: ")
    timed = selection.curves(broken, ("onnx-fp32", "torch-fp32"), sample, (1, 4), "cpu:1")
    assert [(each.accelerators, each.engine) for each in timed] == [
        ("cpu:1", "onnx-fp32"),
        ("cpu:1", "torch-fp32"),
    ]
    assert timed[0].refusal.startswith("cannot be created: ")
    assert timed[0].seconds is None
    assert list(timed[1].seconds or ()) == [1, 4]


@pytest.mark.parametrize("is_one_by_one", [True, False])
def test_only_an_engine_that_saves_time_in_larger_batches_waits_for_them(
    version: ModelVersion, *, is_one_by_one: bool
) -> None:
    own = replace(version, id=f"alone-{is_one_by_one}")  # with a folder of its own for the choice
    names: tuple[EngineName, ...] = ("torch-fp32",)
    known = Choice("torch-fp32", 256, 1.0, is_one_by_one=is_one_by_one)
    selection._write_choice(EngineFactory.of(own, "cpu", 1), names, known)
    choice, batcher = startup.start(ReplicaConfig(own, engine="torch-fp32"), lambda *_: None)
    batcher.close()
    assert choice == known
    assert (batcher._waiting.saving is NOTHING) == is_one_by_one


class Drifting(EngineFactory):
    """Makes engines whose scores change with the rows of a batch."""

    def make(self, name: EngineName, sample: EvalSample) -> Engine:
        """Returns the same engine for every name."""
        return Fake(drift=0.05)


def test_rows_are_run_by_themselves_where_batches_change_their_scores(
    factory: EngineFactory, tmp_path: Path
) -> None:
    drifting = Drifting(factory.model, tmp_path, factory.tokenizer, "cpu", 1)
    alone = acceptance.scores(Fake(drift=0.05), GATE.rows, 1)
    sample = EvalSample(GATE.rows, GATE.labels, alone)
    choice = selection.choose(drifting, ("onnx-fp32", "torch-fp32"), sample)
    assert choice.is_one_by_one
    assert all("changes by" in trial.refusal for trial in choice.trials)
    assert selection.choose(drifting, ("onnx-fp32", "torch-fp32"), sample) == choice  # remembered
    engine = OneByOne(drifting.make(choice.engine, sample))
    assert acceptance.scores(engine, sample.rows, 32) == pytest.approx(alone)
