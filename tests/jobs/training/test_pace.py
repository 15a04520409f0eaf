"""The pace of a device: the same work, over and over."""

import threading

import torch

from jobs.training.pace import pace_s


def test_a_busy_processor_is_slower() -> None:
    device, stop = torch.device("cpu"), threading.Event()
    quiet_s = min(pace_s(device) for _ in range(3))

    def burn() -> None:
        matrix = torch.ones(1024, 1024)
        while not stop.is_set():
            matrix @ matrix

    others = [threading.Thread(target=burn) for _ in range(4)]
    for other in others:
        other.start()
    try:
        busy_s = max(pace_s(device) for _ in range(3))
    finally:
        stop.set()
    assert busy_s > 1.3 * quiet_s
