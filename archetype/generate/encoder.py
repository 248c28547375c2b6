"""Outputs of encoders: predictions for masked tokens, embeddings of texts, and classes of texts and images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.convert.sentence_transformers.files import SentenceSettings
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import end_of_text
from archetype.data.preparation import counter
from archetype.errors import DataError, SpecError, nearest
from archetype.generate.finite import check_finite
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.vision.module import VisionEncoder
from archetype.nn.context import Lengths, Tokens
from archetype.parts.sentence_head.module import SentenceEmbeddingHead, pool
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.special_tokens import mask_id

BATCH_SIZE = 256  # images in one batch
TOKENS_AT_ONCE = 4096  # tokens of a batch of texts, padding included; larger batches are no faster
MASK = "[MASK]"
Pooling = Literal["mean", "max", "first", "last"]


@dataclass(frozen=True)
class Prediction:
    """A predicted token for a masked position, and its probability."""

    token: str
    probability: float


@torch.inference_mode()
def fill(model: Encoder | Decoder, tokenizer: Tokenizer, text: str, top: int = 5) -> list[list[Prediction]]:
    """Predict the most likely tokens for every [MASK] of a text, in order.

    Raises:
        DataError: the text has no [MASK], or is longer than the model's context; or `top` is below 1.
        SpecError: the model's head does not predict masked tokens, or its vocabulary has no mask.
    """
    mask = mask_of(model, tokenizer)
    if top < 1:
        raise DataError("top", f"{top} is below 1", "request at least one prediction")
    if MASK not in text:
        raise DataError("text", f"has no {MASK}", f"write {MASK} in place of each token to predict")
    sequence = tokenizer.add_special_tokens(_with_masks(tokenizer, text, mask))
    check_lengths(model, [sequence])
    tokens, _ = _padded(model, [sequence])
    logits = model(tokens).logits[0, tokens[0] == mask].float()
    check_finite(logits, model, lambda: model(tokens))
    best = logits[:, : tokenizer.vocab_size].softmax(-1).topk(min(top, tokenizer.vocab_size))  # ids beyond have no text
    return [
        [Prediction(tokenizer.token(id), probability) for probability, id in zip(probabilities, ids, strict=True)]
        for probabilities, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def mask_of(model: Encoder | Decoder, tokenizer: Tokenizer) -> int:
    """Return the id of the mask token.

    Raises:
        SpecError: the model's head does not predict masked tokens, or its vocabulary has no mask.
    """
    if not model.spec.fills_masks:
        cause = f"a head of kind {model.spec.head.kind} does not predict masked tokens"
        raise SpecError("head", cause, "use a model with head masked_language_model")
    mask = mask_id(tokenizer)
    if mask >= model.spec.vocab_size:
        cause = f"{model.spec.vocab_size} ids leave no id for a mask token after the tokenizer's {tokenizer.vocab_size}"
        raise SpecError("vocab_size", cause, "use a model that was trained on masked tokens")
    return mask


def embedding_tokens(
    model: Encoder | Decoder,
    tokenizer: Tokenizer,
    texts: str | Sequence[str | list[int]],
    settings: SentenceSettings | None = None,
    prompt: str | None = None,
) -> tuple[list[list[int]], ExampleCounts]:
    """Tokenize texts for an embedding, truncated to the maximal length in `settings`.

    Args:
        texts: one text, or several; token ids are returned unchanged.
        settings: sentence-transformers settings: prompts and the maximal length.
        prompt: name of the prompt put before each text (absent: the default prompt).
    """
    if settings is None:
        return tokenized(tokenizer, texts)
    texts = [texts] if isinstance(texts, str) else texts
    prepared = [settings.prepared(text, prompt) if isinstance(text, str) else text for text in texts]
    longest = min(settings.max_length or model.spec.context_length, model.spec.context_length)
    return tokenized(tokenizer, prepared, longest)


@torch.inference_mode()
def embed(
    model: Encoder | Decoder,
    sequences: list[list[int]],
    pooling: Pooling | None = None,
    normalized: bool | None = None,
    head: SentenceEmbeddingHead | None = None,
) -> Float[Tensor, "B D"]:
    """Embed texts: pool the output vectors of each text's tokens into one vector.

    Args:
        model: in evaluation mode.
        sequences: token ids of each text, from `embedding_tokens`; none may be empty.
        pooling: mean, max, first (through the pooler) or last; absent: the pooling of `head`, else mean for an
            encoder, last for a decoder, since only its last token sees the whole text.
        normalized: whether to scale vectors to length 1, so that dot products are cosines (absent: as set in `head`,
            else true).
        head: sentence embedding head, if the model has one.

    Raises:
        SpecError: `pooling` is unknown, or is first for a decoder.
        DataError: a text is empty, or longer than the model's context.
    """
    if pooling is None and head is not None:
        normalized = head.spec.normalize if normalized is None else normalized
    elif pooling is None:
        pooling = "last" if isinstance(model, Decoder) else "mean"
    elif pooling not in get_args(Pooling):
        raise SpecError("pooling", f"{pooling!r:.40} is not a pooling method", nearest(str(pooling), get_args(Pooling)))
    if pooling == "first" and isinstance(model, Decoder):
        raise SpecError("pooling", "a decoder's first token sees no other token", "use last or mean")

    def pooled(tokens: Tokens, num_tokens: Lengths) -> Float[Tensor, "B D"]:
        if isinstance(model, Decoder) and pooling == "last":
            return model(tokens, num_tokens=num_tokens, last_only=True).hidden[:, 0]
        vectors: Tensor = model(tokens, num_tokens=num_tokens, with_logits=False).hidden
        if pooling is None and head is not None:
            return head(vectors, num_tokens, normalized=False)
        if isinstance(model, Encoder) and pooling == "first":
            return model.pooled(vectors, num_tokens)
        return pool(pooling or "mean", vectors, num_tokens)

    result = _by_length(model, sequences, pooled).float()
    return result if normalized is False else torch.nn.functional.normalize(result, dim=-1)


@torch.inference_mode()
def classify_pictures(model: VisionEncoder, images: Float[Tensor, "B channels height width"]) -> Float[Tensor, "B Y"]:
    """Return the probability of each class for each image. A head with one class returns its output.

    Raises:
        SpecError: the model has no classes, or reads images of another size.
    """
    _check_has_classes(model)
    logits = [model(part.to(model.device)).logits.float() for part in images.split(BATCH_SIZE)]
    return _answers(torch.cat(logits))


@torch.inference_mode()
def classify_texts(
    model: Encoder | Decoder | EncoderDecoder,
    tokenizer: Tokenizer,
    texts: str | list[str],
    start: int | None = None,
    truncate: bool = False,
) -> tuple[Float[Tensor, "B Y"], ExampleCounts]:
    """Return the probability of each class for each text, and counts of the truncated texts.

    A head with one class returns its output instead of a probability.

    Args:
        model: in evaluation mode.
        texts: one text or several; none may be empty.
        start: the token that an encoder-decoder's targets start with (absent: the end token).
        truncate: whether to truncate texts longer than the model's context, as in training.

    Raises:
        SpecError: the model has no classes.
        DataError: a text is empty, or longer than the model's context.
    """
    _check_has_classes(model)
    sequences, counts = tokenized(tokenizer, texts, model.spec.context_length if truncate else None)

    def logits(tokens: Tokens, num_tokens: Lengths) -> Float[Tensor, "B Y"]:
        if not isinstance(model, EncoderDecoder):
            return model(tokens, num_tokens=num_tokens).logits
        target = target_of_classes(tokens, end_of_text(tokenizer) if start is None else start)
        return model(target, num_tokens=num_tokens, source=tokens, source_num_tokens=num_tokens).logits

    return _answers(_by_length(model, sequences, logits).float()), counts


def target_of_classes(source: Tokens, start: int) -> Tokens:
    """Return the decoder input with which an encoder-decoder classifies its source: the source shifted right."""
    return torch.cat((torch.full_like(source[:, :1], start), source[:, :-1]), dim=1)


def _answers(logits: Float[Tensor, "B Y"]) -> Float[Tensor, "B Y"]:
    return logits if logits.shape[1] == 1 else logits.softmax(-1)


def _check_has_classes(model: Encoder | Decoder | EncoderDecoder | VisionEncoder) -> None:
    if not model.spec.head.classifies:
        cause = f"a head of kind {model.spec.head.kind} does not predict classes"
        raise SpecError("head", cause, "use a model with head classification")


def tokenized(
    tokenizer: Tokenizer, texts: str | Sequence[str | list[int]], longest: int | None = None
) -> tuple[list[list[int]], ExampleCounts]:
    """Tokenize texts. Truncate and count texts of more than `longest` tokens, but never truncate token ids."""
    texts = [texts] if isinstance(texts, str) else texts
    sequences = [text if isinstance(text, list) else tokenizer.encode(text) for text in texts]
    around = len(tokenizer.add_special_tokens([]))
    room = max(map(len, sequences), default=0) if longest is None else longest - around
    num_cut = sum(
        len(sequence) > room and not isinstance(text, list) for sequence, text in zip(sequences, texts, strict=True)
    )
    complete = [
        sequence if isinstance(text, list) else tokenizer.add_special_tokens(sequence[:room])
        for sequence, text in zip(sequences, texts, strict=True)
    ]
    return complete, ExampleCounts(longest, num_cut)


def _by_length(
    model: Encoder | Decoder | EncoderDecoder, sequences: list[list[int]], read: Callable[[Tokens, Lengths], Tensor]
) -> Float[Tensor, "B numbers"]:
    # computes batches of similar lengths, and returns results in the order of the sequences
    order, results = list[int](), list[Tensor]()
    for indices, tokens, lengths in batches_by_length(model, sequences):
        order += indices
        results.append(read(tokens, lengths))
    return torch.cat(results)[torch.tensor(order, device=model.device).argsort()]


def batches_by_length(
    model: Encoder | Decoder | EncoderDecoder, sequences: list[list[int]]
) -> Iterator[tuple[list[int], Tokens, Lengths]]:
    """Yield batches of similar lengths: indices of the sequences, padded tokens, and lengths.

    Raises:
        DataError: a sequence is empty, or longer than the model's context.
    """
    check_lengths(model, sequences)
    for indices in of_like_lengths(list(map(len, sequences))):
        yield indices, *_padded(model, [sequences[index] for index in indices])


def of_like_lengths(lengths: list[int]) -> Iterator[list[int]]:
    """Yield the indices of batches of similar lengths: up to `TOKENS_AT_ONCE` tokens with padding, or one sequence."""
    order, start, count = sorted(range(len(lengths)), key=lengths.__getitem__), 0, counter(len(lengths))
    while start < len(order):
        count(start)
        end = start + 1
        while end < len(order) and (end + 1 - start) * lengths[order[end]] <= TOKENS_AT_ONCE:
            end += 1
        yield order[start:end]
        start = end


def _padded(model: Encoder | Decoder | EncoderDecoder, sequences: list[list[int]]) -> tuple[Tokens, Lengths]:
    # tokens (B, T), padded at the end, and lengths
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sequences], batch_first=True)
    return padded.to(model.device), torch.tensor([len(ids) for ids in sequences], device=model.device)


def check_lengths(model: Encoder | Decoder | EncoderDecoder, sequences: list[list[int]]) -> None:
    """Raise an error unless every sequence fits the model's context.

    Raises:
        DataError: there are no sequences, or one is empty or longer than the context.
    """
    if not sequences:
        raise DataError("texts", "is empty", "pass at least one text")
    for index, ids in enumerate(sequences, start=1):
        if not 0 < len(ids) <= model.spec.context_length:
            cause = f"has {len(ids)} tokens, but the model accepts 1 to {model.spec.context_length}"
            raise DataError(f"text {index}" if len(sequences) > 1 else "text", cause, "use a text of that length")


def _with_masks(tokenizer: Tokenizer, text: str, mask: int) -> list[int]:
    # a tokenizer that knows the mask token tokenizes the text as a whole
    name = next((name for name, id in tokenizer.special_tokens.items() if id == mask), None)
    if name is not None and tokenizer.encodes_special_tokens:
        return tokenizer.encode(text.replace(MASK, name))
    first, *rest = [tokenizer.encode(part) for part in text.split(MASK)]
    return [*first, *(id for part in rest for id in (mask, *part))]
