"""Logits processors of one sequence, applied before sampling in the same order as in transformers."""

from collections.abc import Collection, Sequence
from copy import copy

import torch
from torch import Tensor

from archetype.settings.generation import LogitsRules


class LogitsProcessors:
    """The logits processors of one sequence. A processor whose setting is neutral does nothing.

    Args:
        prompt: token ids before the first generated one.
        source: token ids of an encoder-decoder's source; for other models the same as `prompt`.
        limit: maximal number of generated tokens.
        may_end: whether the settings may suppress or force the end; False if a grammar decides it.
    """

    def __init__(
        self,
        sampling: LogitsRules,
        prompt: Sequence[int],
        source: Sequence[int],
        ends: Collection[int],
        limit: int,
        may_end: bool = True,
    ) -> None:
        self.sampling, self.ends, self.limit, self.may_end = sampling, list(ends), limit, may_end
        self.text, self.num_prompt = list(prompt), len(prompt)
        self.seen, self.source = (torch.tensor([*dict.fromkeys(ids)], dtype=torch.long) for ids in (prompt, source))
        self.ngrams = _ngrams(prompt, sampling.no_repeat_ngram_size)
        self.source_ngrams = _ngrams(source, sampling.encoder_no_repeat_ngram_size)
        # a bad word is a sequence with bias -inf; an end token alone cannot be one
        never = [(ids, -torch.inf) for ids in sampling.bad_words_ids if ids not in {(end,) for end in ends}]
        self.biases = [*sampling.sequence_bias, *never]
        self._changes = sampling.change_every_token

    @property
    def is_active(self) -> bool:
        # whether a setting changes the logits of the next token
        return self._changes or self._forces_end

    @property
    def _forces_end(self) -> bool:
        return self.may_end and bool(self.sampling.forced_eos_token_id) and self.num_chosen == self.limit - 1

    @property
    def num_chosen(self) -> int:
        return len(self.text) - self.num_prompt

    def fork(self) -> "LogitsProcessors":
        twin = copy(self)
        twin.text, twin.ngrams = list(self.text), dict(self.ngrams)
        return twin

    def consume(self, token: int) -> None:
        self.text.append(token)
        if self.sampling.repetition_penalty != 1:
            self.seen = torch.cat((self.seen, torch.tensor([token])))
        if (size := self.sampling.no_repeat_ngram_size) and len(self.text) >= size:
            *before, last = self.text[-size:]
            self.ngrams[tuple(before)] = (*self.ngrams.get(tuple(before), ()), last)

    def __call__(self, logits: Tensor) -> None:
        """Modify the logits of the next token, (V,), in place."""
        if not self.is_active:
            return
        sampling = self.sampling
        self._add_biases(logits, self.biases[: len(sampling.sequence_bias)])
        penalise(logits, self.source, 1 / sampling.encoder_repetition_penalty)
        penalise(logits, self.seen, sampling.repetition_penalty)
        for ngrams, size in (
            (self.ngrams, sampling.no_repeat_ngram_size),
            (self.source_ngrams, sampling.encoder_no_repeat_ngram_size),
        ):
            if size and len(self.text) >= size - 1:
                _suppress(logits, ngrams.get(tuple(self.text[len(self.text) + 1 - size :]), ()))
        self._add_biases(logits, self.biases[len(sampling.sequence_bias) :])
        if self.may_end:
            self._end(logits)
        _suppress(logits, sampling.suppress_tokens)
        # the first generated token, or the one after a forced first token
        if self.num_chosen == (sampling.forced_bos_token_id is not None and self.num_prompt == 1):
            _suppress(logits, sampling.begin_suppress_tokens)

    def _add_biases(self, logits: Tensor, biases: Sequence[tuple[tuple[int, ...], float]]) -> None:
        # a bias is added to the logit of a sequence's last token if the text ends with the tokens before it
        for ids, bias in biases:
            before = len(ids) - 1
            if before <= len(self.text) and tuple(self.text[len(self.text) - before :]) == ids[:-1]:
                logits[ids[-1]] += bias

    def _end(self, logits: Tensor) -> None:
        # the end tokens are suppressed, forced, or raised with the length
        sampling = self.sampling
        if self.num_chosen < sampling.min_new_tokens or len(self.text) < sampling.min_length:
            _suppress(logits, self.ends)
        if sampling.forced_bos_token_id is not None and len(self.text) == 1:
            _force(logits, [sampling.forced_bos_token_id])
        if self._forces_end:
            _force(logits, sampling.forced_eos_token_id)
        if (
            (decay := sampling.exponential_decay_length_penalty) is not None
            and self.ends
            and self.num_chosen > decay[0]
        ):
            scores = logits[self.ends]
            # as in transformers: an end token that is already impossible stays so
            added = scores.abs() * (decay[1] ** (self.num_chosen - decay[0]) - 1)
            logits[self.ends] = scores + added.masked_fill(~scores.isfinite(), 0.0)


def _ngrams(tokens: Sequence[int], size: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    following: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) + 1 - size if size else 0):
        *before, last = tokens[start : start + size]
        following.setdefault(tuple(before), []).append(last)
    return {before: tuple(tokens) for before, tokens in following.items()}


def penalise(logits: Tensor, ids: Tensor | list[int], penalty: float) -> None:
    """Apply a repetition penalty to the logits of some tokens, in place (Keskar 2019, section 4.1)."""
    if penalty != 1 and len(ids):
        scores = logits[ids]
        logits[ids] = torch.where(scores > 0, scores / penalty, scores * penalty)  # lower either way


def _suppress(logits: Tensor, ids: Sequence[int]) -> None:
    if ids:
        logits[list(ids)] = -torch.inf


def _force(logits: Tensor, ids: Sequence[int]) -> None:
    logits.fill_(-torch.inf)
    logits[list(ids)] = 0.0
