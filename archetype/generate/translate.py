"""Source texts to target texts."""

from archetype.data.pairs import end_of_text
from archetype.errors import DataError
from archetype.generate.beam import Beam, beam_search
from archetype.models import EncoderDecoder
from archetype.tokenizers import Tokenizer


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
