"""Inference engine with continuous batching: each request has a slot in one shared state."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, Protocol

import torch
from torch import nn

from archetype.errors import DataError, SpecError
from archetype.generate.generation_config import never_written
from archetype.generate.grammar import KINDS, Grammar, GrammarCompiler
from archetype.generate.prompts import PromptEncoder
from archetype.generate.reader import StepReader, TextReader, num_slots, reads_by_steps
from archetype.generate.request import Event, Logprobs, Request
from archetype.generate.sample import Sampler
from archetype.generate.scheduler import Scheduler, chunk_size, logprobs_of
from archetype.generate.speculate import speculator
from archetype.generate.state_dtype import state_dtype
from archetype.generate.stats import Occupancy, Stats, occupancy
from archetype.generate.step import PREFILL_CHUNK
from archetype.machine.time_budget import time_is_over
from archetype.models.build import GenerativeModel
from archetype.models.causal import CausalModel
from archetype.settings.generation import Sampling
from archetype.tokenizers import Tokenizer

MAX_LOGPROBS = 100  # maximal number of alternatives per token


class Loaded(Protocol):
    """Protocol of a language model that an engine can run."""

    @property
    def model(self) -> nn.Module: ...  # in evaluation mode

    @property
    def tokenizer(self) -> Tokenizer | None: ...  # None if prompts are token ids

    @property
    def sampling(self) -> Sampling: ...  # defaults of a request

    @property
    def special(self) -> dict[str, Any]: ...  # special token ids, from the model's files

    @property
    def ends(self) -> tuple[int, ...]: ...  # ids of tokens that end a sequence


class Engine:
    """Engine that generates for many requests in one batch. Each result is independent of the other requests.

    A request waits until a slot is free. Its prompt is prefilled alone, in chunks between decode steps; a prefix found
    in the prefix cache is not computed again. Then it is decoded together with the other requests. A sequence that
    fills the context continues with its newest three quarters, prefilled again from position 0, as in training. The
    prompt of an encoder-decoder is the source; equal sources are encoded once, and a target ends at the context length.

    Any thread may submit, cancel and read. A thread that waits for an event runs the steps; for `async for`, a
    background thread runs them.

    Args:
        lm: a model returned by `archetype.load`.
        slots: maximal number of requests decoded together.
        prefix_bytes: memory of the prefix cache (for an encoder-decoder: of the cached sources); 0 disables it.
        prefill_tokens: prompt tokens processed between two decode steps; more tokens delay running requests longer.
        draft: a smaller model with the same vocabulary, used as draft model, or `self` for the model's own multi-token
            prediction; the model verifies several draft tokens in one pass.
        lookup: use prompt lookup: draft the tokens that followed the last occurrence of the newest n-gram.
        speculative_tokens: maximal number of draft tokens in a step. Draft tokens never change the result.

    Raises:
        SpecError: the model is not generative, does not support speculation, or a size is out of range.
    """

    def __init__(
        self,
        lm: Loaded,
        slots: int = 32,
        prefix_bytes: int = 2**28,
        prefill_tokens: int = PREFILL_CHUNK,
        draft: Loaded | Literal["self"] | None = None,
        lookup: bool = False,
        speculative_tokens: int = 4,
    ) -> None:
        if not isinstance(lm.model, GenerativeModel):
            cause = f"{type(lm.model).__name__} cannot generate text"
            raise SpecError("model", cause, "load a decoder or an encoder-decoder")
        for name, size, least in (("slots", slots, 1), ("prefix_bytes", prefix_bytes, 0)):
            if size < least:
                raise SpecError(name, f"{size} is too small", f"use at least {least}")
        self.slots, self.prefill_tokens = slots, prefill_tokens
        self.model, self.tokenizer, self.sampling = lm.model, lm.tokenizer, lm.sampling
        self.ends = () if lm.tokenizer is None else lm.ends
        guesses = speculator(lm.model, draft if draft is None or isinstance(draft, str) else draft.model, lookup, slots)
        suppressed = tuple(id for id in never_written(lm.special) if id < lm.model.spec.vocab_size)
        self._scheduler = Scheduler(lm.model, slots, prefix_bytes, suppressed, guesses, speculative_tokens)
        self.prompts = PromptEncoder(lm.model, lm.tokenizer, lm.special.get("decoder_start_token_id"))
        self._cancelled: deque[Request] = deque()
        self._unfinished: dict[object, Request] = {}
        self._ids = count()
        self._grammars: GrammarCompiler | None = None
        self._compiler = threading.Lock()  # only one thread builds the compiler
        self._changed = threading.Condition()  # guards what threads share: events and the three names below
        self._stepping = False
        self._worker: threading.Thread | None = None
        self._finished = self._generated_tokens = self._steps = 0
        self._seconds = 0.0

    def submit(
        self,
        prompt: str | list[int],
        *,
        target: str | list[int] = "",
        logprobs: int | None = None,
        stop_ids: tuple[int, ...] = (),
        id: object = None,
        continues: bool = True,
        group: object = None,
        special_in_text: frozenset[int] = frozenset(),
        **sampling: Any,
    ) -> Request:
        """Queue a request.

        Args:
            prompt: a text or token ids; for an encoder-decoder the source.
            target: for an encoder-decoder, the beginning of the target.
            logprobs: return the log-probability of each token and of this many most likely tokens.
            stop_ids: additional tokens that end the sequence.
            id: id of the request (default: a counter).
            continues: whether the text continues the prompt, including the space between them; False for the answer to
                a chat message. Text constrained by a grammar never does.
            group: requests of a group leave one slot to others (if there are several); a free slot goes to the group
                that holds the fewest.
            special_in_text: special tokens whose names are part of the returned text; others are left out.
            sampling: fields of `Sampling`; defaults are the model's.

        Raises:
            ArchetypeError: the prompt is empty or too long for the context, or a setting is out of range.
        """
        ids = self.prompts.encode(prompt, "prompt" if id is None else f"prompt {id}")
        window = self.prompts.target(target)
        settings = self.sampling.replace(**sampling)
        if settings.stop and self.tokenizer is None:
            raise DataError("stop", "strings need a tokenizer, and the model's folder has no tokenizer", "use stop_ids")
        if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
            raise SpecError(
                "logprobs", f"{logprobs} is not between 0 and {MAX_LOGPROBS}", "choose a number in this range"
            )
        ends = () if settings.ignore_eos else self.ends
        stream = None if self.tokenizer is None else self.tokenizer.stream()
        stops = frozenset((*ends, *stop_ids))
        grammar = self.grammar(settings)
        window = window or list(ids)
        limit = self._limit(settings, len(window), "max_new_tokens" in sampling)
        if stream is not None and continues and grammar is None:
            stream.follow(window)
        vocab_size, device = self.model.spec.vocab_size, self.model.device
        sampler = Sampler(settings, window, vocab_size, device, grammar, stops, ids, limit)
        names = {} if self.tokenizer is None else self.tokenizer.special_tokens
        spelled = {
            token: name
            for name, token in names.items()
            if name and (token in special_in_text or any(name in text for text in settings.stop))
        }
        with self._changed:
            name = next(self._ids) if id is None else id
            if name in self._unfinished:
                raise SpecError("id", f"{name!r:.80} is the id of another unfinished request", "choose another id")
            request = Request(self, name, ids, window, settings, logprobs, stops, stream, sampler, limit, spelled)
            request.group, request.special_in_text = group, special_in_text
            self._unfinished[name] = request
            self._scheduler.waiting.append(request)
        return request

    def _limit(self, settings: Sampling, num_prompt: int, is_asked: bool) -> int:
        # `max_length` also applies unless `max_new_tokens` `is_asked`
        limit = settings.max_new_tokens
        if self.model.spec.reads_source:  # the end token of a target needs a position as well
            limit = min(limit, self.model.spec.context_length - num_prompt)
        if is_asked or settings.max_length is None:
            return limit
        return min(limit, settings.length_left(settings.max_length, num_prompt))

    def grammar(self, settings: Sampling) -> Grammar | None:
        """Return the grammar of the settings' constraint in its initial state; None without a constraint.

        Raises:
            ArchetypeError: the grammar is invalid, or llguidance is not installed.
        """
        if not (kinds := [kind for kind in KINDS if getattr(settings, kind) is not None]):
            return None
        if self.tokenizer is None:
            cause = "needs a tokenizer, and the model's folder has no tokenizer"
            raise DataError(kinds[0], cause, "add its tokenizer.json or tokenizer.model")
        with self._compiler:
            self._grammars = self._grammars or GrammarCompiler(self.tokenizer, self.ends)
        return self._grammars.compile(settings)

    def cancel(self, id: object) -> None:
        """Remove a request before the next step. Finished requests are ignored."""
        if (request := self._unfinished.get(id)) is not None:
            request.cancel()

    @torch.inference_mode()
    def step(self, reader: Request | None = None) -> list[Event]:
        """Run one decode step and prefill a chunk of the waiting prompts. Return all events.

        Args:
            reader: return an empty list if this request has unread events, since another thread may have run a step.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._stepping or (reader is not None and reader.has_news))
            if reader is not None and reader.has_news:
                return []
            self._stepping = True
        started, events = time.perf_counter(), list[Event]()
        if time_is_over():
            self._cancelled.extend(self._unfinished.values())
        try:
            self._remove_cancelled(events)
            self._scheduler.decode(events)
            self._scheduler.read(self.prefill_tokens, events)
        except BaseException as error:
            events += self._fail_all(error, {event.request for event in events if event.finish_reason})
            if not isinstance(error, Exception):
                raise
        finally:
            self._deliver(events, time.perf_counter() - started)
        return events

    def events(self) -> Iterator[Event]:
        """Run steps until no request is left, yielding all events.

        Raises:
            ArchetypeError: a request failed.
        """
        while self._unfinished:
            for event in self.step():
                yield event
                if event.request.error is not None:
                    raise event.request.error

    def events_of(self, request: Request) -> Iterator[Event]:
        """Yield the events of one request as they arrive, running steps while waiting.

        Raises:
            ArchetypeError: the request failed.
        """
        while not request.is_read:
            if request.unread:
                yield request.unread.popleft()
            else:
                self.step(request)
        request.raise_error()

    @torch.inference_mode()
    def score(self, texts: list[str | list[int]], logprobs: int = 0) -> list[list[Logprobs | None]]:
        """Return the log-probability of each token given the previous tokens, in one pass per text.

        Args:
            texts: texts or token ids, as for `submit`.
            logprobs: also return this many most likely tokens at each position.

        Returns:
            For each text one entry per token; None for the first token, which has no context.

        Raises:
            SpecError: the model is an encoder-decoder, whose texts have no probability without a source.
        """
        if not isinstance(self.model, CausalModel):
            cause = "an encoder-decoder cannot score a text without its source"
            raise SpecError("model", cause, "score texts with a decoder")
        scores = []
        for index, text in enumerate(texts, start=1):
            ids = self.prompts.encode(text, f"text {index}" if len(texts) > 1 else "text")
            with self._turn():
                state, size = self.model.new_state(1, num_slots(self.model, len(ids))), chunk_size(self.model, ids)
                read = (StepReader if reads_by_steps(self.model) else TextReader)(self.model, state)
                logprobs_of_text: list[Logprobs | None] = [None]
                for start in range(0, len(ids), size):
                    logits, targets = read(ids[start : start + size]), ids[start + 1 : start + 1 + size]
                    logprobs_of_text += logprobs_of(logits[: len(targets)], targets, [logprobs] * len(targets))
            scores.append(logprobs_of_text)
        return scores

    def stats(self) -> Stats:
        """Return counters of the work done and of the current requests."""
        with self._changed:
            scheduler, state = self._scheduler, self._scheduler.slots.state
            return Stats(
                waiting=len(self._unfinished) - scheduler.num_running,
                running=scheduler.num_running,
                finished=self._finished,
                prompt_tokens=scheduler.prompt_tokens,
                cached_tokens=scheduler.cached_tokens,
                generated_tokens=self._generated_tokens,
                steps=self._steps,
                tokens_per_second=self._generated_tokens / self._seconds if self._seconds else 0.0,
                state_bytes=state.nbytes,
                prefix_bytes=scheduler.prefixes.nbytes,
                cache_use=float(state.lengths.sum()) / (len(state.lengths) * state.capacity),
                guessed_tokens=scheduler.guessed_tokens,
                accepted_tokens=scheduler.accepted_tokens,
            )

    @property
    def nbytes(self) -> int:
        """Bytes of states, prefix cache and compiled grammars."""
        grammars = 0 if self._grammars is None else self._grammars.nbytes
        return self.state_nbytes + self._scheduler.prefixes.nbytes + grammars

    @property
    def state_dtype(self) -> torch.dtype:
        """Data type of the keys and values of the slots."""
        return state_dtype(self.model)

    @property
    def state_nbytes(self) -> int:
        return self._scheduler.slots.state.nbytes

    def occupancy(self) -> Occupancy:
        """Return the memory of the slots' state and the requests that hold slots."""
        with self._changed:
            return occupancy(self._scheduler.slots)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        # only one thread runs the model at a time
        with self._changed:
            self._changed.wait_for(lambda: not self._stepping)
            self._stepping = True
        try:
            yield
        finally:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()

    def _deliver(self, events: list[Event], seconds: float) -> None:
        with self._changed:
            self._stepping = False
            self._steps += 1
            self._seconds += seconds
            for event in events:
                self._generated_tokens += event.token is not None
                if event.finish_reason is not None:
                    self._finished += 1
                    del self._unfinished[event.request.id]
                event.request.deliver(event)
            self._changed.notify_all()

    def _remove_cancelled(self, events: list[Event]) -> None:
        cancelled = dict.fromkeys(self._cancelled.popleft() for _ in range(len(self._cancelled)))
        for request in cancelled:
            if self._unfinished.get(request.id) is request:
                self._scheduler.remove(request)
                events.append(request.finish("cancelled"))

    def _fail_all(self, error: BaseException, finished: set[Request]) -> list[Event]:
        # after an unexpected error, the state may be inconsistent: all requests end
        with self._changed:
            self._scheduler.clear()
            failed = [request for request in self._unfinished.values() if request not in finished]
        for request in failed:
            request.error = error
        return [request.finish("error") for request in failed]

    def _step_in_background(self) -> None:
        # the thread runs steps until no request is left
        with self._changed:
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="archetype-engine", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._unfinished:
                    self._worker = None
                    return
            self.step()
