"""The batcher forms a batch when the engine is free, with the oldest row, and loses none."""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

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
)
from serve.batching.policy import Limits, form_batches, is_batch_full
from serve.batching.rows import Logits, PendingBatch, Row, Text
from serve.batching.waiting import (
    APART_S,
    IN_TIME,
    IN_VAIN,
    LAST,
    MOST,
    NOTHING,
    PAUSE_S,
    Returning,
    Saving,
)
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
        answers = await asyncio.gather(*(asked.score([(text,)], 10) for text in texts))
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
            await asked.score([(text,)], 10)
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
        answers = await asyncio.gather(*(asked.score([("x " * n,)], 10) for n in range(1, 41)))
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

    async def ask_all() -> list[float]:
        asked = batcher(engine, ahead=1, batch_rows=1)
        waiting = [asyncio.ensure_future(asked.score([("x " * n,)], 10)) for n in (1, 2, 3, 4)]
        while engine.under_way < 2:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(asked.close)
        await asyncio.sleep(0.05)
        done = [future.result().scores[0][0] for future in waiting if future.done()]
        for future in waiting:
            future.cancel()
        return done

    found = asyncio.run(ask_all())
    assert len(found) >= 2
    assert engine.under_way == 0


@pytest.mark.parametrize("saved", [NOTHING, Saving((1.0,), (0.5,))])
def test_a_lone_text_does_not_wait(saved: Saving) -> None:
    async def ask() -> float:
        asked = batcher(Summing(), saved=saved)
        await asked.score([("warm up",)], 10)
        begin = time.perf_counter()
        for _ in range(20):
            await asked.score([("a b c",)], 10)
        asked.close()
        return (time.perf_counter() - begin) / 20

    assert asyncio.run(ask()) < 0.02


def test_texts_of_one_turn_of_the_event_loop_go_together_though_the_engine_is_idle() -> None:
    engine = Summing()

    async def ask_all() -> None:
        asked = batcher(engine)
        for _ in range(20):
            await asyncio.gather(*(asked.score([("a b c",)], 10) for _ in range(40)))
        asked.close()

    asyncio.run(ask_all())
    assert engine.batches == [[3] * 40] * 20


def test_clients_in_two_groups_become_one_batch_where_batches_cost_much() -> None:
    def sizes(saved: Saving, turns: int) -> list[int]:
        engine = Summing(0.05)
        asyncio.run(ask_all(engine, saved, turns))
        return [len(batch) for batch in engine.batches]

    async def ask_all(engine: Summing, saved: Saving, turns: int) -> None:
        asked = Batcher(
            lambda rows: lambda: engine.run(rows),
            Words(),  # type: ignore[arg-type]
            Limits(),
            saving=saved,
        )

        async def client() -> None:
            for _ in range(turns):
                await asked.score([("a b c",)], 10)

        first = [asyncio.ensure_future(client()) for _ in range(5)]
        while not engine.begun:
            await asyncio.sleep(0.005)  # the other three come while these five are run
        await asyncio.gather(*first, *(client() for _ in range(3)))
        asked.close()

    assert sizes(NOTHING, turns=3) == [5, 3] * 3
    only_all = Saving((23.0, 24.0), (0.0, 0.05))  # who was not tokenised yet counts too
    found = sizes(only_all, turns=40)
    assert found[:4] == [5, 3] * 2  # that they come again has to be seen first
    assert found[-15:].count(8) > 12


def answered(*turns: Sequence[tuple[int, float]]) -> Returning:
    """Four were answered in each turn, after which some came back, then four at 1000 s."""
    returning, now = Returning(), 0.0
    for back in turns:
        now += 10
        returning.told([3] * 4, now)
        for inputs, after_s in back:
            returning.came(inputs, now + after_s)
    returning.told([3] * 4, 1000.0)
    return returning


def test_those_who_ask_again_at_once_are_waited_for_and_no_longer_than_until_they_came() -> None:
    all_in_time, late, half = [(4, 0.5)], [(3, 0.5), (1, 1.1)], [(2, 0.1)]
    assert not answered(*[all_in_time] * (IN_TIME - 1)).pays(1.0)  # it has to be seen first
    assert not answered(*[late] * LAST).pays(1.0)
    assert answered(*[late] * LAST).pays(1.2)
    held_up = [half] * (LAST - IN_TIME)
    assert answered(*[all_in_time] * LAST, *held_up).pays(1.0)
    assert not answered(*[all_in_time] * LAST, *held_up, half).pays(1.0)

    paused = [[(4, PAUSE_S + 1)], []] * LAST  # and ended
    assert answered(*[all_in_time] * LAST, *paused).pays(1.0)
    assert not answered(*[late] * LAST, *paused).pays(1.0)
    returning = answered(*[all_in_time] * LAST)
    assert not returning.came(4, 1000.1 + PAUSE_S)
    assert returning.left_s(1000.1 + PAUSE_S, PAUSE_S / MOST) == 0.0

    returning = answered(*[all_in_time] * LAST)
    assert returning.pays(1.0)
    assert returning.pays(0.4)  # it goes on
    assert not returning.pays(0.2)
    assert not returning.pays(0.4)
    assert not answered(*[[(4, 0.0)]] * LAST).pays(0.0)  # nothing is saved
    assert not returning.came(3, 1000.1)
    assert returning.left_s(1000.2, 1.0) == pytest.approx(MOST - 0.2)
    assert returning.left_s(1000.0 + 2 * MOST, 1.0) == 0.0
    assert returning.came(1, 1000.3)
    assert returning.left_s(1000.3, 1.0) == 0.0


def test_waiting_begins_and_ends_only_once_most_of_the_last_batches_say_so() -> None:
    returning, now = Returning(), 0.0

    def waits(after_s: Sequence[float]) -> list[bool]:
        """Whether it pays after each of some batches; all come again after such times."""
        nonlocal now
        found = list[bool]()
        for back_s in after_s:
            returning.told([3] * 4, now)
            returning.came(4, now + back_s)
            now += 10
            returning.told([], now)
            found.append(returning.pays(0.2))
        return found

    in_time, late, in_vain = 0.15, 0.35, 0.45  # none is a pause
    assert waits([in_time] * IN_TIME) == [False] * (IN_TIME - 1) + [True]
    assert all(waits([late] * LAST))
    assert waits([in_vain] * IN_VAIN) == [True] * (IN_VAIN - 1) + [False]
    assert not any(waits([late, in_time] * LAST))
    assert waits([in_time] * LAST)[-1] is True


def test_a_burst_is_followed_until_nothing_comes_or_no_more_is_saved() -> None:
    saving, busy = Saving((10.0, 20.0), (0.1, 0.2)), Returning()
    busy.told([3], 5.0)
    assert busy.burst_left_s([5.0], 5.0, saving, 3) == 0.0  # a lone text
    came = [5.02, 5.0, 5.04]
    assert busy.burst_left_s(came, 5.05, saving, 9) == pytest.approx(0.09)
    assert busy.burst_left_s(came, 5.14, saving, 20) == 0.0
    came.append(4.99 + MOST * 0.1)
    assert busy.burst_left_s(came, 5.19, saving, 10) == pytest.approx(MOST * 0.1 - 0.19)
    assert busy.burst_left_s(came, 5.19, saving, 20) == pytest.approx(MOST * 0.1 - 0.1)
    assert busy.burst_left_s(came, 5.05, NOTHING, 10) == 0.0


def test_a_burst_after_a_pause_is_followed_for_as_long_as_groups_come_apart() -> None:
    saving, came = Saving((10.0, 20.0), (1e-3, 4e-3)), [5.0, 5.001]
    paused, busy, slow = Returning(), Returning(), Saving((10.0, 20.0), (0.1, 0.2))
    paused.told([3], 4.999 - PAUSE_S)
    busy.told([3], 5.001 - PAUSE_S)
    assert busy.burst_left_s(came, 5.0015, saving, 10) == pytest.approx(0.5e-3)
    for returning in (paused, Returning()):
        left_s = returning.burst_left_s(came, 5.0015, saving, 10)
        assert left_s == pytest.approx(APART_S - 0.5e-3)
    assert paused.burst_left_s(came, 5.001 + APART_S, saving, 10) == 0.0
    assert paused.burst_left_s(came, 5.0015, slow, 10) == pytest.approx(0.1 - 0.5e-3)
    came.append(4.999 + MOST * 4e-3)  # a full batch saves no more
    assert paused.burst_left_s(came, 5.0075, saving, 10) == pytest.approx(MOST * 4e-3 - 7.5e-3)
    assert paused.burst_left_s([5.0], 5.0, saving, 3) == 0.0


def test_a_batch_is_full_when_another_row_of_mean_length_has_no_room() -> None:
    limits = Limits(batch_tokens=40, batch_rows=5)
    assert [is_batch_full([9] * rows, limits) for rows in (1, 3, 4)] == [False, False, True]
    assert [is_batch_full([2] * rows, limits) for rows in (4, 5)] == [False, True]


def test_an_idle_engine_takes_a_burst_in_one_batch_where_that_pays() -> None:
    def sizes(saved: Saving) -> list[int]:
        engine = Summing(0.05)
        asyncio.run(ask_all(engine, saved))
        return [len(batch) for batch in engine.batches]

    async def ask_all(engine: Summing, saved: Saving) -> None:
        asked = batcher(engine, saved=saved)
        asking = list[asyncio.Future[Answer]]()
        for _ in range(20):
            asking += [asyncio.ensure_future(asked.score([("a b c",)], 10)) for _ in range(2)]
            await asyncio.sleep(1e-3)
        await asyncio.gather(*asking)
        asked.close()

    # a machine that is held up may begin late, or end a burst early
    assert min(sizes(NOTHING)[0] for _ in range(3)) < 20
    assert max(sizes(Saving((1.0,), (0.1,)))[0] for _ in range(3)) == 40
    # groups come further apart than what a batch of few saves, and nobody had come before
    few_s = 1e-4
    assert max(sizes(Saving((1.0, 200.0), (few_s, 0.1)))[0] for _ in range(3)) == 40


@pytest.mark.parametrize("row_s", [5e-4, 3e-3, 8e-3, 2e-2, 0.3])
@pytest.mark.parametrize("busy", [0.3, 0.6, 0.9])
def test_clients_that_do_not_wait_for_answers_are_hardly_ever_waited_for(
    row_s: float, busy: float
) -> None:
    """Texts arrive at random; a batch has all that arrived during the batch before."""
    draw, rate, saved_s = random.Random(1), busy / row_s, 0.01
    returning, begin, rows, paid = Returning(), 0.0, 1, 0
    for _ in range(5000):
        returning.told([1] * rows, begin)
        paid += returning.pays(saved_s)
        end, at, came = begin + saved_s + rows * row_s, begin + draw.expovariate(rate), 0
        while at < end or not came:  # an idle engine takes the first at once
            returning.came(1, at)
            begin, came, at = max(end, at), came + 1, at + draw.expovariate(rate)
        rows = came
    assert paid < 5000 / 150


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
        answer = await asked.score([("x " * count,) for count in range(1, 31)], 10)
        asked.close()
        return [scores[0] for scores in answer.scores]

    assert asyncio.run(ask()) == [float(count) for count in range(1, 31)]


def test_a_full_queue_refuses_and_says_how_long() -> None:
    async def ask() -> float:
        engine = Summing(0.05)
        asked = batcher(engine, queue_tokens=40, batch_tokens=8)
        await asked.score([("one two three",)], 10)
        waiting = [asyncio.ensure_future(asked.score([("some words " * 3,)], 10)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as caught:
            await asked.score([("some words " * 3,)], 10)
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
        first = asyncio.ensure_future(asked.score([("a",)], 10))
        await asyncio.sleep(0.05)
        cancelled = asyncio.ensure_future(asked.score([("a b",)], 10))
        with pytest.raises(DeadlineError):
            await asked.score([("a b c",)], 0.05)
        cancelled.cancel()
        last = asyncio.ensure_future(asked.score([("a b c d",)], 10))
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
            await asked.score([("a",)], 10)
        with pytest.raises(NonFiniteScoresError, match="NaN or infinity"):
            await asked.score([("ab",)], 10)
        with pytest.raises(InternalError):
            await asked.score([("!",)], 10)
        with pytest.raises(NonFiniteScoresError):
            await asked.score([("ab",)], 10)
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
                await asked.score([("a b",)], 10)

        running = [asyncio.ensure_future(client()) for _ in range(clients)]
        await asyncio.sleep(0.05)
        before = len(engine.batches)
        await asked.score([("long " * long,)], 10)
        waited = engine.batches.index([long]) - before  # not those that ran until this loop's turn
        stop.set()
        await asyncio.gather(*running)
        asked.close()
        return waited

    # those who were there, in two blocks at most; then the short ones of its own form_batches
    older = clients // rows + 1
    beside = (Limits().block_batches * 2 * rows - long) // 2 // rows
    assert asyncio.run(ask()) <= older + beside
