"""RNNState tokens of a text, guessed by an encoder."""

from dataclasses import dataclass

import torch

from archetype.errors import DataError, SpecError
from archetype.models import Encoder
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.special_tokens import mask_id

MASK = "[MASK]"


@dataclass(frozen=True)
class Prediction:
    """A token for one hidden place, and its probability."""

    token: str
    probability: float


def _encoded(tokenizer: Tokenizer, text: str, hidden: int) -> list[int]:
    """The ids of a text with masks, read by the tokenizer itself where it knows a mask."""
    name = next((name for name, id in tokenizer.special_tokens.items() if id == hidden), None)
    if name is not None and tokenizer.encodes_special_tokens:
        return tokenizer.encode(text.replace(MASK, name))
    first, *rest = [tokenizer.encode(part) for part in text.split(MASK)]
    return [*first, *(id for part in rest for id in (hidden, *part))]


@torch.inference_mode()
def fill(model: Encoder, tokenizer: Tokenizer, text: str, top: int = 5) -> list[list[Prediction]]:
    """The likeliest tokens for every [MASK] of a text, in order.

    Raises:
        DataError: the text has no [MASK], or is longer than the model's context.
        SpecError: the model's head does not name tokens, or its vocabulary has no mask.
    """
    if model.lm_head is None:
        cause = f"a head of kind {model.spec.head.kind} does not name tokens"
        raise SpecError("head", cause, "use a model with head masked_language_model")
    if MASK not in text:
        raise DataError("text", f"has no {MASK}", f"write {MASK} for each token that is to be guessed")
    hidden = mask_id(tokenizer)
    if hidden >= model.spec.vocab_size:
        cause = f"{model.spec.vocab_size} ids hold no mask beside the tokenizer's {tokenizer.vocab_size}"
        raise SpecError("vocab_size", cause, "use a model that was trained on masked tokens")
    ids = tokenizer.add_special_tokens(_encoded(tokenizer, text, hidden))
    if len(ids) > model.spec.context_length:
        cause = f"has {len(ids)} tokens and the model's context holds {model.spec.context_length}"
        raise DataError("text", cause, "shorten it")
    tokens = torch.tensor([ids], device=model.device)
    logits = model(tokens).logits[0, (tokens[0] == hidden)].float()
    logits = logits[:, : tokenizer.vocab_size]  # ids beyond stand for no text
    best = logits.softmax(-1).topk(min(top, logits.shape[-1]))
    return [
        [Prediction(tokenizer.token(id), share) for share, id in zip(shares, ids, strict=True)]
        for shares, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
