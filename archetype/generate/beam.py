"""Beam search: the likeliest target of each source, found among the best few at every length; and translation by it."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from archetype.data.pairs import end_of_text
from archetype.errors import DataError
from archetype.generate.finite import check_finite
from archetype.models import EncoderDecoder
from archetype.nn.cache import State
from archetype.spec.base import Size, Spec
from archetype.tokenizers import Tokenizer

BATCH_SIZE = 64  # sources that are searched at once


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
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))  # alike lengths, little padding
    targets: dict[int, list[int]] = {}
    for first in range(0, len(order), BATCH_SIZE):
        group = order[first : first + BATCH_SIZE]
        search = _Search(model, [sources[index] for index in group], start, end, settings)
        targets |= dict(zip(group, search.run(), strict=True))
    return [targets[index] for index in range(len(sources))]


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


class _Search:
    """Sources that are searched together: `num_beams` rows of the state for each that is not finished."""

    def __init__(self, model: EncoderDecoder, sources: list[list[int]], start: int, end: int, settings: Beam) -> None:
        self.model, self.end, self.settings = model, end, settings
        self.device = model.device
        self.active = list(range(len(sources)))
        self.limits = [
            min(model.spec.context_length - 1, len(source) + settings.max_extra_tokens) for source in sources
        ]
        self.finished: list[list[tuple[float, list[int]]]] = [[] for _ in sources]
        self.targets: list[list[list[int]]] = [[[] for _ in range(settings.num_beams)] for _ in sources]
        self.sources, self.start = sources, start
        self.suppressed = [token for token in settings.suppress_tokens if token < model.spec.vocab_size]

    @torch.inference_mode()
    def run(self) -> list[list[int]]:
        """The best target of each source."""
        state = self._encode_sources()
        width = self.settings.num_beams
        newest = torch.full((len(self.active) * width, 1), self.start, device=self.device)
        scores = torch.full((len(self.active), width), -torch.inf, device=self.device)
        scores[:, 0] = 0.0  # at the start all beams are alike: one of them counts
        for length in range(1, max(self.limits) + 1):
            output = self.model(newest, state.narrow(length), last_only=True)
            state = output.state
            check_finite(output.logits[:, 0], self.model, self._read_targets)
            logs = output.logits[:, 0].float().log_softmax(-1).view(len(self.active), width, -1)
            logs[..., self.suppressed] = -torch.inf
            scores, rows, newest = self._extend(scores[..., None] + logs, length)
            if not self.active:
                break
            state = state.select(rows)
        return [max(finished)[1] for finished in self.finished]

    def _read_targets(self) -> None:
        """Pass over each source's likeliest target without a state."""
        for source in self.active:
            target = torch.tensor([[self.start, *self.targets[source][0]]], device=self.device)
            self.model(target, source=torch.tensor([self.sources[source]], device=self.device))

    def _encode_sources(self) -> State:
        """The sources read once, and a row for each beam."""
        num_tokens = torch.tensor([len(source) for source in self.sources])
        padded = torch.zeros(len(self.sources), int(num_tokens.max()), dtype=torch.long)
        for row, source in zip(padded, self.sources, strict=True):
            row[: len(source)] = torch.tensor(source)
        state = self.model.new_state(padded.to(self.device), num_tokens.to(self.device), max(self.limits))
        return state.select(
            torch.arange(len(self.sources), device=self.device).repeat_interleave(self.settings.num_beams)
        )

    def _extend(self, scores: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each source's beams: their scores, the rows that they continue, their tokens."""
        width, vocabulary = self.settings.num_beams, scores.shape[2]
        best, places = scores.flatten(1).topk(min(2 * width, scores[0].numel()))
        stay: list[int] = []
        beam_scores: list[list[float]] = []
        rows: list[int] = []
        tokens: list[int] = []
        for place, source in enumerate(list(self.active)):
            chosen = self._select(source, best[place].tolist(), places[place].tolist(), vocabulary, length)
            if self._is_finished(source, chosen, length):
                continue
            stay.append(source)
            targets = self.targets[source]
            self.targets[source] = [[*targets[beam], token] for _, beam, token in chosen]
            beam_scores.append([score for score, _, _ in chosen])
            rows += [place * width + beam for _, beam, _ in chosen]
            tokens += [token for _, _, token in chosen]
        self.active = stay
        newest = torch.tensor(tokens, device=self.device)[:, None]
        return torch.tensor(beam_scores, device=self.device), torch.tensor(rows, device=self.device), newest

    def _select(
        self, source: int, scores: list[float], places: list[int], vocabulary: int, length: int
    ) -> list[tuple[float, int, int]]:
        """The (score, beam, token) that go on; those that end, if they are among the best, are finished."""
        width = self.settings.num_beams
        going: list[tuple[float, int, int]] = []
        for rank, (score, place) in enumerate(zip(scores, places, strict=True)):
            beam, token = divmod(place, vocabulary)
            if token != self.end:
                going.append((score, beam, token))
            elif rank < width and score > -torch.inf:
                self.finished[source].append((self.settings.score(score, length), self.targets[source][beam]))
        while len(going) < width:  # a vocabulary smaller than the beam
            going.append((-torch.inf, going[0][1], going[0][2]) if going else (-torch.inf, 0, self.end))
        return going[:width]

    def _is_finished(self, source: int, going: list[tuple[float, int, int]], length: int) -> bool:
        """Whether there are enough targets and none that goes on looks better, or the length is reached."""
        finished = sorted(self.finished[source], reverse=True)[: self.settings.num_beams]
        best, beam, token = going[0]
        if length >= self.limits[source]:
            if not finished:  # cut off
                self.finished[source].append((best, [*self.targets[source][beam], token]))
            return True
        enough = len(finished) == self.settings.num_beams
        return enough and self.settings.score(best, length) <= finished[-1][0]
