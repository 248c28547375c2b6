"""Hypotheses of beam search: `num_beams` partial targets for each source."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from archetype.settings.generation import Beam


class Candidates(NamedTuple):
    """Candidate continuations of the hypotheses in some slots, best first."""

    log_probabilities: Float[ndarray, "slots N"]
    beams: Int[ndarray, "slots N"]
    tokens: Int[ndarray, "slots N"]


class Hypotheses:
    """Running hypotheses of beam search, each in one row of the model's state, ordered by slot and then beam.

    Args:
        slots: sources searched concurrently.
        longest: maximal length of any target, in tokens.
        start: the token that every target starts with.
    """

    def __init__(self, slots: int, longest: int, start: int, end: int, settings: Beam) -> None:
        self.start, self.end, self.settings = start, end, settings
        shape = (slots, settings.num_beams)
        self.tokens: Int[ndarray, "slots beams longest"] = np.full((*shape, longest), end)  # without the start token
        self.newest: Int[ndarray, "slots beams"] = np.full(shape, start)  # last token of each hypothesis
        self.scores: Float[ndarray, "slots beams"] = np.zeros(shape, np.float32)  # log-probabilities
        # the beam of the same source that each hypothesis extends, and the first cache slot in which they differ
        self.parents: Int[ndarray, "slots beams"] = np.tile(np.arange(settings.num_beams), (slots, 1))
        self.starts: Int[ndarray, "slots beams"] = np.zeros(shape, np.int64)
        self.lengths: Int[ndarray, " slots"] = np.zeros(slots, np.int64)
        self.limits: Int[ndarray, " slots"] = np.zeros(slots, np.int64)
        self.finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(slots)]  # (score, tokens)
        self._slots, self._beams = np.arange(slots)[:, None], np.arange(settings.num_beams)
        self._earlier = self._beams[:, None] > self._beams

    def begin(self, slot: int, limit: int) -> None:
        """Start the search of a new source in a slot, with targets of at most `limit` tokens."""
        self.lengths[slot], self.limits[slot], self.finished[slot] = 0, limit, []
        self.newest[slot], self.parents[slot], self.starts[slot] = self.start, np.arange(self.settings.num_beams), 0
        self.scores[slot], self.scores[slot, 0] = -math.inf, 0.0  # all beams are equal at first, so only one may count

    def move(self, slot: int, to: int) -> None:
        for values in (self.tokens, self.newest, self.scores, self.parents, self.starts, self.lengths, self.limits):
            values[to] = values[slot]
        self.finished[to] = self.finished[slot]

    def extend(self, candidates: Candidates) -> list[int]:
        """Extend the hypotheses of the first slots by the best candidates. Return the slots whose search has ended."""
        self.lengths[: len(candidates.tokens)] += 1
        self._finish(candidates)
        continuing = self._best_unfinished(candidates)
        over = [slot for slot in range(len(continuing.tokens)) if self._is_over(slot, continuing)]
        self._continue(continuing)
        return over

    def _finish(self, candidates: Candidates) -> None:
        # only hypotheses among the best `num_beams` candidates may end
        logs, beams, tokens = (values[:, : self.settings.num_beams] for values in candidates)
        for slot, rank in np.argwhere((tokens == self.end) & (logs > -math.inf)).tolist():
            length = int(self.lengths[slot])
            target = self.tokens[slot, beams[slot, rank], : length - 1].tolist()
            self.finished[slot].append((self.settings.score(float(logs[slot, rank]), length), target))

    def _best_unfinished(self, candidates: Candidates) -> Candidates:
        # candidates that do not end, in order; if they are too few (a tiny vocabulary), ended ones with probability 0
        order = np.argsort(candidates.tokens == self.end, axis=1, kind="stable")[:, : self.settings.num_beams]
        slots = self._slots[: len(order)]
        logs, beams, tokens = (values[slots, order] for values in candidates)
        logs[tokens == self.end] = -math.inf
        return Candidates(logs, beams, tokens)

    def _is_over(self, slot: int, continuing: Candidates) -> bool:
        # at the length limit, or once no running hypothesis can beat the finished ones
        finished, length = self.finished[slot], int(self.lengths[slot])
        if length >= self.limits[slot]:
            if not finished:  # cut off at the length limit
                target = [
                    *self.tokens[slot, continuing.beams[slot, 0], : length - 1].tolist(),
                    int(continuing.tokens[slot, 0]),
                ]
                finished.append((float(continuing.log_probabilities[slot, 0]), target))
            return True
        if len(finished) < self.settings.num_beams:
            return False
        worst = sorted(finished, reverse=True)[self.settings.num_beams - 1][0]
        return self.settings.score(float(continuing.log_probabilities[slot, 0]), length) <= worst

    def _continue(self, continuing: Candidates) -> None:
        count, rows = len(continuing.tokens), self._rows(continuing.beams)
        slots, lengths = self._slots[:count], self.lengths[:count]
        for values, chosen in zip((self.scores, self.parents, self.newest), continuing, strict=True):
            values[slots, rows] = chosen
        targets = self.tokens[:count, :, : lengths.max()]
        continued = targets[slots, self.parents[:count]]
        # The first token in which a hypothesis differs from the old content of its row: only cache slots from there on
        # are copied. Slot 0 holds the start token, so token t is in slot t + 1.
        self.starts[:count] = 1 + (targets != continued).argmax(-1)
        targets[:] = continued
        self.tokens[slots, self._beams, lengths[:, None] - 1] = self.newest[:count]

    def _rows(self, beams: Int[ndarray, "slots beams"]) -> Int[ndarray, "slots beams"]:
        # The first child of a beam keeps the row of its parent, so nothing is copied. Other children get the rows of
        # beams without children.
        repeats = ((beams[:, :, None] == beams[:, None, :]) & self._earlier).any(-1)
        is_taken: Bool[ndarray, "slots beams"] = np.zeros(beams.shape, bool)
        is_taken[self._slots[: len(beams)], beams] = True
        remaining = beams.copy()
        remaining[repeats] = np.nonzero(~is_taken)[1]  # equally many in each slot, in the same order
        return remaining
