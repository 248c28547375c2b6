"""Beam search with encoder-decoders, and translation by beam search."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archetype.data.pairs import end_of_text
from archetype.data.preparation import counter
from archetype.errors import DataError, SpecError
from archetype.generate.beam_step import BeamStep
from archetype.generate.finite import check_finite
from archetype.generate.hypotheses import Candidates, Hypotheses
from archetype.generate.logits_processors import LogitsProcessors
from archetype.generate.slots import Slots
from archetype.generate.step import is_native
from archetype.models.build import GenerativeModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.native.products import max_rows
from archetype.nn.state import State
from archetype.settings.generation import Beam
from archetype.tokenizers import Tokenizer

BATCH_SIZE = 64  # sources encoded in one batch; also searched in one batch if no native kernels limit the rows


def beam_search(
    model: EncoderDecoder, sources: list[list[int]], start: int, end: int, settings: Beam
) -> list[list[int]]:
    """Return the best target found for each source, without start and end tokens.

    Args:
        model: in evaluation mode.
        sources: token ids of each source, in the form in which the model was trained.
        start: the token that every target starts with.
    """
    return [max(finished)[1] for finished in finished_targets(model, sources, start, end, settings)]


def finished_targets(
    model: EncoderDecoder, sources: list[list[int]], start: int, end: int, settings: Beam
) -> list[list[tuple[float, list[int]]]]:
    """Return (score, tokens) of all finished hypotheses of each source. Takes the arguments of `beam_search`."""
    return Search(model, sources, start, end, settings).run() if sources else []


def translate(
    model: EncoderDecoder, tokenizer: Tokenizer, texts: list[str], settings: Beam, start: int | None = None
) -> list[str]:
    """Translate each source text. Takes the arguments of `translations`.

    Raises:
        DataError: a text is longer than the model's context.
    """
    *_, targets = translations(model, tokenizer, texts, settings, start)
    return [target.text for target in targets or ()]


@dataclass(frozen=True)
class Translation:
    """Target of one source text."""

    text: str = ""
    num_tokens: int = 0  # including the end token
    is_cut: bool = False  # whether it reached the length limit before its end token


def translations(
    model: EncoderDecoder, tokenizer: Tokenizer, texts: list[str], settings: Beam, start: int | None = None
) -> Iterator[list[Translation] | None]:
    """Translate source texts, yielding None after each search step and the targets as the last item.

    Args:
        model: in evaluation mode.
        texts: source texts; an empty text has an empty target.
        start: the token that every target starts with (absent: the end token).

    Raises:
        DataError: a text is longer than the model's context.
    """
    end = end_of_text(tokenizer)
    sources = [[*tokenizer.encode(text), end] for text in texts]
    for position, source in enumerate(sources):
        if len(source) > model.spec.context_length:
            cause = f"has {len(source)} tokens, but the model's context is {model.spec.context_length}"
            raise DataError(f"text {position + 1}", cause, "split it into sentences")
    indices = [index for index, text in enumerate(texts) if text.strip()]
    start = end if start is None else start
    targets = [Translation()] * len(texts)
    if indices:
        search = Search(model, [sources[index] for index in indices], start, end, settings)
        count = counter(len(indices))
        for _ in search.steps():
            count(sum(map(bool, search.finished)))
            yield None
        for position, (index, finished) in enumerate(zip(indices, search.finished, strict=True)):
            tokens = max(finished)[1]
            is_cut = len(tokens) == search.limit(position)  # no end token fits at the limit
            targets[index] = Translation(tokenizer.decode(tokens), len(tokens) + (not is_cut), is_cut)
    yield targets


class Search:
    """Beam search of many sources in the slots of one state. Each slot has `num_beams` rows, which share a source.

    When the search of a source ends, its slot is given to the next source, longest sources first. When no source
    waits, the slots in use move to the front, and steps become smaller.

    Args:
        model: in evaluation mode.
        sources: token ids of at least one source.
        start: the token that every target starts with.
    """

    def __init__(self, model: EncoderDecoder, sources: list[list[int]], start: int, end: int, settings: Beam) -> None:
        if model.is_deterministic:
            cause = "beam search batches its sources, so results may depend on other sources"
            raise SpecError("deterministic", cause, "load the model without deterministic, or generate without beams")
        self.model, self.sources, self.settings = model, sources, settings
        self.waiting = sorted(range(len(sources)), key=lambda index: len(sources[index]))  # the longest is taken first
        most_rows = max_rows(model.dtype) if is_native(model) else BATCH_SIZE * settings.num_beams
        limit = min(max(1, most_rows // settings.num_beams), len(sources))
        self.slots: Slots[int] = Slots(model, limit, settings.num_beams, self._make_step)
        self.hypotheses = Hypotheses(limit, self.limit(self.waiting[-1]), start, end, settings)
        self.finished: list[list[tuple[float, list[int]]]] = [[] for _ in sources]
        self._rules = settings.replace(suppress_tokens=())  # the step itself applies `suppress_tokens`
        self._rules.check_ids(model.spec.vocab_size)
        self._changes = self._rules.change_every_token
        self._processors: dict[tuple[int, ...], LogitsProcessors] = {}  # of source and target, in the last step
        self._suppressed: Tensor | None = None
        if tokens := [token for token in settings.suppress_tokens if token < model.spec.vocab_size]:
            self._suppressed = torch.zeros(model.spec.vocab_size, device=model.device)
            self._suppressed[tokens] = -torch.inf
        self._read_ahead: list[int] = []
        self._next: State | None = None  # state of the sources in `_read_ahead`, in the same order

    def run(self) -> list[list[tuple[float, list[int]]]]:
        for _ in self.steps():
            pass
        return self.finished

    @torch.inference_mode()
    def steps(self) -> Iterator[None]:
        """Extend all hypotheses by one token per iteration, until all searches have ended."""
        longest = self.waiting[-1]
        self.slots.reserve(self.slots.limit, self.limit(longest), len(self.sources[longest]))
        self._fill([*range(self.slots.limit)])
        while self.slots.sequences:
            self._leave(self._extend())
            yield

    def limit(self, source: int) -> int:
        """Return the maximal number of target tokens for a source, including the end token."""
        most = self.model.spec.context_length - 1, len(self.sources[source]) + self.settings.max_extra_tokens
        return min(*most, self.settings.max_new_tokens or most[0])

    def _make_step(self, model: GenerativeModel, state: State) -> BeamStep:
        assert isinstance(model, EncoderDecoder)
        return BeamStep(model, state, self.settings.num_beams, self._suppressed, self.settings.renormalize_logits)

    def _extend(self) -> list[int]:
        # extends all hypotheses by one token, and returns the slots whose search has ended
        step, targets, count = self.slots.current_step(), self.hypotheses, len(self.slots.sequences)
        assert isinstance(step, BeamStep)
        adjust = self._adjust if self._is_ruled() else None
        best = step.extend(targets.newest, targets.scores, targets.parents, targets.starts, adjust)[:count]
        logs, candidates, tokens = best.cpu().numpy().transpose(1, 0, 2)
        if np.isnan(logs[:, 0]).any():  # -inf is allowed: the settings may leave no token
            check_finite(best[:, 0, 0], self.model, self._read_targets)
        parents = candidates.astype(np.int64) // step.num_candidates  # candidates are numbered beam by beam
        return targets.extend(Candidates(logs, parents, tokens.astype(np.int64)))

    def _is_ruled(self) -> bool:
        # whether a setting changes this step's logits depending on a hypothesis' text, which is not recorded
        lengths, limits = self.hypotheses.lengths, self.hypotheses.limits
        is_last = bool((lengths == limits - 1)[: len(self.slots.sequences)].any())
        return self._changes or (is_last and bool(self._rules.forced_eos_token_id))

    def _adjust(self, logs: Tensor) -> None:
        # logs: log-probabilities, (B, V), changed in place
        targets, logs_of_rows, shorter, self._processors = self.hypotheses, iter(logs), self._processors, {}
        for slot, source in enumerate(self.slots.sequences):
            for tokens in targets.tokens[slot, :, : targets.lengths[slot]].tolist():
                if (parent := shorter.get((source, *tokens[:-1]))) is not None:
                    processors, unread = parent.fork(), tokens[-1:]
                else:  # the first step, or steps before were without rules
                    limit, unread = int(targets.limits[slot]), tokens
                    text = self.sources[source]
                    processors = LogitsProcessors(self._rules, [targets.start], text, [targets.end], limit)
                for token in unread:
                    processors.consume(token)
                processors(next(logs_of_rows))
                self._processors[source, *tokens] = processors

    def _leave(self, ended: list[int]) -> None:
        # the freed slots go to waiting sources; if there are none, the last slots in use move into them
        over = [self.slots.sequences[slot] for slot in ended]
        for slot, source in zip(ended, over, strict=True):
            self.finished[source] = self.hypotheses.finished[slot]
        num_left = len(self.waiting) + len(self._read_ahead)
        self._fill(ended[:num_left])
        for source in over[num_left:]:
            self.hypotheses.move(len(self.slots.sequences) - 1, self.slots.sequences.index(source))
            self.slots.leave(source)

    def _fill(self, slots: list[int]) -> None:
        # puts waiting sources into the slots; sources are encoded ahead, in larger batches
        while slots:
            if not self._read_ahead:
                self._read_next()
            assert self._next is not None
            count = min(len(slots), len(self._read_ahead))
            width, first = self.settings.num_beams, len(self._read_ahead) - count
            states = self._next.rows(first * width, (first + count) * width)
            self.slots.put(slots[:count], self._read_ahead[first:], states)
            for slot, source in zip(slots, self._read_ahead[first:], strict=False):
                self.hypotheses.begin(slot, self.limit(source))
            del self._read_ahead[first:]
            slots = slots[count:]

    def _read_next(self) -> None:
        self._read_ahead = [self.waiting.pop() for _ in range(min(BATCH_SIZE, len(self.waiting)))][::-1]
        sources = [self._tensor(self.sources[source]) for source in self._read_ahead]
        padded = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True)
        num_tokens = self._tensor([len(source) for source in sources])
        state = self.model.new_state(padded, num_tokens, capacity=1, num_beams=self.settings.num_beams)
        self._next = state.narrow(0)  # no target has any token yet

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, device=self.slots.device)

    def _read_targets(self) -> None:
        # the best hypothesis of each source again without a cache, to locate NaN values
        for slot, source in enumerate(self.slots.sequences):
            length = self.hypotheses.lengths[slot]
            target = [self.hypotheses.start, *self.hypotheses.tokens[slot, 0, :length].tolist()]
            self.model(self._tensor(target)[None], source=self._tensor(self.sources[source])[None])
