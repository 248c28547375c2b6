"""Beam search: the likeliest target of each source, found among the best few at every length; and translation by it."""

import math
from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from archetype.data.pairs import end_of_text
from archetype.errors import DataError
from archetype.generate.finite import check_finite
from archetype.generate.slots import Slots, common_prefix_length
from archetype.generate.step import is_native
from archetype.models import EncoderDecoder
from archetype.native.products import MAX_ROWS
from archetype.nn.cache import State
from archetype.spec.base import Size, Spec
from archetype.tokenizers import Tokenizer

BATCH_SIZE = 64  # sources that are read together, and searched together where no native kernels limit the rows
Candidate = tuple[float, int, int]  # the score of a continuation, the beam that it continues, and the token
RowCopy = tuple[int, int, int]  # a row, its source, and the first place of the state in which they differ


class Beam(Spec):
    """Settings of a search.

    `num_beams` continuations of each source are followed; 1 is greedy. A finished target of n tokens is judged by its
    log-probability divided by ((5 + n) / 6)^length_penalty (Wu 2016, equation 14). A target has at most
    `max_extra_tokens` more than its source (Vaswani 2017, section 6.1), and none of `suppress_tokens`, such as Marian's
    padding.
    """

    num_beams: Annotated[int, Field(strict=True, ge=1, le=1000)] = 5
    length_penalty: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 1.0
    max_extra_tokens: Size = 50
    suppress_tokens: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = ()

    def score(self, log_probability: float, length: int) -> float:
        """The score of a target of `length` tokens, its end included."""
        return log_probability / float(((5 + length) / 6) ** self.length_penalty)


def beam_search(
    model: EncoderDecoder, sources: list[list[int]], start: int, end: int, settings: Beam
) -> list[list[int]]:
    """The best target found for each source, without the tokens that start and end it.

    Args:
        model: in evaluation mode.
        sources: tokens of each, as the model was trained to read them.
        start: the token that every target starts with.
        end: the token that ends one.
        settings: of the search.
    """
    return [max(finished)[1] for finished in finished_targets(model, sources, start, end, settings)]


def finished_targets(
    model: EncoderDecoder, sources: list[list[int]], start: int, end: int, settings: Beam
) -> list[list[tuple[float, list[int]]]]:
    """The scores and tokens of all targets that a search has finished, for each source; arguments as there."""
    return Search(model, sources, start, end, settings).run() if sources else []


def translate(
    model: EncoderDecoder, tokenizer: Tokenizer, texts: list[str], settings: Beam, start: int | None = None
) -> list[str]:
    """The target of each source text; of an empty one, nothing.

    Args:
        model: in evaluation mode.
        tokenizer: the model's own.
        texts: the sources.
        settings: of the search.
        start: the token that every target starts with (absent: the one that ends it).

    Raises:
        DataError: a text is longer than the model's context.
    """
    end = end_of_text(tokenizer)
    sources = [[*tokenizer.encode(text), end] for text in texts]
    for number, source in enumerate(sources):
        if len(source) > model.spec.context_length:
            cause = f"has {len(source)} tokens and the model's context holds {model.spec.context_length}"
            raise DataError(f"text {number + 1}", cause, "cut it into sentences")
    places = [index for index, text in enumerate(texts) if text.strip()]
    start = end if start is None else start
    outputs = beam_search(model, [sources[index] for index in places], start, end, settings) if places else []
    targets = dict(zip(places, map(tokenizer.decode, outputs), strict=True))
    return [targets.get(index, "") for index in range(len(texts))]


class Hypotheses:
    """The targets of one source while they are searched, each in a row of the state.

    Args:
        source: its number.
        limit: tokens of a target, at most.
        start: the token that every target starts with.
        end: the token that ends one.
        settings: of the search.

    Attributes:
        targets: what each row has written.
        scores: the log-probability of each.
        newest: the last token of each.
        finished: score and tokens of the targets that have ended.
        length: tokens of a target so far.
    """

    def __init__(self, source: int, limit: int, start: int, end: int, settings: Beam) -> None:
        self.source, self.limit, self.end, self.settings = source, limit, end, settings
        width = settings.num_beams
        self.targets: list[list[int]] = [[] for _ in range(width)]
        self.scores = [0.0, *[-math.inf] * (width - 1)]  # at the start all beams are alike: one of them counts
        self.newest = [start] * width
        self.finished: list[tuple[float, list[int]]] = []
        self.length = 0

    def extend(self, candidates: Iterable[Candidate]) -> list[RowCopy] | None:
        """Go on with the best candidates, which come best first.

        Returns:
            What is to be copied to the rows that continue another, as their own does not go on; None where the search
            has ended.
        """
        self.length += 1
        going = self._select(candidates)
        if self._is_finished(going):
            return None
        chosen = _by_rows(going)
        copies = [
            (row, beam, 1 + common_prefix_length(self.targets[row], self.targets[beam]))  # after the start
            for row, (_, beam, _) in enumerate(chosen)
            if row != beam
        ]
        self.targets = [[*self.targets[beam], token] for _, beam, token in chosen]
        self.scores, self.newest = [score for score, _, _ in chosen], [token for _, _, token in chosen]
        return copies

    def _select(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates that go on; those that end, if they are among the best, are finished."""
        width = self.settings.num_beams
        going: list[Candidate] = []
        for rank, (score, beam, token) in enumerate(candidates):
            if token != self.end:
                going.append((score, beam, token))
            elif rank < width and score > -math.inf:
                self.finished.append((self.settings.score(score, self.length), self.targets[beam]))
        while len(going) < width:  # a vocabulary smaller than the beam
            going.append((-math.inf, going[0][1], going[0][2]) if going else (-math.inf, 0, self.end))
        return going[:width]

    def _is_finished(self, going: list[Candidate]) -> bool:
        """Whether there are enough targets and none that goes on looks better, or the length is reached."""
        finished = sorted(self.finished, reverse=True)[: self.settings.num_beams]
        best, beam, token = going[0]
        if self.length >= self.limit:
            if not finished:  # cut off
                self.finished.append((best, [*self.targets[beam], token]))
            return True
        enough = len(finished) == self.settings.num_beams
        return enough and self.settings.score(best, self.length) <= finished[-1][0]


def _by_rows(going: list[Candidate]) -> list[Candidate]:
    """The candidates in an order in which the first that continues a row stands in that row."""
    stay: dict[int, Candidate] = {}
    others = [candidate for candidate in going if stay.setdefault(candidate[1], candidate) is not candidate]
    return [stay[row] if row in stay else others.pop() for row in range(len(going))]


class Search:
    """Sources in slots of one state, each with `num_beams` rows that share the source's keys and values.

    A source whose search ends leaves its slot to the next, so that steps stay full; those with the longest sources
    come first. At the end the slots in use stand in front, and steps become smaller.

    Args:
        model: in evaluation mode.
        sources: at least one.
        start: the token that every target starts with.
        end: the token that ends one.
        settings: of the search.
    """

    def __init__(self, model: EncoderDecoder, sources: list[list[int]], start: int, end: int, settings: Beam) -> None:
        self.model, self.sources, self.start, self.end, self.settings = model, sources, start, end, settings
        self.waiting = sorted(range(len(sources)), key=lambda index: len(sources[index]))  # from the end
        rows = MAX_ROWS if is_native(model) else BATCH_SIZE * settings.num_beams
        limit = min(max(1, rows // settings.num_beams), len(sources))
        self.slots: Slots[Hypotheses] = Slots(model, limit, settings.num_beams, self._likeliest)
        self.finished: list[list[tuple[float, list[int]]]] = [[] for _ in sources]
        self._num_candidates = min(2 * settings.num_beams, model.spec.vocab_size)
        self._suppressed: Tensor | None = None
        if tokens := [token for token in settings.suppress_tokens if token < model.spec.vocab_size]:
            self._suppressed = torch.zeros(model.spec.vocab_size, device=model.device)
            self._suppressed[tokens] = -torch.inf
        self._read_ahead: list[Hypotheses] = []
        self._next: State | None = None  # of these, in the reverse order

    @torch.inference_mode()
    def run(self) -> list[list[tuple[float, list[int]]]]:
        """Score and tokens of the targets that each source's search has finished."""
        longest = self.waiting[-1]
        self.slots.reserve(self.slots.limit, self._limit(longest), len(self.sources[longest]))
        self._fill([*range(self.slots.limit)])
        while self.slots.texts:
            self._leave([slot for slot, rows in enumerate(self._extend()) if rows is None])
        return self.finished

    def _limit(self, source: int) -> int:
        return min(self.model.spec.context_length - 1, len(self.sources[source]) + self.settings.max_extra_tokens)

    def _extend(self) -> list[list[RowCopy] | None]:
        """One token more of every target; of each source what its rows copy, or None at its end."""
        width, active = self.settings.num_beams, self.slots.texts
        logs, tokens = self.slots.step([token for one in active for token in one.newest]).unbind(1)
        scores = torch.tensor([one.scores for one in active], device=self.model.device)[..., None]
        totals = (scores + logs.reshape(len(active), width, -1)).flatten(1)
        best, places = totals.topk(min(2 * width, totals.shape[1]))
        chosen = torch.stack(
            (best, places // logs.shape[1], tokens.reshape(len(active), -1).gather(1, places)), dim=-1
        ).tolist()
        check_finite(torch.tensor([rows[0][0] for rows in chosen]), self.model, self._read_targets)
        copies = [
            one.extend((score, int(beam), int(token)) for score, beam, token in rows)
            for one, rows in zip(active, chosen, strict=True)
        ]
        self._copy(copies)
        return copies

    def _likeliest(self, logits: Tensor) -> Tensor:
        """Log-probabilities and ids of each row's likeliest tokens, (rows, 2, number): one tensor to wait for."""
        logs = logits.float().log_softmax(-1)
        logs = logs if self._suppressed is None else logs + self._suppressed
        values, ids = logs.topk(self._num_candidates)
        return torch.stack((values, ids.float()), dim=1)

    def _copy(self, copies: list[list[RowCopy] | None]) -> None:
        """Copy what rows have read to those that continue them, from where they differ."""
        width = self.settings.num_beams
        rows_of_state = [
            (slot * width + row, slot * width + source, start)
            for slot, of_slot in enumerate(copies)
            for row, source, start in of_slot or ()
        ]
        if rows_of_state:
            rows, sources, starts = (self._tensor([*numbers]) for numbers in zip(*rows_of_state, strict=True))
            self.slots.state.targets.copy_rows(rows, sources, starts)

    def _leave(self, ended: list[int]) -> None:
        """Give the slots of sources whose search has ended to the next, and where none is left, to the last in use."""
        over = [self.slots.texts[slot] for slot in ended]
        for one in over:
            self.finished[one.source] = one.finished
        num_left = len(self.waiting) + len(self._read_ahead)
        self._fill(ended[:num_left])
        for one in over[num_left:]:
            self.slots.leave(one)

    def _fill(self, slots: list[int]) -> None:
        """Let the next sources begin in some slots; many are read together, before their turn."""
        while slots:
            if not self._read_ahead:
                self._read_next()
            assert self._next is not None
            count = min(len(slots), len(self._read_ahead))
            width, place = self.settings.num_beams, len(self._read_ahead) - count
            rows = torch.arange(place * width, (place + count) * width, device=self.model.device)
            self.slots.put(slots[:count], self._read_ahead[place:], self._next.select(rows))
            del self._read_ahead[place:]
            slots = slots[count:]

    def _read_next(self) -> None:
        """Read the next sources."""
        sources = [self.waiting.pop() for _ in range(min(BATCH_SIZE, len(self.waiting)))][::-1]
        self._read_ahead = [Hypotheses(n, self._limit(n), self.start, self.end, self.settings) for n in sources]
        texts = [self._tensor(self.sources[source]) for source in sources]
        padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        num_tokens = self._tensor([len(text) for text in texts])
        self._next = self.model.new_state(padded, num_tokens, capacity=1, num_beams=self.settings.num_beams)

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=self.model.device)

    def _read_targets(self) -> None:
        """Pass over each source's likeliest target without a state."""
        for one in self.slots.texts:
            target, source = ([self.start, *one.targets[0]], self.sources[one.source])
            self.model(self._tensor(target)[None], source=self._tensor(source)[None])
