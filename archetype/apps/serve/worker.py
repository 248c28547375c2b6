"""Worker of a loaded model: a single thread for all forward passes, which delivers results to the event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from archetype.api.language_model import LanguageModel
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.limits import GRAMMARS_WAITING
from archetype.generate import Engine, Event, Request, Sampling
from archetype.generate.grammar import LANES

T = TypeVar("T")
TEXT_SECONDS = 10.0  # limit for tokenization, templates and grammars
TEXT_THREADS = 4


def compute_with(num_threads: int) -> None:
    """Set the number of compute threads of the calling thread."""
    torch.set_num_threads(num_threads)
    # a thread's first read fixes its number to the one that any thread set last, so it reads at once
    torch.get_num_threads()


class Stream:
    """Events of a group of requests, delivered to the event loop step by step."""

    def __init__(self) -> None:
        self._events: list[Event] = []  # events before a reader was set
        self._reader: Callable[[list[Event]], None] | None = None

    def put(self, events: list[Event]) -> None:
        """Pass the events of a step to the reader. Runs in the event loop."""
        if self._reader is None:
            self._events += events
        else:
            self._reader(events)

    def read(self, reader: Callable[[list[Event]], None]) -> None:
        """Set the reader, which gets the events so far, then the events of each step. The reader must not raise."""
        self._reader = reader
        if events := self._events:
            self._events = []
            reader(events)


@dataclass(frozen=True, eq=False)
class Choice:
    """Request id in the engine: the choice of a response that the request generates."""

    stream: Stream
    index: int

    def __str__(self) -> str:
        return str(self.index)


class Worker:
    """Thread that runs a model's engine and, between two steps of the engine, other jobs of the model.

    Args:
        engine: the model's engine; None if the model does not generate.
        max_queue: requests that may queue when all slots are busy.
    """

    def __init__(self, lm: LanguageModel, engine: Engine | None, max_queue: int) -> None:
        self.lm, self.engine = lm, engine
        self.limit = max_queue + (1 if engine is None else engine.slots)
        self.num_unfinished = 0  # requests and jobs, as the event loop counts them
        self._loop = asyncio.get_running_loop()
        self._generating: set[Request] = set()
        self._jobs: deque[Callable[[], None]] = deque()
        # guards `_generating`, `_jobs`, `_stopped` and the pauses of requests; `num_unfinished` belongs to the event
        # loop
        self._changed = threading.Condition()
        self._stopped = False
        # a single thread each: `_in_own_thread` explains why
        self._texts = ThreadPoolExecutor(TEXT_THREADS, "archetype-texts", compute_with, (1,))
        self._compiling = ThreadPoolExecutor(LANES, "archetype-grammars", compute_with, (1,))
        self._num_compiling = 0
        counted = threading.Event()
        thread = threading.Thread(
            target=self._work, args=(torch.get_num_threads(), counted), name="archetype-model", daemon=True
        )
        thread.start()
        counted.wait()  # torch.set_num_threads affects threads that have not read it yet
        if engine is not None:  # warm up the compiler; if it is missing, the first request with a grammar reports that
            self._compiling.submit(engine.grammar, engine.sampling.replace(regex="a"))

    async def text(self, work: Callable[[], T], then: Callable[[], None] = lambda: None) -> T:
        """Run text processing (tokenization, templates) in another thread with a time limit.

        Args:
            work: function to run. It is cancelled if it has not begun before the time limit or the client's disconnect.
            then: called in the event loop after `work` has ended, even if that is after the time limit.

        Raises:
            ApiError: the time limit was exceeded.
        """
        return await self._elsewhere(self._texts, work, then)

    async def grammar(self, settings: Sampling) -> None:
        """Compile a grammar in a separate thread, so that other requests do not wait. The engine caches the grammar.

        Raises:
            ArchetypeError: the grammar is invalid.
            ApiError: too many grammars are queued, or the compilation takes too long.
        """
        engine = self.engine
        assert engine is not None
        if self._num_compiling >= GRAMMARS_WAITING:
            raise ApiError("queue_full", f"{GRAMMARS_WAITING} grammars are being compiled; try again later")
        self._num_compiling += 1

        def ended() -> None:
            self._num_compiling -= 1

        await self._elsewhere(self._compiling, lambda: engine.grammar(settings), ended)

    async def _elsewhere(self, pool: ThreadPoolExecutor, work: Callable[[], T], then: Callable[[], None]) -> T:
        future = pool.submit(work)
        future.add_done_callback(lambda _: self._call(then))
        try:
            async with asyncio.timeout(TEXT_SECONDS):  # wait_for of Python 3.11 can swallow a cancellation
                return await asyncio.wrap_future(future)
        except TimeoutError:
            message = f"reading the text takes more than {TEXT_SECONDS:g} s; send a shorter text"
            raise ApiError("request_timeout", message) from None

    @property
    def nbytes(self) -> int:
        return 0 if self.engine is None else self.engine.nbytes

    def admit(self, count: int) -> None:
        """Count requests as admitted. `done` removes each request from the count when it ends.

        Raises:
            ApiError: too many requests are queued.
        """
        if self.num_unfinished and self.num_unfinished + count > self.limit:
            cause = f"{self.num_unfinished} requests are unfinished and at most {self.limit} may be"
            raise ApiError("queue_full", f"{cause}; try again later")
        self.num_unfinished += count

    def done(self, count: int = 1) -> None:
        """Remove requests that have ended, or that were not submitted, from the count."""
        self.num_unfinished -= count

    def submit(self, prompt: list[int], stream: Stream, index: int, logprobs: int | None, **settings: Any) -> Request:
        """Submit an admitted request to the engine. Any thread may call this method.

        Args:
            prompt: token ids.
            stream: stream for the request's events, whose `request.id` is a `Choice`.
            index: index of the choice.
            logprobs: number of alternatives per token; None for no log-probabilities.
            settings: passed to `Engine.submit`.
        """
        assert self.engine is not None
        request = self.engine.submit(prompt, id=Choice(stream, index), logprobs=logprobs, group=stream, **settings)
        with self._changed:
            self._generating.add(request)
            self._changed.notify()
        return request

    def pause(self, requests: list[Request], is_paused: bool) -> None:
        """Pause requests, which frees their slots and keeps their tokens, or resume them."""
        with self._changed:
            for request in requests:
                request.is_paused = is_paused
            self._changed.notify()

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job in the model's thread between two steps. A job that is cancelled before it starts never runs.

        Raises:
            ApiError: too many jobs are queued.
        """
        self.admit(1)
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = job()
            except BaseException as error:
                self._call(_fail, future, error)
            else:
                self._call(_succeed, future, result)

        with self._changed:
            self._jobs.append(work)
            self._changed.notify()
        try:
            return await future
        finally:
            self.done()

    def stop(self) -> None:
        """Stop the thread. The model must not be used afterwards."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        for pool in (self._texts, self._compiling):
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, num_threads: int, counted: threading.Event) -> None:
        compute_with(num_threads)
        counted.set()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_generating or self._jobs or self._stopped)
                if self._stopped:
                    return
                job = self._jobs.popleft() if self._jobs else None
            if job is not None:
                # outside the lock: jobs and steps take long, and submitting must not wait for them
                job()
                job = None  # what it holds, such as a model, is free while the thread waits
            if self._is_generating and self.engine is not None and (events := self.engine.step()):
                finished = [event.request for event in events if event.finish_reason is not None]
                with self._changed:
                    self._generating.difference_update(finished)
                for event in events:
                    event.request.unread.clear()  # delivered through the stream
                self._call(self._deliver, events)

    @property
    def _is_generating(self) -> bool:
        # a copy, since other threads add requests without waiting for a step to end
        return any(not request.is_paused for request in [*self._generating])

    def _deliver(self, events: list[Event]) -> None:
        # in the event loop: the events of one step, grouped by response
        streams: dict[Stream, list[Event]] = {}
        for event in events:
            if event.finish_reason is not None:
                self.done()
            choice = event.request.id
            assert isinstance(choice, Choice)
            streams.setdefault(choice.stream, []).append(event)
        for stream, batch in streams.items():
            stream.put(batch)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        # from any thread; without effect once the loop has ended
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    # the client may have left while the job ran
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
