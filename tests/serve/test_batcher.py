"""The batcher forms a batch when the engine is free, with the oldest row, and loses none."""

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from jobs.spec.serve import EngineName
from serve.batching.batcher import Batcher
from serve.batching.client import (
    Answer,
    DeadlineError,
    InternalError,
    NonFiniteScoresError,
    QueueFullError,
    answered,
)
from serve.batching.policy import Limits, form_batches
from serve.batching.rows import Logits, PendingBatch, Row, Text
from serve.batching.waiting import LONGEST_PAUSE, NOTHING, Saving, Waiting
from serve.engines.startup import saving


class Words:
    """A tokenizer of one token for each word; `!` cannot be tokenised."""

    def rows(self, texts: Sequence[Text]) -> list[Row]:
        """Returns rows whose ids are the lengths of the words."""
        if any("!" in part for text in texts for part in text):
            raise ValueError("no such word")
        return [Row([len(word) for word in text[0].split()], []) for text in texts]


class Summing:
    """A slow engine whose score is the sum of a row's ids; records its batches."""

    name: EngineName = "torch-fp32"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.batches = seconds, list[list[int]]()
        self.begun = 0
        self.gate = threading.Event()
        self.gate.set()

    def run(self, rows: Sequence[Row]) -> Logits:
        """Returns the sums, [rows, 1]."""
        self.begun += 1
        self.gate.wait(10)
        time.sleep(self.seconds)
        self.batches.append([len(row) for row in rows])
        return np.array([[sum(row.ids)] for row in rows], dtype=np.float32)


class Failing(Summing):
    """Raises an error or returns NaN."""

    def run(self, rows: Sequence[Row]) -> Logits:
        """Raises if the first row has the id 1, and returns NaN otherwise."""
        if rows[0].ids[0] == 1:
            raise RuntimeError("out of order")
        return np.full((len(rows), 1), np.nan, dtype=np.float32)


class Launching(Summing):
    """Runs batches on its own thread, one after the other, as a GPU does."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.device = ThreadPoolExecutor(1)
        self.most, self.under_way = 0, 0

    def launch(self, rows: Sequence[Row]) -> PendingBatch:
        """Queues a batch."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        future = self.device.submit(self.run, rows)

        def land() -> Logits:
            found = future.result()
            self.under_way -= 1
            return found

        return land


def batcher(
    engine: Summing, *, ahead: int = 0, saved: Saving = NOTHING, **limits: float
) -> Batcher:
    def launch(rows: Sequence[Row]) -> PendingBatch:
        found = engine.run(rows)
        return lambda: found

    begin = engine.launch if isinstance(engine, Launching) else launch
    bounds = Limits(**limits)  # type: ignore[arg-type]
    return Batcher(begin, Words(), bounds, ahead=ahead, saving=saved)  # type: ignore[arg-type]


async def score(asked: Batcher, inputs: Sequence[Text], timeout_s: float) -> Answer:
    """Returns the scores of texts, or raises the batcher's error."""
    found: Answer = await answered(
        lambda on_answered: asked.start(inputs, timeout_s, on_answered), asked.cancel
    )
    return found


def test_a_block_is_all_that_waits_or_the_oldest_of_it() -> None:
    lengths = [5, 50, 6, 4, 51, 5]
    assert form_batches(lengths, Limits(batch_tokens=100)) == [[3, 0, 5, 2], [1], [4]]
    assert form_batches(lengths, Limits(batch_tokens=306)) == [[3, 0, 5, 2, 1, 4]]
    assert form_batches(lengths, Limits(batch_tokens=8)) == [[0], [1], [2]]  # eight batches' tokens
    assert form_batches(lengths, Limits(batch_tokens=8, block_batches=2)) == [[0]]
    assert form_batches([9], Limits(batch_tokens=1)) == [[0]]


def test_an_engine_that_packs_is_given_the_oldest_as_they_came() -> None:
    packed = Limits(batch_tokens=60, is_packed=True)
    assert form_batches([50, 6, 4, 9, 7], packed) == [[0, 1, 2]]
    assert form_batches([50, 6, 4, 9, 6], packed) == [
        [0, 1, 2, 3, 4]
    ]  # no more than a quarter over
    assert form_batches([90, 6, 4], packed) == [[0]]
    assert form_batches([1] * 9, Limits(batch_rows=4, is_packed=True)) == [[0, 1, 2, 3]]


def test_of_a_block_the_batch_with_the_oldest_goes_first() -> None:
    assert form_batches([50, 6, 48, 5, 7], Limits(batch_tokens=100)) == [[2, 0], [3, 1, 4]]
    assert form_batches([5, 50, 6, 48, 7], Limits(batch_tokens=100)) == [[0, 2, 4], [3, 1]]


def test_a_block_is_split_evenly() -> None:
    def sizes(rows: int, **limits: int) -> list[int]:
        return [len(batch) for batch in form_batches([10] * rows, Limits(**limits))]

    assert sizes(36, batch_tokens=160) == [12, 12, 12]
    assert sizes(37, batch_tokens=1000, batch_rows=8) == [8, 8, 8, 8, 5]


def test_every_block_keeps_its_limits_and_takes_the_oldest() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 80))]
        limits = Limits(batch_tokens=draw.randint(1, 300), batch_rows=draw.randint(1, 16))
        batches = form_batches(lengths, limits)
        taken = sorted(index for batch in batches for index in batch)
        assert taken == list(range(len(taken)))
        assert (
            len(taken) == len(lengths) or sum(lengths[: len(taken) + 1]) > 8 * limits.batch_tokens
        )
        for batch in batches:
            widest = max(lengths[index] for index in batch)
            assert len(batch) == 1 or len(batch) * widest <= limits.batch_tokens
            assert len(batch) <= limits.batch_rows


def test_everybody_gets_their_own_answer_in_batches() -> None:
    engine = Summing(0.002)

    async def ask_all() -> list[float]:
        asked = batcher(engine, batch_tokens=64, batch_rows=8)
        texts = [" ".join(["ab"] * (1 + number % 9)) for number in range(200)]
        answers = await asyncio.gather(*(score(asked, [(text,)], 10) for text in texts))
        asked.close()
        return [answer.scores[0][0] for answer in answers]

    assert asyncio.run(ask_all()) == [2.0 * (1 + number % 9) for number in range(200)]
    assert sum(map(len, engine.batches)) == 200
    assert len(engine.batches) < 100
    assert all(len(batch) == 1 or len(batch) * max(batch) <= 64 for batch in engine.batches)


def test_a_batch_is_told_of_when_the_next_was_laid_out_and_before_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve.batching.batcher.QUICK_S", 0.0)
    order, told = list[str](), threading.Event()

    async def ask_twice() -> None:
        loop = asyncio.get_running_loop()

        def launch(rows: Sequence[Row]) -> PendingBatch:
            number = rows[0].ids[0]
            loop.call_soon_threadsafe(order.append, f"laid out {number}")

            def land() -> Logits:
                assert number == 1 or told.wait(10)
                loop.call_soon_threadsafe(order.append, f"done {number}")
                return np.ones((len(rows), 1), dtype=np.float32)

            return land

        async def ask(text: str) -> None:
            await score(asked, [(text,)], 10)
            order.append(f"told {len(text)}")
            told.set()

        asked = Batcher(launch, Words(), Limits(batch_rows=1))  # type: ignore[arg-type]
        await asyncio.gather(ask("a"), ask("bb"))
        asked.close()

    asyncio.run(ask_twice())
    assert order == ["laid out 1", "done 1", "laid out 2", "told 1", "done 2", "told 2"]


@pytest.mark.parametrize("ahead", [0, 1])
def test_batches_are_launched_ahead_of_the_one_that_is_waited_for(ahead: int) -> None:
    engine = Launching(0.005)

    async def ask_all() -> list[float]:
        asked = batcher(engine, ahead=ahead, batch_rows=4)
        answers = await asyncio.gather(*(score(asked, [("x " * n,)], 10) for n in range(1, 41)))
        rate = asked.load.tokens_per_s
        asked.close()
        assert rate is not None
        assert 100 < rate < 40_000  # what a batch waited for the one before is not counted twice
        return [answer.scores[0][0] for answer in answers]

    assert asyncio.run(ask_all()) == [float(n) for n in range(1, 41)]
    assert engine.most == 1 + ahead
    assert engine.under_way == 0


def test_batches_under_way_are_answered_when_it_closes() -> None:
    engine = Launching(0.02)
    engine.gate.clear()

    async def ask_all() -> list[float]:
        asked = batcher(engine, ahead=1, batch_rows=1)
        waiting = [asyncio.ensure_future(score(asked, [("x " * n,)], 10)) for n in (1, 2, 3, 4)]
        while engine.under_way < 2:
            await asyncio.sleep(0.001)
        engine.gate.set()
        await asyncio.to_thread(asked.close)
        await asyncio.sleep(0.05)
        done = [future.result().scores[0][0] for future in waiting if future.done()]
        for future in waiting:
            future.cancel()
        return done

    found = asyncio.run(ask_all())
    assert len(found) >= 2
    assert engine.under_way == 0


@pytest.mark.parametrize("saved", [NOTHING, Saving((1.0,), (60.0,))])
def test_a_lone_text_does_not_wait(saved: Saving) -> None:
    """Who waits for others waits for longer than a text may take, which is an error then."""

    async def ask() -> float:
        asked, took_s = batcher(Summing(), saved=saved), list[float]()
        await score(asked, [("warm up",)], 10)
        for _ in range(20):
            begin = time.perf_counter()
            await score(asked, [("a b c",)], 10)
            took_s.append(time.perf_counter() - begin)
        asked.close()
        return statistics.median(took_s)

    assert asyncio.run(ask()) < 0.02


def test_texts_of_one_turn_of_the_event_loop_go_together_though_the_engine_is_idle() -> None:
    engine = Summing()

    async def ask_all() -> None:
        asked = batcher(engine)
        for _ in range(20):
            await asyncio.gather(*(score(asked, [("a b c",)], 10) for _ in range(40)))
        asked.close()

    asyncio.run(ask_all())
    assert engine.batches == [[3] * 40] * 20


def test_clients_in_two_groups_become_one_batch_where_batches_cost_much() -> None:
    """The engine is busy until every client that is left has asked.

    Without a wait they stay two groups, unless a busy machine lets those that are answered ask
    again before the next batch is formed, which it does not each time.
    """
    clients = [0]

    def sizes(saved: Saving, turns: int) -> list[int]:
        engine = Summing()
        clients[0] = 8
        asyncio.run(ask_all(engine, saved, turns))
        return [len(batch) for batch in engine.batches]

    async def ask_all(engine: Summing, saved: Saving, turns: int) -> None:
        def run(rows: Sequence[Row]) -> Logits:
            found = engine.run(rows)
            while asked.load.requests < clients[0]:
                time.sleep(0.001)
            return found

        asked = Batcher(
            lambda rows: lambda: run(rows),
            Words(),  # type: ignore[arg-type]
            Limits(),
            saving=saved,
        )

        async def client() -> None:
            for _ in range(turns):
                await score(asked, [("a b c",)], 60)
            clients[0] -= 1

        first = [asyncio.ensure_future(client()) for _ in range(5)]
        while not engine.begun:
            await asyncio.sleep(0.005)  # the other three come while these five are run
        await asyncio.gather(*first, *(client() for _ in range(3)))
        asked.close()

    assert any(sizes(NOTHING, turns=3) == [5, 3] * 3 for _ in range(50))
    only_all = Saving((23.0, 24.0), (0.0, 5.0))  # who was not tokenised yet counts too
    found = sizes(only_all, turns=40)
    assert found[0] == 5
    assert found[1:20].count(8) > 16


def test_a_free_engine_waits_until_as_many_are_back_as_it_answered() -> None:
    waiting = Waiting(Saving((10.0, 20.0), (0.1, 60.0)))
    waiting.answered([3, 4, 5])
    assert list(waiting.missing) == [3, 4, 5]
    waiting.arrived(2)
    assert list(waiting.missing) == [5]
    threading.Timer(0.02, waiting.arrived, [1]).start()
    begin = time.monotonic()
    waiting.wait(20)
    assert time.monotonic() - begin < 30
    assert not waiting.missing
    waiting.answered([3, 4, 5])
    begin = time.monotonic()
    waiting.wait(10)  # nobody comes
    assert 0.1 <= time.monotonic() - begin < 30


def test_nobody_is_waited_for_where_nobody_is_missing_or_nothing_is_saved() -> None:
    waiting = Waiting(Saving((10.0, 20.0), (0.0, 0.2)))
    assert not waiting.is_due(0, 20)
    assert not waiting.is_due(3, 10)
    assert waiting.is_due(3, 20)
    assert not Waiting(NOTHING).is_due(3, 20)


def test_a_wait_in_vain_is_followed_by_a_pause_that_doubles_and_another_by_one_of_half() -> None:
    def pause() -> int:
        return next(count for count in range(1000) if waiting.is_due(10, 10))

    def wait(back: int) -> None:
        waiting.answered([1] * 10)
        waiting.arrived(back)
        waiting.wait(10)

    waiting, pauses = Waiting(Saving((10.0,), (1e-4,))), list[int]()
    for _ in range(9):
        pauses.append(pause())
        wait(back=8)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]
    pauses = []
    for _ in range(8):
        pauses.append(pause())
        wait(back=9)  # nearly all
    assert pauses == [LONGEST_PAUSE, 32, 16, 8, 4, 2, 1, 0]


@pytest.mark.parametrize("row_s", [5e-4, 3e-3, 8e-3, 2e-2, 0.3])
@pytest.mark.parametrize("busy", [0.3, 0.6, 0.9])
def test_clients_that_do_not_wait_for_answers_are_hardly_ever_waited_for(
    row_s: float, busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts arrive at random; a batch has all that arrived during the batch before."""
    saved_s, batches = 0.01, 5000
    draw, rate = random.Random(1), busy / row_s
    waiting = Waiting(Saving((1.0,), (saved_s,)))
    now, waited = 0.0, 0
    monkeypatch.setattr(waiting, "_are_back", Mock())  # the clock is drawn
    arrival, rows = draw.expovariate(rate), 1
    for _ in range(batches):
        now += saved_s + rows * row_s
        waiting.answered([1] * rows)
        answered, rows = rows, 0
        while arrival < now or not rows:  # an idle engine takes the first at once
            if arrival >= now:
                now = arrival
                waiting.arrived(1)
            rows, arrival = rows + 1, arrival + draw.expovariate(rate)
        missing = answered - (rows if rows == 1 else 0)
        if missing > 0 and waiting.is_due(missing, 1.0):
            waited, end = waited + 1, now + saved_s
            while arrival < end:
                waiting.arrived(1)
                rows, arrival = rows + 1, arrival + draw.expovariate(rate)
            waiting.wait(1.0)
            now = end
    assert waited < batches / 35


def test_what_one_batch_saves_is_timed_for_a_few_and_for_a_full_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("serve.engines.selection.time.perf_counter", lambda: clock[0])

    class Timed(Summing):
        is_packed = True
        graph_s = 0.0

        def launch(self, rows: Sequence[Row]) -> PendingBatch:
            raise NotImplementedError

        def run(self, rows: Sequence[Row]) -> Logits:
            assert {len(row) for row in rows} == {10}
            is_full = sum(map(len, rows)) == 500
            clock[0] += 0.02 + 0.003 * len(rows) - self.graph_s * is_full
            return np.zeros((len(rows), 2), dtype=np.float32)

    limits = Limits(batch_tokens=500, batch_rows=100, is_packed=True)
    engine = Timed()
    found = saving(engine, limits, [10] * 7, 10)
    assert [found.of(tokens) for tokens in (8, 16 * 10, 500, 900)] == pytest.approx([0.02] * 4)
    engine.graph_s = 0.05  # a graph is made for a full batch
    found = saving(engine, limits, [12] * 7, 10)  # cut to 10
    assert found.of(16 * 10) == pytest.approx(0.02)
    assert found.of(500) == pytest.approx(0.07)
    assert found.of((500 + 16 * 10) / 2) == pytest.approx(0.045)
    lone = Limits(batch_tokens=200, batch_rows=1, is_packed=True)
    assert saving(engine, lone, [12], 10).of(200) == pytest.approx(0.02)  # of one row no half


def test_a_list_is_answered_in_order_and_from_several_batches() -> None:
    async def ask() -> list[float]:
        asked = batcher(Summing(), batch_rows=4)
        answer = await score(asked, [("x " * count,) for count in range(1, 31)], 10)
        asked.close()
        return [scores[0] for scores in answer.scores]

    assert asyncio.run(ask()) == [float(count) for count in range(1, 31)]


def test_a_full_queue_refuses_and_says_how_long() -> None:
    async def ask() -> float:
        engine = Summing(0.05)
        asked = batcher(engine, queue_tokens=40, batch_tokens=8)
        await score(asked, [("one two three",)], 10)
        waiting = [
            asyncio.ensure_future(score(asked, [("some words " * 3,)], 10)) for _ in range(4)
        ]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as caught:
            await score(asked, [("some words " * 3,)], 10)
        await asyncio.gather(*waiting)
        assert asked.load.requests == 0
        assert asked.load.tokens == pytest.approx(0, abs=1e-6)
        asked.close()
        return caught.value.retry_after_s

    assert asyncio.run(ask()) > 0


def test_a_request_too_late_or_given_up_never_reaches_the_engine() -> None:
    async def ask() -> None:
        engine = Summing()
        engine.gate.clear()
        asked = batcher(engine, batch_rows=1)
        first = asyncio.ensure_future(score(asked, [("a",)], 10))
        await asyncio.sleep(0.05)
        cancelled = asyncio.ensure_future(score(asked, [("a b",)], 10))
        with pytest.raises(DeadlineError):
            await score(asked, [("a b c",)], 0.05)
        cancelled.cancel()
        last = asyncio.ensure_future(score(asked, [("a b c d",)], 10))
        await asyncio.sleep(0)
        engine.gate.set()
        await asyncio.gather(first, last)
        asked.close()
        assert engine.batches == [[1], [4]]

    asyncio.run(ask())


def test_failures_reach_those_who_asked_and_the_engine_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask() -> None:
        asked = batcher(Failing())
        with pytest.raises(InternalError):
            await score(asked, [("a",)], 10)
        with pytest.raises(NonFiniteScoresError, match="NaN or infinity"):
            await score(asked, [("ab",)], 10)
        with pytest.raises(InternalError):
            await score(asked, [("!",)], 10)
        with pytest.raises(NonFiniteScoresError):
            await score(asked, [("ab",)], 10)
        asked.close()

    asyncio.run(ask())
    told = [record.exc_text or "" for record in caplog.records]
    assert ["out of order" in told[0], "no such word" in told[1]] == [True, True]
    assert len(told) == 2  # once for a batch, whoever asked


def test_the_oldest_waits_no_more_than_a_few_batches_under_load() -> None:
    """Short texts arrive without a pause; a long one among them is in the next block."""
    clients, rows, long = 32, 4, 40

    async def ask() -> int:
        engine = Summing(0.002)
        asked = batcher(engine, batch_tokens=2 * rows, batch_rows=rows)
        stop = asyncio.Event()

        async def client() -> None:
            while not stop.is_set():
                await score(asked, [("a b",)], 10)

        running = [asyncio.ensure_future(client()) for _ in range(clients)]
        await asyncio.sleep(0.05)
        before = len(engine.batches)
        await score(asked, [("long " * long,)], 10)
        waited = engine.batches.index([long]) - before  # not those that ran until this loop's turn
        stop.set()
        await asyncio.gather(*running)
        asked.close()
        return waited

    # those who were there, in two blocks at most; then the short ones of its own form_batches
    older = clients // rows + 1
    beside = (Limits().block_batches * 2 * rows - long) // 2 // rows
    assert asyncio.run(ask()) <= older + beside


def test_a_new_wait_of_an_idle_engine_holds_from_the_next_request_on() -> None:
    async def ask() -> float:
        asked = batcher(Summing())
        await asked_once(asked)
        await asyncio.sleep(0.05)  # the engine's thread waits already
        asked.limits = replace(asked.limits, idle_wait_s=0.3)
        begin = time.perf_counter()
        await asked_once(asked)
        asked.close()
        return time.perf_counter() - begin

    async def asked_once(asked: Batcher) -> None:
        await score(asked, [("a b",)], 10)

    assert asyncio.run(ask()) >= 0.3
