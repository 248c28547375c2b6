"""Speculative decoding: draft tokens that the model verifies in a single pass (Leviathan 2022).

A draft token is accepted if the model, with its own settings and random numbers, samples the same token. The result is
therefore the same as without speculation, greedy or sampled; a wrong draft token only wastes computation.
"""

from typing import Literal

import numpy as np
import torch
from torch import nn

from archetype.errors import SpecError
from archetype.generate.request import Request
from archetype.generate.sample import sample
from archetype.generate.slots import Slots
from archetype.generate.step import padded, prefill
from archetype.models.build import GenerativeModel
from archetype.models.causal import CausalModel
from archetype.models.decoder.module import Decoder
from archetype.models.further_tokens.module import HiddenCache
from archetype.nn.context import ForwardContext, last_tokens
from archetype.nn.layer_state import LayerState

MAX_NGRAM = 3


class Speculator:
    """Source of draft tokens: prompt lookup, a draft model, or the model itself."""

    def propose(self, requests: list[Request], limit: int) -> list[list[int]]:
        """Return up to `limit` draft tokens for each request, in slot order."""
        raise NotImplementedError

    def new_slots(self, model: GenerativeModel, limit: int) -> Slots[Request]:
        # the slots of the verifying model
        return Slots(model, limit)

    def leave(self, request: Request) -> None:
        """Forget a request that has left its slot."""

    def clear(self) -> None:
        """Forget all requests."""


class PromptLookup(Speculator):
    """Prompt lookup: propose the tokens that followed the newest tokens at their last occurrence (Saxena 2023)."""

    def propose(self, requests: list[Request], limit: int) -> list[list[int]]:
        return [self._continuation(np.array(request.window), limit) for request in requests]

    def _continuation(self, window: "np.ndarray[tuple[int], np.dtype[np.int64]]", limit: int) -> list[int]:
        for length in range(min(MAX_NGRAM, len(window) - 1), 1, -1):  # the newest three tokens, or else the newest two
            earlier = np.lib.stride_tricks.sliding_window_view(window[:-1], length)
            starts = (earlier == window[-length:]).all(1).nonzero()[0]
            if len(starts):
                return window[starts[-1] + length :][:limit].tolist()
        return []


class DraftModel(Speculator):
    """Draft model: a smaller model proposes tokens with the request's own settings and random numbers.

    Raises:
        SpecError: the model's state cannot be shortened after a rejected draft token.
    """

    def __init__(self, model: CausalModel, slots: int) -> None:
        self.model, self._slots = model, Slots[Request](model, slots)
        check_can_shorten(model, "draft")
        self._drafts: dict[Request, tuple[int, list[int]]] = {}  # window length, draft tokens

    @torch.inference_mode()
    def propose(self, requests: list[Request], limit: int) -> list[list[int]]:
        # `limit` tokens for every request that fits the context of the draft model
        fitting = {r for r in requests if len(r.window) + limit <= self.model.spec.context_length and limit > 0}
        for request in [request for request in self._slots.sequences if request not in fitting]:
            self.leave(request)
        if not fitting:
            return [[] for _ in requests]
        self._slots.reserve(len(fitting), max(len(request.window) for request in fitting) + limit)
        for request in requests:
            if request in fitting and request not in self._slots.sequences:
                empty = self.model.new_state(1, 1)
                self._slots.join(request, empty)
        contents = self._slots.sequences
        state = self._slots.state.rows(0, len(contents))
        # Shorten the draft model's cache to the accepted tokens, then read the tokens of each window that it lacks.
        state.lengths.copy_(torch.tensor([self._num_right(request) for request in contents]))
        unread = [request.window[int(length) :] for request, length in zip(contents, state.lengths, strict=True)]
        logits, after = prefill(self.model, unread, state)
        state.lengths.copy_(after.lengths)
        # Copies: drafting must not advance the requests' random generators, which then choose the same tokens.
        samplers = [request.sampler.fork() for request in contents]
        drafts: list[list[int]] = [[] for _ in contents]
        while True:
            for draft, token in zip(drafts, sample(logits, samplers), strict=True):
                draft.append(token)
            if len(drafts[0]) == limit:
                break
            logits = self._slots.step([draft[-1] for draft in drafts])
        self._drafts = {request: (len(request.window), draft) for request, draft in zip(contents, drafts, strict=True)}
        return [self._drafts[request][1] if request in fitting else [] for request in requests]

    def leave(self, request: Request) -> None:
        self._drafts.pop(request, None)
        if request in self._slots.sequences:
            self._slots.leave(request)

    def clear(self) -> None:
        self._slots, self._drafts = Slots[Request](self.model, self._slots.limit), {}

    def _num_right(self, request: Request) -> int:
        # How many tokens of the draft model's cache are valid: all before the first rejected draft token. The last
        # draft token was never read by the draft model.
        length, draft = self._drafts.get(request, (0, []))
        for token, guess in zip(request.window[length:-1], draft[:-1], strict=False):
            if token != guess:
                break
            length += 1
        return length


class OwnDraft(Speculator):
    """Multi-token prediction: additional blocks predict draft tokens from the last hidden states.

    Raises:
        SpecError: the state of these blocks cannot be shortened after a rejected draft token.
    """

    def __init__(self, model: Decoder) -> None:
        assert model.further_tokens is not None and model.spec.further_stack is not None
        self.model, self.further = model, model.further_tokens
        follow_length = any(block.mixer.keys_follow_length for block in model.spec.further_stack.layers)
        state = self.further.new_layers(1, model.spec.context_length, model.dtype, torch.device("meta"))
        _check_can_shorten([] if follow_length else state, "further_tokens.block")
        self._num_read: dict[Request, int] = {}  # positions that every block has read with their final tokens

    def new_slots(self, model: GenerativeModel, limit: int) -> Slots[Request]:
        # the state also stores hidden vectors, which are the inputs of the further blocks
        self._slots = Slots[Request](model, limit, new_state=self.model.new_draft_state)
        return self._slots

    @torch.inference_mode()
    def propose(self, requests: list[Request], limit: int) -> list[list[int]]:
        # Each further block predicts one more token, from the vectors of the block before and the tokens after them.
        starts = [self._num_read.get(request, 0) for request in requests]
        ends = [len(request.window) - 1 for request in requests]  # the model has not read the newest token yet
        first, count = (torch.tensor(bounds, device=self.model.device) for bounds in (starts, ends))
        state = self._slots.state.rows(0, len(requests)).narrow(max(ends))
        cache, *states = state.layers[len(self.model.blocks) :]
        assert isinstance(cache, HiddenCache) and self.model.lm_head is not None
        hidden = cache.read(first, int((count - first).max()))  # (B, T, D)
        context = ForwardContext.of(hidden, first, count - first)
        sequences, samplers = (
            [list(request.window) for request in requests],
            [request.sampler.fork() for request in requests],
        )
        for index, layer_state in enumerate(states):
            ahead = index + 1  # block n reads the embedding of the token n + 1 positions ahead
            tokens, _ = padded([sequence[start + ahead :] for sequence, start in zip(sequences, starts, strict=True)])
            tokens = tokens.to(self.model.device)
            embedded = self.model.embedding(tokens, ForwardContext.of(tokens, first + ahead))
            hidden = self.further.step(index, hidden, embedded, context, layer_state)
            logits = self.model.lm_head(last_tokens(hidden, context), self.model.token_table)[:, 0]
            for sequence, token in zip(sequences, sample(logits, samplers), strict=True):
                sequence.append(token)
        # At the last positions, blocks have read draft tokens, which may be rejected: the next step repeats them.
        self._num_read = {request: max(0, len(request.window) - len(states)) for request in requests}
        return [sequence[len(request.window) :][:limit] for sequence, request in zip(sequences, requests, strict=True)]

    def leave(self, request: Request) -> None:
        self._num_read.pop(request, None)

    def clear(self) -> None:
        self._num_read = {}


def check_can_shorten(model: GenerativeModel, place: str) -> None:
    """Raise an error if the model's state cannot be shortened after a rejected draft token."""
    spec, meta = model.spec, torch.device("meta")
    layers = model.new_layers(1, spec.context_length, model.dtype, meta) if isinstance(model, Decoder) else []
    _check_can_shorten([] if spec.follows_length else layers, place)


def _check_can_shorten(layers: list[LayerState], place: str) -> None:
    if not layers or not all(layer.can_shorten for layer in layers):
        cause = "the state cannot be rolled back after a rejected draft token"
        raise SpecError(place, cause, "generate without speculation")


def speculator(
    model: GenerativeModel, draft: nn.Module | Literal["self"] | None, lookup: bool, slots: int
) -> Speculator | None:
    """Return the speculator for a model and draft (possibly `self`); None without speculation."""
    if draft is None and not lookup:
        return None
    check_can_shorten(model, "model")
    if draft is None:
        return PromptLookup()
    if lookup:
        raise SpecError("lookup", "cannot be combined with a draft model", "use exactly one of them")
    if draft == "self":
        if not isinstance(model, Decoder) or model.further_tokens is None:
            cause = "the model has no further_tokens"
            raise SpecError("draft", cause, "name a smaller model with the same tokenizer, or use lookup")
        return OwnDraft(model)
    if not isinstance(draft, CausalModel) or draft.spec.vocab_size != model.spec.vocab_size:
        cause = f"does not have the model's vocabulary of {model.spec.vocab_size:,} tokens"
        raise SpecError("draft", cause, "use a smaller model with the same tokenizer")
    return DraftModel(draft, slots)
