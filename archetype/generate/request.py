"""Requests to an engine, their events (one per token) and the final text."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from archetype.generate.sample import Sampler
from archetype.settings.generation import Sampling
from archetype.tokenizers import TextStream

if TYPE_CHECKING:
    from archetype.generate.engine import Engine

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probability of a token under the model's own distribution, before temperature, filters and penalties.

    Attributes:
        logprob: natural logarithm of the token's probability.
        top: (token, logprob) of the most likely tokens, in descending order.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Result of one step for one request.

    Attributes:
        token: the generated token id, including the one that ends the text; None if cancelled or failed.
        text: text completed by the token; never ends inside a character or in the beginning of a stop string.
        logprobs: if requested.
        finish_reason: set in the last event: "stop" (an end token or stop string), "length" (`max_new_tokens`),
            "cancelled" or "error".
    """

    request: "Request" = field(repr=False)
    token: int | None = None
    text: str = ""
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class Request:
    """A prompt and its continuation. Iterate over it with `for` or `async for` to receive its events.

    Attributes:
        id: set by the caller, or a number from the engine.
        prompt: token ids; for an encoder-decoder, those of the source.
        sampling: the settings.
        tokens: ids generated so far in delivered events, including the one that ended the text.
        text: the text of these events.
        finish_reason: None until the request has finished.
        error: the error that made it fail, if any.
        unread: delivered events that nobody has read.
        num_cached: prompt tokens copied from a sequence with the same prefix, or source tokens with a cached state.
        group: group of requests it belongs to (None: no group).
        is_paused: whether it gives up its slot and waits.
    """

    def __init__(
        self,
        engine: "Engine",
        id: object,
        prompt: list[int],
        window: list[int],
        sampling: Sampling,
        num_logprobs: int | None,
        stop_ids: frozenset[int],
        stream: TextStream | None,
        sampler: Sampler,
        limit: int,
        spelled: Mapping[int, str],
    ) -> None:
        self.id, self.prompt, self.sampling, self.num_logprobs = id, prompt, sampling, num_logprobs
        self.tokens: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.error: BaseException | None = None
        self.num_cached = 0
        self.sampler = sampler
        self.window = window  # input of the decoder, newest token last
        self.left = limit  # number of tokens that may follow
        self.is_started = self.is_paused = False
        self.group: object = None
        self._engine, self._stop_ids = engine, stop_ids
        self._stream, self._filter = stream, StopStringFilter(sampling.stop)
        self.special_in_text: frozenset[int] = frozenset()  # shown in the text
        self._spelled = spelled  # special tokens that occur in a stop string or are part of the text
        self.unread: deque[Event] = deque()
        self._arrived: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __repr__(self) -> str:
        state = self.finish_reason or "unfinished"
        return f"<Request {self.id}: {len(self.prompt)} + {len(self.tokens)} tokens, {state}>"

    def __iter__(self) -> Iterator[Event]:
        return self._engine.events_of(self)

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._arrived = loop, arrived
        try:
            while not self.is_read:
                if self.unread:
                    yield self.unread.popleft()
                else:
                    self._engine._step_in_background()
                    await arrived.wait()
                    arrived.clear()
        finally:
            self._arrived = None
            self.cancel()
        self.raise_error()

    @property
    def has_news(self) -> bool:
        return bool(self.unread) or self.finish_reason is not None

    @property
    def is_read(self) -> bool:
        """Whether the request has finished and all its events were read."""
        return self.finish_reason is not None and not self.unread

    def raise_error(self) -> None:
        """Raise the error that made the request fail, if any."""
        if self.finish_reason == "error" and self.error is not None:
            raise self.error

    def pieces(self) -> Iterator[str]:
        return filter(None, map(attrgetter("text"), self))

    def result(self) -> str:
        """Wait until the request has finished. Return the whole text.

        Raises:
            CheckpointError: logits are NaN or infinite.
        """
        for _ in self:
            pass
        return self.text

    def cancel(self) -> None:
        """Remove the request before the next step. A finished request is not changed."""
        self.is_paused = False
        self._engine._cancelled.append(self)

    def choose(self, token: int, logprobs: Logprobs | None) -> Event:
        """Append a generated token. Return its event, which is the last if the request ends with it."""
        if token in self._stop_ids:
            return self.finish("stop", token, "", logprobs)
        self.window.append(token)
        self.left -= 1
        piece = self._filter.push(self._stream.push(token)) if self._stream is not None else ""
        if token in self._spelled:
            piece += self._filter.push(self._spelled[token], shown=token in self.special_in_text)
        grammar = self.sampler.grammar
        if self._filter.stopped or (grammar is not None and grammar.is_complete):
            return self.finish("stop", token, piece, logprobs)
        return self.finish("length", token, piece, logprobs) if not self.left else Event(self, token, piece, logprobs)

    def finish(
        self, reason: FinishReason, token: int | None = None, piece: str = "", logprobs: Logprobs | None = None
    ) -> Event:
        self.left = 0
        if self._stream is not None and reason in ("stop", "length"):
            piece += self._filter.push(self._stream.finish()) + self._filter.finish()
            reason = "stop" if self._filter.stopped else reason
        return Event(self, token, piece, logprobs, reason)

    def deliver(self, event: Event) -> None:
        """Publish an event to readers."""
        if event.token is not None:
            self.tokens.append(event.token)
        self.text += event.text
        self.unread.append(event)
        self.finish_reason = event.finish_reason
        if self._arrived is not None:
            loop, arrived = self._arrived
            loop.call_soon_threadsafe(arrived.set)


class StopStringFilter:
    """Filter that cuts text at a stop string, and holds back text that may be the beginning of a stop string.

    The stop string that completes first ends the text at its start; if several complete together, the longest does. The
    result does not depend on how the text is cut into pieces. Text with `shown=False` is matched but not returned.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self.stop = stop
        self.held = ""
        self.shown: list[bool] = []  # for each held character, whether it is returned
        self.stopped = False

    def push(self, piece: str, shown: bool = True) -> str:
        """Append text. Return the text that can no longer be part of a stop string."""
        if self.stopped:
            return ""
        self.held += piece
        self.shown += [shown] * len(piece)
        ends = [(start + len(string), start) for string in self.stop if (start := self.held.find(string)) >= 0]
        if ends:
            self.stopped = True
            return self._release(min(ends)[1])
        longest = max((self._overlap(string) for string in self.stop), default=0)
        return self._release(len(self.held) - longest)

    def finish(self) -> str:
        """Return the text still held back."""
        return "" if self.stopped else self._release(len(self.held))

    def _release(self, count: int) -> str:
        released = "".join(compress(self.held[:count], self.shown))
        self.held, self.shown = self.held[count:], self.shown[count:]
        return released

    def _overlap(self, string: str) -> int:
        # the longest prefix of the stop string with which the held text ends
        return next((n for n in range(min(len(string), len(self.held)), 0, -1) if self.held.endswith(string[:n])), 0)
