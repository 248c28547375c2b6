"""The thread of a served model computes with all threads that there are, whatever other threads compute with."""

import asyncio
import threading
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


def test_a_client_that_leaves_as_its_text_is_ready_is_not_served_any_more() -> None:
    """The request is cancelled between the end of the work and the step that reads its result."""

    async def leave() -> bool:
        worker, gate = Worker(SimpleNamespace(), None, max_queue=4), threading.Event()  # type: ignore[arg-type]
        try:
            request = asyncio.create_task(worker.text(gate.wait))
            await asyncio.sleep(0)
            gate.set()
            worker._texts.shutdown(wait=True)  # the loop has the result, and has not read it
            await asyncio.sleep(0)
            request.cancel()
            await asyncio.wait([request])
            return request.cancelled()
        finally:
            worker.stop()

    assert asyncio.run(leave())
