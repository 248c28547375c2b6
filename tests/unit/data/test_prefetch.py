"""Batches that a thread prepares ahead are those that each step would make, and are waited for only when late."""

import threading
import time

import pytest
import torch

from archetype.data.batches import AHEAD, Prefetcher
from archetype.errors import DataError
from archetype.training.objectives.base import Batch


def test_steps_in_any_order_get_their_own_batch() -> None:
    asked: list[int] = []

    def batch(step: int) -> Batch:
        asked.append(step)
        return (torch.tensor([step]),)

    prefetcher = Prefetcher(batch)
    for step in range(5):
        assert prefetcher.batch(step)[0][0].tolist() == [step]
    assert len(asked) == len(set(asked)) >= 5  # each once, while steps follow each other
    for step in (9, 4, 4, 5):
        assert prefetcher.batch(step)[0][0].tolist() == [step]


def test_the_next_batch_is_prepared_while_a_step_computes() -> None:
    prepared = {step: threading.Event() for step in range(9)}

    def batch(step: int) -> Batch:
        time.sleep(0.02)
        prepared[step].set()
        return ()

    prefetcher = Prefetcher(batch)
    assert prefetcher.batch(0)[1] >= 0.02  # the first is waited for
    for step in range(1, 1 + AHEAD):
        assert prepared[step].wait(10)  # before any step asks for it


def test_an_error_reaches_the_step_that_asks() -> None:
    def batch(step: int) -> Batch:
        if step == 1:
            raise DataError("text", "is damaged")
        return ()

    prefetcher = Prefetcher(batch)
    prefetcher.batch(0)
    with pytest.raises(DataError, match="text: is damaged"):
        prefetcher.batch(1)
