"""Choices of one response: their requests to the engine, and the events of these requests."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NotRequired

from typing_extensions import TypedDict

from archetype.apps.serve.errors import ApiError, api_error
from archetype.apps.serve.generation_request import GenerationRequest
from archetype.apps.serve.limits import ANSWER_BYTES, CHAT_LOGPROB_BYTES, LOGPROB_BYTES, MEMORY_OF_JSON, TOKEN_BYTES
from archetype.apps.serve.metrics import Clock, Metrics
from archetype.apps.serve.served_model import ServedModel
from archetype.apps.serve.worker import Stream
from archetype.errors import SpecError
from archetype.generate import Event, Logprobs, Request
from archetype.generate.grammar import KINDS

PING_SECONDS = 10.0  # of silence, after which a stream says that it is alive
AT_ONCE = 4  # choices that are submitted by the event loop itself, without settings that need tensors or a grammar
COSTLY = {"presence_penalty", "frequency_penalty", "repetition_penalty", *KINDS}


class CachedTokens(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: NotRequired[int]
    total_tokens: int
    prompt_tokens_details: NotRequired[CachedTokens]


@dataclass
class Choices:
    """All choices of one response in the order of their indices; those of the first prompt come first.

    Attributes:
        model: that generates.
        prompts: token ids.
        n: choices of each prompt.
        clock: that measures its tokens.
        requests: of all choices; empty where nothing is generated.
        stream: of their events.
        cancelled: whether nobody waits for it any more.
        held: memory that the answer needs.
    """

    model: ServedModel
    prompts: list[list[int]]
    n: int
    clock: Clock
    requests: list[Request] = field(default_factory=list)
    stream: Stream = field(default_factory=Stream)
    cancelled: bool = False
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def usage(self) -> Usage:
        """Return the numbers of prompt and sampled tokens, end tokens included."""
        prompt, completion = sum(map(len, self.prompts)), sum(len(request.tokens) for request in self.requests)
        cached = sum(request.num_cached for request in self.requests[:: self.n])
        return usage(prompt, completion, cached)

    def cancel(self) -> None:
        """Cancel all unfinished requests before the next step."""
        self.cancelled = True
        for request in self.requests:
            if request.finish_reason is None:
                request.cancel()
        self.pause(False)
        self.held.close()

    def pause(self, is_paused: bool) -> None:
        """Pause generation while the client is behind, or resume it."""
        self.model.worker.pause(self.requests, is_paused and not self.cancelled)

    async def read(self, use: Callable[[list[Event]], None], ping: Callable[[], None] = lambda: None) -> None:
        """Wait until all choices are finished.

        Args:
            use: is called with the events of each step, by the callback that brings them: no task has to wake up.
            ping: is called after each silence.

        Raises:
            ApiError: a choice failed.
        """
        left, finished = len(self.requests), asyncio.get_running_loop().create_future()
        if not left:
            return

        def read(events: list[Event]) -> None:
            nonlocal left
            if finished.done():  # by an error, or nobody waits any more
                return
            self.clock.tick()
            silence.end()
            try:
                for event in events:
                    if event.finish_reason == "error":
                        raise api_error(event.request.error or RuntimeError("a request failed"))
                    left -= event.finish_reason is not None
                use(events)
            except Exception as error:
                finished.set_exception(error)
            else:
                if not left:
                    finished.set_result(None)

        silence = Silence(ping)
        self.stream.read(read)
        try:
            await finished
        finally:
            silence.stop()


class Silence:
    """Timer that calls `ping` whenever no event came for `PING_SECONDS`.

    Args:
        ping: what is called.
    """

    def __init__(self, ping: Callable[[], None]) -> None:
        self._ping, self._loop = ping, asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer = self._loop.call_later(PING_SECONDS, self._look)

    def end(self) -> None:
        """Restart the timer after an event."""
        self._began = self._loop.time()

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _look(self) -> None:
        remaining = self._began + PING_SECONDS - self._loop.time()
        if remaining <= 0:
            self._ping()
        self._timer = self._loop.call_later(remaining if remaining > 0 else PING_SECONDS, self._look)


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Usage:
    """Return the `usage` object of a response."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


async def begin(
    model: ServedModel,
    body: GenerationRequest,
    encode: Callable[[], list[list[int]]],
    num_prompts: int,
    default_tokens: int | None,
    logprobs: int | None,
    metrics: Metrics,
    param: str,
    at_once: bool = False,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Choices:
    """Submit the choices of a response to the engine.

    Args:
        model: that generates.
        body: the request's.
        encode: gives the token ids of the prompts; called in a thread for texts.
        num_prompts: their number.
        default_tokens: of a choice where neither the body nor the model's files say; None for the rest of the context.
        logprobs: alternatives of each token.
        metrics: which count.
        param: the field of the body that has the prompts; the text goes on from a `prompt`, and answers messages.
        at_once: whether `encode` has nothing to do; then few choices with plain settings need no other thread.
        more: settings that are not in the body.

    Raises:
        ArchetypeError: a grammar is wrong.
        ApiError: a prompt does not fit, a setting is wrong, the answer is too large, or too many requests wait.
    """
    choices = Choices(model, [], body.n or 1, metrics.clock(model.name))
    settings, most = body.sampling() | {"continues": param == "prompt", **more}, body.most_tokens()
    stop_ids = tuple(body.stop_token_ids or ())
    seed = secrets.randbits(62) if body.seed is None else body.seed
    count = 0 if most == 0 else num_prompts * choices.n
    if settings.keys() & set(KINDS) and model.worker.engine is not None:
        await model.worker.grammar(
            model.lm.sampling.replace(
                **{name: settings[name] for name in settings.keys() & {*KINDS, "json_whitespace"}}
            )
        )
    model.worker.admit(count)

    def submit() -> None:
        choices.prompts = prompts = encode()
        limits = [room(model, prompt, most, default_tokens, param) for prompt in prompts]
        admit(choices, body, limits, logprobs, param)
        for index in range(count):
            if choices.cancelled:
                return
            number, k = divmod(index, choices.n)
            own = {"max_new_tokens": limits[number], "seed": (seed + k) % 2**63, "stop_ids": stop_ids}
            request = model.worker.submit(prompts[number], choices.stream, index, logprobs, **settings | own)
            choices.requests.append(request)

    def submitted() -> None:
        model.worker.done(count - len(choices.requests))  # those that did not begin
        if choices.cancelled:
            choices.cancel()

    try:
        if at_once and count <= AT_ONCE and not settings.keys() & COSTLY:
            try:
                submit()
            finally:
                submitted()
        else:
            await model.worker.text(submit, submitted)
    except BaseException:
        choices.cancel()
        raise
    return choices


def admit(choices: Choices, body: GenerationRequest, limits: list[int], logprobs: int | None, param: str) -> None:
    """Check that a response is not too large, and that memory suffices for it and for the states of its sequences.

    Args:
        choices: of the answer, with their prompts.
        body: of the request.
        limits: tokens after each prompt, at most.
        logprobs: alternatives of each token.
        param: the field of the body that has the prompts.

    Raises:
        ApiError: the response is too large, or memory does not suffice.
    """
    model, numbers = choices.model, 0 if logprobs is None else 1 + logprobs
    if not body.stream:
        num_tokens = choices.n * (sum(limits) + (sum(map(len, choices.prompts)) if getattr(body, "echo", None) else 0))
        nbytes = num_tokens * (TOKEN_BYTES + numbers * (LOGPROB_BYTES if param == "prompt" else CHAT_LOGPROB_BYTES))
        check_answer(nbytes, f"{num_tokens:,} tokens with {numbers} log-probabilities each", "max_tokens")
        choices.held.enter_context(model.memory.hold(MEMORY_OF_JSON * nbytes, "the answer", "max_tokens"))
    if limits:
        length = max(len(prompt) + limit for prompt, limit in zip(choices.prompts, limits, strict=True))
        model.check_state(length, max(map(len, choices.prompts)), "max_tokens")


def check_answer(nbytes: int, what: str, param: str) -> None:
    """Check that a response is small enough to be sent as a whole.

    Raises:
        ApiError: the response is too large.
    """
    if nbytes > ANSWER_BYTES:
        cause = f"{what} make an answer of {nbytes >> 20:,} MiB, more than {ANSWER_BYTES >> 20}"
        raise ApiError("invalid_value", f"{param}: {cause}; ask for less at once, or for a stream", param)


def room(model: ServedModel, prompt: list[int], most: int | None, default: int | None, param: str) -> int:
    """Return how many tokens may be generated after a prompt; a target has the whole context to itself.

    Raises:
        ApiError: prompt and completion together are longer than the context.
    """
    context = model.context_length or 0
    before = 1 if model.translates and len(prompt) <= context else len(prompt)
    left = context - before
    asked = 0 if most is None else most
    if before + asked > context or (left < 1 and most is None):
        message = (
            f"This model's maximum context length is {context} tokens. However, you requested {len(prompt) + asked} "
            f"tokens ({len(prompt)} in the prompt, {asked} in the completion). Please shorten the prompt or max_tokens."
        )
        raise ApiError("context_length_exceeded", message, param)
    if most is not None:
        return most
    try:
        said = model.lm.sampling.said_limit(before)
    except SpecError as error:
        raise api_error(error, param) from None
    limits = (one for one in (said, default) if one is not None)
    return min(left, next(limits, left))


def check_tokens(model: ServedModel, ids: list[int], param: str) -> list[int]:
    """Return the token ids, checked against the vocabulary.

    Raises:
        ApiError: there are none, or one is outside the vocabulary.
    """
    vocab_size = model.vocab_size
    if not ids:
        raise ApiError("invalid_value", f"{param}: is empty, and the tokenizer has no token that starts a text", param)
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise ApiError("invalid_value", f"{param}: holds a token outside the vocabulary of {vocab_size}", param)
    return ids


def best(model: ServedModel, token: int, logprobs: Logprobs, count: int) -> list[tuple[int, float]]:
    """Return the most likely tokens of a position and the sampled one, whatever its rank."""
    top = list(logprobs.top[:count])
    return top if any(id == token for id, _ in top) else [*top, (token, logprobs.logprob)]
