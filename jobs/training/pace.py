"""How fast a device is at this moment, by a fixed piece of work.

A processor shared with others, or one that is hot, is faster at one minute than at another, and
nothing else tells.
"""

import time

import torch

ROWS = {"cuda": 4096, "cpu": 768}
"""Of the square matrices whose product is taken."""
WARMUP, TIMED_S = 3, 0.25
"""Products before, and for how long they are timed."""


def pace_s(device: torch.device) -> float:
    """Mean seconds of a fixed matrix product, over a quarter of a second."""
    rows = ROWS[device.type]
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    left = torch.ones(rows, rows, device=device, dtype=dtype)
    product = torch.empty_like(left)
    for _ in range(WARMUP):
        torch.mm(left, left, out=product)
    _wait(device)
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < TIMED_S:
        torch.mm(left, left, out=product)
        _wait(device)
        count += 1
    return (time.monotonic() - begin) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
