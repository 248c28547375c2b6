"""Extractive question answering: the answer to a question as a span of a text."""

from typing import NamedTuple

import torch

from archetype.errors import DataError, SpecError
from archetype.generate.finite import check_finite
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.tokenizers import Tokenizer

MAX_TOKENS = 15  # of an answer, as in the pipeline of transformers


class Answer(NamedTuple):
    """A span of a text."""

    text: str
    start: int  # index of the first character
    end: int  # index after the last character
    probability: float  # of this start and end, among all positions of the text


@torch.inference_mode()
def answer(
    model: Encoder | Decoder, tokenizer: Tokenizer, question: str, text: str, max_tokens: int = MAX_TOKENS
) -> Answer:
    """Return the most likely span of a text that answers a question.

    Args:
        model: in evaluation mode.
        tokenizer: the model's tokenizer, which must encode pairs of texts.
        max_tokens: maximal length of the answer.

    Raises:
        SpecError: the model has no span head.
        DataError: question and text exceed the model's context, or the tokenizer does not encode pairs.
    """
    if not model.spec.head.marks_spans:
        cause = f"a head of kind {model.spec.head.kind} does not mark answer spans"
        raise SpecError("head", cause, "use a model with a span head, such as a *ForQuestionAnswering checkpoint")
    pair = tokenizer.encode_pair(question, text)
    if len(pair.ids) > model.spec.context_length:
        cause = f"{len(pair.ids)} tokens with the question, but the model's context is {model.spec.context_length}"
        raise DataError("text", cause, "shorten it")
    if not pair.places:
        raise DataError("text", "has no token", "pass a text that contains the answer")
    tokens, types = (torch.tensor([row], device=model.device) for row in (pair.ids, pair.types))
    has_types = isinstance(model, Encoder) and getattr(model.spec.embedding, "num_token_types", 0) > 1
    logits = model(tokens, **({"token_types": types} if has_types else {})).logits[0].float()
    check_finite(logits, model, lambda: model(tokens))
    begins, ends = logits[list(pair.places)].softmax(0).unbind(-1)  # (tokens of the text,) each
    products = (begins[:, None] * ends).triu().tril(max_tokens - 1)  # row: start, column: end >= start, not too far
    first, last = divmod(int(products.argmax()), len(ends))
    spans = list(pair.places.values())
    start, end = spans[first][0], spans[last][1]
    start += len(text[start:end]) - len(text[start:end].lstrip())  # byte-level tokens include the space before a word
    return Answer(text[start:end], start, end, float(products[first, last]))
