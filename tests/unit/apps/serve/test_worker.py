"""The thread of a served model computes with all threads that there are, whatever other threads compute with."""

import asyncio
from types import SimpleNamespace
from typing import Any

import torch

from archetype.apps.serve.worker import Worker


def test_texts_leave_the_model_its_threads() -> None:
    async def counts() -> list[int]:
        model: Any = SimpleNamespace()
        worker = Worker(model, None, max_queue=4)
        try:
            ones = [await worker.text(torch.get_num_threads)]
            return [*ones, await worker.run(torch.get_num_threads), await worker.text(torch.get_num_threads)]
        finally:
            worker.stop()

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert asyncio.run(counts()) == [1, 3, 1]
    finally:
        torch.set_num_threads(before)
