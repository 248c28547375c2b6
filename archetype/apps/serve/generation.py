"""Choices of one response: their requests to the engine and the resulting events."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from archetype.apps.serve.answers import Usage, usage
from archetype.apps.serve.errors import ApiError, api_error, blaming, invalid_value
from archetype.apps.serve.generation_request import GenerationRequest
from archetype.apps.serve.limits import ANSWER_BYTES, CHAT_LOGPROB_BYTES, LOGPROB_BYTES, MEMORY_OF_JSON, TOKEN_BYTES
from archetype.apps.serve.metrics import Clock, Metrics
from archetype.apps.serve.served_model import ServedModel
from archetype.apps.serve.worker import Stream
from archetype.generate import Event, Request
from archetype.generate.grammar import KINDS

PING_SECONDS = 10.0  # of silence before a stream sends a comment, so that proxies keep it open
AT_ONCE = 4  # choices that are submitted by the event loop itself, without settings that need tensors or a grammar
COSTLY = {"presence_penalty", "frequency_penalty", "repetition_penalty", *KINDS}


@dataclass
class Choices:
    """All choices of one response, ordered by prompt.

    Attributes:
        prompts: token ids of each prompt.
        n: number of choices per prompt.
        requests: one for each choice; empty if no new tokens are requested.
        cancelled: whether the client has disconnected.
        held: memory reserved for the response.
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
        """Return the number of prompt tokens and of sampled tokens, including end tokens."""
        prompt, completion = sum(map(len, self.prompts)), sum(len(request.tokens) for request in self.requests)
        # of each prompt's first choice: the others share its prompt
        cached = sum(request.num_cached for request in self.requests[:: self.n])
        return usage(prompt, completion, cached)

    def cancel(self) -> None:
        """Cancel all unfinished requests before the next step."""
        self.cancelled = True
        for request in self.requests:
            if request.finish_reason is None:
                request.cancel()
        # the engine only steps if some request is not paused, and removes cancelled ones in its steps
        self.pause(False)
        self.held.close()

    def pause(self, is_paused: bool) -> None:
        """Pause generation while the client is behind, or resume it."""
        self.model.worker.pause(self.requests, is_paused and not self.cancelled)

    async def read(self, use: Callable[[list[Event]], object], ping: Callable[[], None] = lambda: None) -> None:
        """Wait until all choices are finished.

        Args:
            use: called with the events of each step, in the callback that delivers the events.
            ping: called after `PING_SECONDS` without an event.

        Raises:
            ApiError: a choice failed.
        """
        left, finished = len(self.requests), asyncio.get_running_loop().create_future()
        if not left:
            return

        def read(events: list[Event]) -> None:
            nonlocal left
            if finished.done():  # after an error, or when the client has left
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
    """Timer that calls `ping` whenever no event has arrived for `PING_SECONDS`."""

    def __init__(self, ping: Callable[[], None]) -> None:
        self._ping, self._loop = ping, asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer = self._loop.call_later(PING_SECONDS, self._look)

    def end(self) -> None:
        self._began = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        remaining = self._began + PING_SECONDS - self._loop.time()
        if remaining <= 0:
            self._ping()
        self._timer = self._loop.call_later(remaining if remaining > 0 else PING_SECONDS, self._look)


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
        encode: returns the token ids of the prompts; called in a text thread.
        num_prompts: number of prompts.
        default_tokens: token limit of a choice if neither the body nor the model's files set it; None for the context.
        logprobs: number of alternatives per token; None for no log-probabilities.
        param: field of the body that holds the prompts. A `prompt` is continued, and `messages` are answered.
        at_once: whether `encode` is cheap, so that a few choices with plain settings can be encoded without a thread.
        more: settings that are not in the body.

    Raises:
        ArchetypeError: a grammar is invalid.
        ApiError: a prompt does not fit, a setting is wrong, the response is too large, or too many requests are queued.
    """
    choices = Choices(model, [], body.n or 1, metrics.clock(model.name))
    settings, limit = body.sampling() | {"continues": param == "prompt", **more}, body.most_tokens()
    stop_ids = tuple(body.stop_token_ids or ())
    seed = secrets.randbits(62) if body.seed is None else body.seed
    count = 0 if limit == 0 else num_prompts * choices.n
    # compiled before the request takes a place in the queue
    if settings.keys() & set(KINDS) and model.worker.engine is not None:
        grammar = {name: settings[name] for name in settings.keys() & {*KINDS, "json_whitespace"}}
        await model.worker.grammar(model.lm.sampling.replace(**grammar))
    model.worker.admit(count)

    def submit() -> None:
        choices.prompts = prompts = encode()
        limits = [room(model, prompt, limit, default_tokens, param) for prompt in prompts]
        admit(choices, body, limits, logprobs, param)
        for index in range(count):
            if choices.cancelled:
                return
            prompt, k = divmod(index, choices.n)
            choices.requests.append(
                model.worker.submit(
                    prompts[prompt],
                    choices.stream,
                    index,
                    logprobs,
                    **settings | {"max_new_tokens": limits[prompt], "seed": (seed + k) % 2**63, "stop_ids": stop_ids},
                )
            )

    def submitted() -> None:
        model.worker.done(count - len(choices.requests))  # choices that were not submitted
        if choices.cancelled:  # the client left while this ran in a text thread
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
    """Check that a response is not too large, and reserve memory for it and for the states of its sequences.

    Args:
        limits: largest number of new tokens for each prompt.
        logprobs: number of alternatives per token.
        param: field of the body with the prompts.

    Raises:
        ApiError: the response is too large, or there is not enough memory.
    """
    model, num_logprobs = choices.model, 0 if logprobs is None else 1 + logprobs
    if not body.stream:
        num_tokens = choices.n * (sum(limits) + (sum(map(len, choices.prompts)) if getattr(body, "echo", None) else 0))
        logprob_bytes = LOGPROB_BYTES if param == "prompt" else CHAT_LOGPROB_BYTES
        nbytes = num_tokens * (TOKEN_BYTES + num_logprobs * logprob_bytes)
        check_answer(nbytes, f"{num_tokens:,} tokens with {num_logprobs} log-probabilities each", "max_tokens")
        choices.held.enter_context(model.memory.hold(MEMORY_OF_JSON * nbytes, "the answer", "max_tokens"))
    if limits:
        length = max(len(prompt) + limit for prompt, limit in zip(choices.prompts, limits, strict=True))
        model.check_state(length, max(map(len, choices.prompts)), "max_tokens")


def check_answer(nbytes: int, what: str, param: str) -> None:
    """Check that a response that is not streamed is small enough.

    Raises:
        ApiError: the response is too large.
    """
    if nbytes > ANSWER_BYTES:
        cause = f"{what} make a response of {nbytes >> 20:,} MiB; the limit is {ANSWER_BYTES >> 20} MiB"
        raise invalid_value(param, f"{cause}; ask for less, or stream the response")


def room(model: ServedModel, prompt: list[int], limit: int | None, default: int | None, param: str) -> int:
    """Return the largest number of new tokens after a prompt. A target does not share the context with its source.

    Raises:
        ApiError: prompt and completion together are longer than the context.
    """
    context = model.context_length or 0
    # an encoder-decoder's target begins with one token; the prompt is its source
    before = 1 if model.translates and len(prompt) <= context else len(prompt)
    left = context - before
    asked = 0 if limit is None else limit
    if before + asked > context or (left < 1 and limit is None):
        message = (
            # the words of OpenAI's message, since clients recognize this error by them
            f"This model's maximum context length is {context} tokens. However, you requested {len(prompt) + asked} "
            f"tokens ({len(prompt)} in the prompt, {asked} in the completion). Please shorten the prompt or max_tokens."
        )
        raise ApiError("context_length_exceeded", message, param)
    if limit is not None:
        return limit
    with blaming(param):
        configured = model.lm.sampling.said_limit(before)
    limits = (limit for limit in (configured, default) if limit is not None)
    return min(left, next(limits, left))


def check_tokens(model: ServedModel, ids: list[int], param: str) -> list[int]:
    """Return the token ids, checked against the vocabulary.

    Raises:
        ApiError: the list is empty, or an id is outside the vocabulary.
    """
    vocab_size = model.vocab_size
    if not ids:
        raise invalid_value(param, "is empty, and the tokenizer has no bos token")
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise invalid_value(param, f"contains a token id outside the vocabulary of {vocab_size}")
    return ids
