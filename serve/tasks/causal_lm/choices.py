"""Answers to one request that are written at the same time."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from serve.tasks.causal_lm.answer import Piece


async def merged(answers: Sequence[AsyncGenerator[Piece]]) -> AsyncGenerator[tuple[int, Piece]]:
    """Yields the pieces of all answers as they come, each with the answer's index.

    An error of one ends all of them, and so does a caller who stops iterating.
    """
    queue = asyncio.Queue[tuple[int, Piece | Exception]]()

    async def read(index: int, pieces: AsyncGenerator[Piece]) -> None:
        async with contextlib.aclosing(pieces):
            try:
                async for piece in pieces:
                    queue.put_nowait((index, piece))
            except Exception as error:  # noqa: BLE001 - raised below
                queue.put_nowait((index, error))

    tasks = [asyncio.create_task(read(index, pieces)) for index, pieces in enumerate(answers)]
    try:
        left = len(tasks)
        while left:
            index, piece = await queue.get()
            if isinstance(piece, Exception):
                raise piece
            yield index, piece
            left -= piece.finish is not None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collected(pieces: AsyncGenerator[tuple[int, Piece]], count: int) -> list[Piece]:
    """Returns `count` whole answers, each as one piece."""
    found: list[list[Piece]] = [[] for _ in range(count)]
    async with contextlib.aclosing(pieces):
        async for index, piece in pieces:
            found[index].append(piece)
    return [_joined(each) for each in found]


def _joined(pieces: Sequence[Piece]) -> Piece:
    last = pieces[-1]
    logprobs = tuple(each for piece in pieces for each in piece.logprobs)
    return Piece("".join(piece.text for piece in pieces), last.tokens, last.finish, logprobs)
