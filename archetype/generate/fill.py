"""Hidden tokens of a text, guessed by an encoder."""

from dataclasses import dataclass

import torch

from archetype.data.tokenizer import Tokenizer
from archetype.data.tokenizer.special_tokens import mask_id
from archetype.errors import DataError, SpecError
from archetype.model import Encoder

MASK = "[MASK]"


@dataclass(frozen=True)
class Guess:
    """A token for one hidden place, and its probability."""

    token: str
    probability: float


@torch.inference_mode()
def fill(model: Encoder, tokenizer: Tokenizer, text: str, top: int = 5) -> list[list[Guess]]:
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
    first, *rest = [tokenizer.encode(part) for part in text.split(MASK)]
    ids = list(first)
    for part in rest:
        ids += [hidden, *part]
    if len(ids) > model.spec.context_length:
        cause = f"has {len(ids)} tokens and the model's context holds {model.spec.context_length}"
        raise DataError("text", cause, "shorten it")
    tokens = torch.tensor([ids], device=model.device)
    logits = model(tokens)[0, (tokens[0] == hidden)].float()
    logits = logits[:, : tokenizer.vocab_size]  # ids beyond stand for no text
    best = logits.softmax(-1).topk(min(top, logits.shape[-1]))
    return [
        [Guess(tokenizer.token(id), share) for share, id in zip(shares, ids, strict=True)]
        for shares, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
