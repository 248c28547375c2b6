"""Texts to vectors, by an encoder."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.errors import DataError
from archetype.models import Encoder
from archetype.tokenizers import Tokenizer

Pooling = Literal["mean", "first"]


@torch.inference_mode()
def embed(
    model: Encoder, tokenizer: Tokenizer, texts: list[str], pooling: Pooling = "mean", normalized: bool = True
) -> Float[Tensor, "B D"]:
    """A vector for each text: the mean of its tokens' vectors, or its first token's through the pooler.

    Args:
        model: in evaluation mode.
        tokenizer: the model's own.
        texts: none of them empty.
        pooling: mean or first.
        normalized: whether every vector has length 1, so that a product of two is the cosine of their angle.
    """
    tokens, num_tokens = encoded(model, tokenizer, texts)
    vectors = model(tokens, num_tokens).hidden
    if pooling == "first":
        pooled = model.pooled(vectors)
    else:
        real = torch.arange(tokens.shape[1], device=model.device) < num_tokens[:, None]
        pooled = (vectors * real[..., None]).sum(1) / num_tokens[:, None]
    return torch.nn.functional.normalize(pooled.float(), dim=-1) if normalized else pooled.float()


def encoded(model: Encoder, tokenizer: Tokenizer, texts: list[str]) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B"]]:
    """Whole texts as tokens, padded at the end, and how many tokens each has.

    Raises:
        DataError: a text is empty, or longer than the model's context.
    """
    rows = [tokenizer.add_special_tokens(tokenizer.encode(text)) for text in texts]
    for number, ids in enumerate(rows):
        if not 0 < len(ids) <= model.spec.context_length:
            cause = f"has {len(ids)} tokens and the model's context holds 1 to {model.spec.context_length}"
            raise DataError(f"text {number + 1}", cause, "give some text, or shorten it")
    num_tokens = torch.tensor([len(ids) for ids in rows], device=model.device)
    tokens = torch.zeros(len(texts), int(num_tokens.max()), dtype=torch.long, device=model.device)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return tokens, num_tokens
