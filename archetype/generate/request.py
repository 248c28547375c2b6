"""A request to an engine, and what comes of it: an event for every token, and one text in the end."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from archetype.generate.sample import Sampler
from archetype.generate.settings import Sampling
from archetype.tokenizers import TextStream

if TYPE_CHECKING:
    from archetype.generate.engine import Engine

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How likely a token was, by the model's own distribution: before temperature, filters and penalties.

    Attributes:
        logprob: natural logarithm of the token's probability.
        top: (token, logprob) of the likeliest tokens, the likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """The result of one step for one request.

    Attributes:
        request: whose event it is.
        token: the id that was chosen, also where it ends the text; None where a request was cancelled or failed.
        text: what became certain with it: no piece ends inside a character, or holds the beginning of a stop string.
        logprobs: where the request asked for them.
        finish_reason: in the last event: "stop" (a token or string that ends a text), "length" (`max_new_tokens`),
            "cancelled" or "error".
    """

    request: "Request" = field(repr=False)
    token: int | None = None
    text: str = ""
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class Request:
    """One prompt and its continuation. Iterating gives its events, with `for` or with `async for`.

    Attributes:
        id: its number in the engine, or what the caller named it.
        prompt: token ids; those of the source, where the model is an encoder-decoder.
        sampling: its settings.
        tokens: the ids chosen so far, of which events were given; the one that ended the text included.
        text: what they say.
        finish_reason: None until it has finished.
        error: why it failed.
        unread: its events so far that nobody has read.
        num_cached: tokens of the prompt that were copied from an earlier text with the same beginning, or source.
        group: of requests that belong together; None for one that belongs to none.
        is_paused: whether it gives up its slot, and waits.
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
        self.window = window  # what the decoder sees, the newest token last
        self.left = limit  # tokens that may follow
        self.is_started = self.is_paused = False
        self.group: object = None
        self._engine, self._stop_ids = engine, stop_ids
        self._stream, self._filter = stream, StopStringFilter(sampling.stop)
        self.special_in_text: frozenset[int] = frozenset()  # of these
        self._spelled = spelled  # special tokens that a stop string spells, or that are part of the text
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
        """Whether a reader has something to read, or nothing to wait for."""
        return bool(self.unread) or self.finish_reason is not None

    @property
    def is_read(self) -> bool:
        """Whether it has finished and all its events were read."""
        return self.finish_reason is not None and not self.unread

    def raise_error(self) -> None:
        """Raise why it failed, where it did."""
        if self.finish_reason == "error" and self.error is not None:
            raise self.error

    def pieces(self) -> Iterator[str]:
        """The text, piece by piece."""
        return filter(None, map(attrgetter("text"), self))

    def result(self) -> str:
        """The whole text, once it has finished.

        Raises:
            CheckpointError: logits were NaN or infinite.
        """
        for _ in self:
            pass
        return self.text

    def cancel(self) -> None:
        """Let it leave before the next step; what has finished stays as it is."""
        self.is_paused = False
        self._engine._cancelled.append(self)

    def choose(self, token: int, logprobs: Logprobs | None) -> Event:
        """Go on with a token; the event says whether it is the last."""
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
        """The last event, with the text that was held back."""
        self.left = 0
        if self._stream is not None and reason in ("stop", "length"):
            piece += self._filter.push(self._stream.finish()) + self._filter.finish()
            reason = "stop" if self._filter.stopped else reason
        return Event(self, token, piece, logprobs, reason)

    def deliver(self, event: Event) -> None:
        """Let readers have an event."""
        if event.token is not None:
            self.tokens.append(event.token)
        self.text += event.text
        self.unread.append(event)
        self.finish_reason = event.finish_reason
        if self._arrived is not None:
            loop, arrived = self._arrived
            loop.call_soon_threadsafe(arrived.set)


class StopStringFilter:
    """Lets text through until a stop string appears, holding back what may be the beginning of one.

    The stop string that is complete first ends the text, where it begins; of several that end together, the longest.
    So it does not matter into which pieces the text is cut. What is not shown counts, and is never let through.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self.stop = stop
        self.held = ""
        self.shown: list[bool] = []  # of each character that is held
        self.stopped = False

    def push(self, piece: str, shown: bool = True) -> str:
        """The text that no stop string can claim any more."""
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
        """The text that was held back, at the end."""
        return "" if self.stopped else self._release(len(self.held))

    def _release(self, count: int) -> str:
        released = "".join(compress(self.held[:count], self.shown))
        self.held, self.shown = self.held[count:], self.shown[count:]
        return released

    def _overlap(self, string: str) -> int:
        """How many characters at the end of what is held begin the stop string."""
        return next((n for n in range(min(len(string), len(self.held)), 0, -1) if self.held.endswith(string[:n])), 0)
