"""How well a model predicts a text: loss per token, perplexity, and bits per byte."""

import math
from dataclasses import dataclass

import torch

from archetype.errors import DataError
from archetype.models import CausalModel
from archetype.tokenizers import Tokenizer

MAX_LOGITS = 2**26  # computed at once: a window is no longer than this over the vocabulary, unless the caller says so


@dataclass(frozen=True)
class Score:
    """What a text costs a model to predict.

    Attributes:
        loss: mean cross-entropy of a token, in nats.
        num_tokens: that were predicted.
        num_bytes: of the text in UTF-8.
    """

    loss: float
    num_tokens: int
    num_bytes: int

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """The whole loss in bits over the bytes: it does not depend on the tokenizer."""
        return self.loss * self.num_tokens / self.num_bytes / math.log(2)

    def record(self) -> dict[str, float]:
        """All figures by name."""
        return vars(self) | {"perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


@torch.inference_mode()
def score(
    model: CausalModel, tokenizer: Tokenizer, text: str, stride: int | None = None, length: int | None = None
) -> Score:
    """Predict every token of a text once, each from at least `length - stride` tokens before it where there are any.

    A window of `length` tokens moves on by `stride`, and what it adds is scored. The first token of a text is predicted
    only where the tokenizer has one that starts a text.

    Args:
        model: in evaluation mode.
        tokenizer: the model's own.
        text: of any length.
        stride: tokens by which a window moves on (default: half of it); 1 gives each token the most context, `length`
            reads each but once.
        length: tokens of a window (default: the model's context, or less for a large vocabulary).

    Raises:
        DataError: the text has no token to predict, or a size is out of range.
    """
    context = model.spec.context_length
    length = min(context, max(1, MAX_LOGITS // model.spec.vocab_size)) if length is None else length
    stride = max(1, length // 2) if stride is None else stride
    for name, size, most in (("length", length, context), ("stride", stride, length)):
        if not 1 <= size <= most:
            raise DataError(name, f"{size} is not between 1 and {most}", "choose another")
    ids = tokenizer.encode(text)
    ids = ids if tokenizer.bos is None else [tokenizer.bos, *ids]
    if len(ids) < 2:
        raise DataError("text", f"has {len(ids)} tokens and nothing to predict", "give more text")
    total, scored = 0.0, 0  # the first `scored` targets are done; target n is predicted from ids up to n
    for start in range(0, len(ids) - 1, stride):
        tokens = torch.tensor([ids[start : start + length]], device=model.device)
        targets = torch.tensor(ids[start + 1 : start + length + 1], device=model.device)
        first = scored - start
        if first < len(targets):
            logits = model(tokens).logits[0, first : len(targets)].float()
            losses = torch.nn.functional.cross_entropy(logits, targets[first:], reduction="none")
            total, scored = total + float(losses.double().sum()), start + len(targets)
    return Score(total / scored, scored, len(text.encode()))
