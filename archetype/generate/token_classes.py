"""Token classification, such as named-entity recognition."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from archetype.errors import SpecError
from archetype.generate.encoder import batches_by_length
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.special_tokens import start_of_text


class TokenClass(NamedTuple):
    token: str
    label: str
    probability: float


def names_of_classes(model: Encoder | Decoder, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the token classes: `labels`, or else their indices.

    Raises:
        SpecError: the model is not a token classifier.
    """
    head: Any = model.spec.head
    if not head.labels_tokens or head.marks_spans:
        cause = f"a head of kind {head.kind} does not classify tokens"
        raise SpecError("head", cause, "use a model with head token_classification")
    return tuple(labels) or tuple(str(index) for index in range(head.num_classes))


@torch.inference_mode()
def classify_tokens(
    model: Encoder | Decoder, tokenizer: Tokenizer, texts: str | list[str], labels: Sequence[str] = ()
) -> list[list[TokenClass]]:
    """Return the class of each token of each text, except special tokens.

    Args:
        model: in evaluation mode.
        texts: non-empty texts.
        labels: names of the classes (absent: their indices).

    Raises:
        SpecError: the model is not a token classifier.
        DataError: a text is empty, or longer than the model's context.
    """
    names = names_of_classes(model, labels)
    bare = [tokenizer.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
    sequences = [tokenizer.add_special_tokens(ids) for ids in bare]
    answers: list[list[TokenClass]] = [[] for _ in sequences]
    for indices, tokens, lengths in batches_by_length(model, sequences):
        best = model(tokens, num_tokens=lengths).logits.float().softmax(-1).max(-1)  # (B, T, Y) to (B, T)
        for row, index in enumerate(indices):
            ids, first = bare[index], start_of_text(sequences[index], bare[index])
            span = slice(first, first + len(ids))  # without special tokens
            best_classes = zip(ids, best.indices[row, span].tolist(), best.values[row, span].tolist(), strict=True)
            answers[index] = [TokenClass(tokenizer.token(id), names[label], share) for id, label, share in best_classes]
    return answers
