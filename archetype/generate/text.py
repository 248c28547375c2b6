"""Text in, text out: tokenizer around the driver, with stop strings and streaming."""

from collections.abc import Iterator

from archetype.errors import DataError
from archetype.generate.decode import Engine
from archetype.generate.settings import Sampling
from archetype.models import CausalModel
from archetype.tokenizers import TextStream, Tokenizer


def stream(
    model: CausalModel, tokenizer: Tokenizer, prompts: list[str], sampling: Sampling
) -> Iterator[tuple[int, str]]:
    """(number of the prompt, next piece of its continuation), as soon as it is certain.

    Raises:
        SpecError: a prompt is empty or too long; told at once, before the first piece is asked for.
    """
    return stream_ids(model, tokenizer, [encoded(tokenizer, prompt) for prompt in prompts], sampling)


def stream_ids(
    model: CausalModel, tokenizer: Tokenizer, prompts: list[list[int]], sampling: Sampling
) -> Iterator[tuple[int, str]]:
    """The same for prompts that are encoded already."""
    decoding = Engine(model, prompts, sampling, tokenizer.eos)
    return _pieces(decoding, [tokenizer.stream() for _ in prompts], [StopStringFilter(sampling.stop) for _ in prompts])


def _pieces(decoding: Engine, texts: list[TextStream], stoppers: list["StopStringFilter"]) -> Iterator[tuple[int, str]]:
    for row, token in decoding:
        if piece := stoppers[row].push(texts[row].push(token)):
            yield row, piece
        if stoppers[row].stopped:
            decoding.finish(row)
    for row, (text, stopper) in enumerate(zip(texts, stoppers, strict=True)):
        if piece := stopper.push(text.finish()) + stopper.finish():
            yield row, piece


def generate(model: CausalModel, tokenizer: Tokenizer, prompts: list[str], sampling: Sampling) -> list[str]:
    """The continuation of each prompt."""
    whole = [""] * len(prompts)
    for row, piece in stream(model, tokenizer, prompts, sampling):
        whole[row] += piece
    return whole


def encoded(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt as ids, with the token that starts a text where the tokenizer is used so, or the prompt is empty."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise DataError("prompt", f"is not valid Unicode at character {error.start}", "mend it") from None
    ids = tokenizer.encode(prompt)
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
        found = [(place + len(string), place) for string in self.stop if (place := self.held.find(string)) >= 0]
        if found:
            self.stopped = True
            return self._release(min(found)[1])
        longest = max((self._overlap(string) for string in self.stop), default=0)
        return self._release(len(self.held) - longest)

    def finish(self) -> str:
        """What was held back, now that the text has ended."""
        return "" if self.stopped else self._release(len(self.held))

    def _release(self, count: int) -> str:
        released, self.held = self.held[:count], self.held[count:]
        return released

    def _overlap(self, string: str) -> int:
        """How many characters at the end of what is held begin the stop string."""
        return next((n for n in range(min(len(string), len(self.held)), 0, -1) if self.held.endswith(string[:n])), 0)
