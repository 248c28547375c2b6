"""The engine: prompts in, tokens or text out, one step for all rows at a time."""

from collections.abc import Iterator, Sequence

import torch

from archetype.errors import SpecError
from archetype.generate.finite import check_finite
from archetype.generate.sample import Sampler
from archetype.generate.settings import Sampling
from archetype.generate.step import DecodeStep, prefill
from archetype.models import CausalModel
from archetype.nn.cache import State
from archetype.tokenizers import TextStream, Tokenizer
from archetype.tokenizers.tokenizer import check_utf8


class Engine:
    """Rows that are decoded together. Iterating gives (row, token) as they are chosen.

    A row ends at one of `stop_ids` (which is not given out), after `max_new_tokens`, or when `finish` is called for
    it; it then leaves the batch. A row that fills the model's context goes on with its newest three quarters: the
    oldest tokens leave, and what stays is read anew from position 0, as the model was trained.

    Raises:
        SpecError: a prompt is empty, longer than the context, or has an id outside the vocabulary.
        CheckpointError: while iterating, where logits are NaN or infinite.
    """

    def __init__(
        self, model: CausalModel, prompts: list[list[int]], sampling: Sampling, stop_ids: tuple[int, ...] = ()
    ) -> None:
        self.model = model
        self.context = model.spec.context_length
        for number, prompt in enumerate(prompts):
            self._check(f"prompt {number + 1}" if len(prompts) > 1 else "prompt", prompt)
        self.sampling = sampling
        self.stop_ids = frozenset(() if sampling.ignore_eos else stop_ids)
        self.active = list(range(len(prompts)))
        self.windows = [list(prompt) for prompt in prompts]  # what the model sees of each row, the newest token last
        self.left = [sampling.max_new_tokens] * len(prompts)
        self.device = model.device
        self.sampler = Sampler(sampling, prompts, model.spec.vocab_size, self.device)

    def finish(self, row: int) -> None:
        """Let a row leave before the next step."""
        self.left[row] = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if not self.active:
            return
        longest = max(len(window) for window in self.windows)
        state = self.model.new_state(len(self.active), min(self.context, longest + self.sampling.max_new_tokens))
        logits, state = prefill(self.model, self.windows, state)
        step = DecodeStep(self.model, state)
        while True:
            check_finite(logits, self.model, self._read_windows)
            for row, token in zip(list(self.active), self.sampler.next(logits, self.active), strict=True):
                if token in self.stop_ids:
                    self.finish(row)
                    continue
                self.windows[row].append(token)
                self.left[row] -= 1
                yield row, token
            state = self._without_finished(step.state)
            if not self.active:
                return
            self._evict_oldest(state)
            step = step if state is step.state else DecodeStep(self.model, state)
            logits = step(torch.tensor([self.windows[row][-1:] for row in self.active], device=self.device))

    @torch.inference_mode()
    def _without_finished(self, state: State) -> State:
        stay = [place for place, row in enumerate(self.active) if self.left[row] > 0]
        all_stay = len(stay) == len(self.active)
        self.active = [self.active[place] for place in stay]
        return state if all_stay or not stay else state.select(torch.tensor(stay, device=self.device))

    @torch.inference_mode()
    def _evict_oldest(self, state: State) -> None:
        """Rows whose newest token no longer fits lose their oldest quarter; the rest is read anew."""
        full = [place for place, row in enumerate(self.active) if len(self.windows[row]) > self.context]
        if full:
            length = min(max(2, self.context * 3 // 4), self.context)
            rows = [self.active[place] for place in full]
            for row in rows:
                self.windows[row] = self.windows[row][-length:]
            fresh = self.model.new_state(len(rows), state.capacity)
            if self.context > 1:
                _, fresh = prefill(self.model, [self.windows[row][:-1] for row in rows], fresh)
            state.insert(torch.tensor(full, device=self.device), fresh)

    @torch.inference_mode()
    def _read_windows(self) -> None:
        """Pass over each row's text without a state."""
        for row in self.active:
            self.model(torch.tensor([self.windows[row]], device=self.device))

    def _check(self, place: str, prompt: list[int]) -> None:
        if not prompt:
            raise SpecError(place, "is empty, and the tokenizer has no token that starts a text", "give some text")
        if len(prompt) > self.context:
            cause = f"has {len(prompt)} tokens and the model's context holds {self.context}"
            raise SpecError(place, cause, "shorten it")
        if not 0 <= min(prompt) <= max(prompt) < self.model.spec.vocab_size:
            cause = f"holds a token outside the vocabulary of {self.model.spec.vocab_size}"
            raise SpecError(place, cause, "is it the model's own tokenizer?")


def stream(
    model: CausalModel, tokenizer: Tokenizer, prompts: Sequence[str | list[int]], sampling: Sampling
) -> Iterator[tuple[int, str]]:
    """(number of the prompt, next piece of its continuation), as soon as it is certain.

    Args:
        model: in evaluation mode.
        tokenizer: the model's own.
        prompts: texts, or the ids of texts.
        sampling: how tokens are chosen, and when a text ends.

    Raises:
        SpecError: a prompt is empty or too long; raised at once, before the first piece is asked for.
    """
    ids = [prompt_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    engine = Engine(model, ids, sampling, tokenizer.eos)
    return _pieces(engine, [tokenizer.stream() for _ in ids], [StopStringFilter(sampling.stop) for _ in ids])


def _pieces(engine: Engine, texts: list[TextStream], filters: list["StopStringFilter"]) -> Iterator[tuple[int, str]]:
    for row, token in engine:
        if piece := filters[row].push(texts[row].push(token)):
            yield row, piece
        if filters[row].stopped:
            engine.finish(row)
    for row, (text, stop) in enumerate(zip(texts, filters, strict=True)):
        if piece := stop.push(text.finish()) + stop.finish():
            yield row, piece


def generate(model: CausalModel, tokenizer: Tokenizer, prompts: list[str], sampling: Sampling) -> list[str]:
    """The continuation of each prompt."""
    texts = [""] * len(prompts)
    for row, piece in stream(model, tokenizer, prompts, sampling):
        texts[row] += piece
    return texts


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt as ids, with the token that starts a text where the tokenizer is used so, or the prompt is empty."""
    ids = tokenizer.encode(check_utf8(prompt))
    if tokenizer.bos is not None and (tokenizer.adds_bos or not ids):
        return [tokenizer.bos, *ids]
    return ids


class StopStringFilter:
    """Lets text through until a stop string appears, holding back what may be the beginning of one.

    The stop string that is complete first ends the text, where it begins; of several that end together, the longest.
    So it does not matter into which pieces the text is cut.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self.stop = stop
        self.held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """The text that no stop string can claim any more."""
        if self.stopped:
            return ""
        self.held += piece
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
        released, self.held = self.held[:count], self.held[count:]
        return released

    def _overlap(self, string: str) -> int:
        """How many characters at the end of what is held begin the stop string."""
        return next((n for n in range(min(len(string), len(self.held)), 0, -1) if self.held.endswith(string[:n])), 0)
