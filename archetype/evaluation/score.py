"""Language modelling metrics on a text: loss per token, perplexity, bits per byte, accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from archetype.data.preparation import prepared
from archetype.errors import DataError
from archetype.machine.time_budget import in_time
from archetype.models.causal import CausalModel
from archetype.tokenizers import Tokenizer

TOKENS_AT_ONCE = 4096  # tokens of a batch, including padding
MAX_LOGITS = 2**26  # logits of a forward pass; limits the default window length for large vocabularies


class PerToken:
    """What follows from a mean loss per token."""

    loss: float
    num_tokens: int
    num_bytes: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))  # exp overflows beyond 709

    @property
    def bits_per_byte(self) -> float:
        """Total cross-entropy in bits, divided by the number of bytes, which can be compared between tokenizers."""
        return self.loss * self.num_tokens / self.num_bytes / math.log(2)


@dataclass(frozen=True)
class Score(PerToken):
    """Cross-entropy of a text under a model.

    Attributes:
        loss: mean cross-entropy per token, in nats.
        num_tokens: number of predicted tokens.
        num_bytes: number of UTF-8 bytes in the text.
        accuracy: fraction of tokens to which the model gave the highest probability.
        losses: (num_tokens,) cross-entropy of each token, in float64.
        is_right: (num_tokens,) whether each token is the model's most likely token.
    """

    loss: float
    num_tokens: int
    num_bytes: int
    accuracy: float
    losses: Tensor = field(repr=False, compare=False)
    is_right: Tensor = field(repr=False, compare=False)

    def record(self) -> dict[str, float]:
        names = ("loss", "num_tokens", "num_bytes", "accuracy", "perplexity", "bits_per_byte")
        return {name: getattr(self, name) for name in names}


def together(scores: Sequence[Score]) -> Score:
    """Combine the scores of several texts into means over all their tokens."""
    if len(scores) == 1:
        return scores[0]
    losses, is_right = (torch.cat([getattr(part, name) for part in scores]) for name in ("losses", "is_right"))
    num_bytes = sum(part.num_bytes for part in scores)
    return Score(float(losses.mean()), len(losses), num_bytes, float(is_right.double().mean()), losses, is_right)


@torch.inference_mode()
def score(
    model: CausalModel, tokenizer: Tokenizer, text: str, stride: int | None = None, length: int | None = None
) -> Score:
    """Score every token of a text once, each with at least `length - stride` tokens of context where available.

    A window of `length` tokens moves by `stride` tokens, and the new tokens in it are scored. The first token of a text
    is scored only if the tokenizer has a bos token. If a time budget ends, the score is that of the text so far.

    Args:
        model: model in evaluation mode.
        stride: step of the window in tokens (default: half of `length`). 1 gives each token the most context; `length`
            reads each token once.
        length: tokens per window (default: the model's context, or less for a large vocabulary).

    Raises:
        DataError: the text has no token to predict, or a size is out of range.
    """
    context = model.spec.context_length
    length = min(context, max(1, MAX_LOGITS // model.spec.vocab_size)) if length is None else length
    stride = max(1, length // 2) if stride is None else stride
    for name, size, most in (("length", length, context), ("stride", stride, length)):
        if not 1 <= size <= most:
            raise DataError(name, f"{size} is not between 1 and {most}", "choose a value in this range")
    ids = tokenizer.encode(text)
    ids = ids if tokenizer.bos is None else [tokenizer.bos, *ids]
    if len(ids) < 2:
        raise DataError("text", "has fewer than two tokens, and nothing to predict", "use a longer text")
    losses, is_right, scored = list[Tensor](), list[Tensor](), 0  # targets before `scored` are done
    for start in in_time(prepared(range(0, len(ids) - 1, stride))):
        tokens = torch.tensor([ids[start : start + length]], device=model.device)
        targets = torch.tensor(ids[start + 1 : start + length + 1], device=model.device)
        first = scored - start  # first target of this window that was not scored
        if first < len(targets):
            logits = model(tokens).logits[0, first : len(targets)].float()  # (new tokens, V)
            losses.append(torch.nn.functional.cross_entropy(logits, targets[first:], reduction="none").double().cpu())
            is_right.append((logits.argmax(-1) == targets[first:]).cpu())
            scored = start + len(targets)
    total, correct = (sum(float(part.sum()) for part in parts) for parts in (losses, is_right))
    # the bytes of what was scored, if the time did not suffice for all
    first = 0 if tokenizer.bos is None else 1
    text = text if scored == len(ids) - 1 else tokenizer.decode(ids[first : scored + 1])
    return Score(total / scored, scored, len(text.encode()), correct / scored, torch.cat(losses), torch.cat(is_right))


@torch.inference_mode()
def score_continuations(model: CausalModel, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """Return the log-probability of each continuation, and whether greedy decoding would generate it.

    Pairs are (context tokens, continuation tokens). A long context is truncated on the left.

    Raises:
        DataError: a context or continuation is empty, or a continuation is longer than the model's context.
    """
    context, pairs_of_row = model.spec.context_length, dict[tuple[int, ...], list[int]]()
    for index, (before, continuation) in enumerate(pairs):
        location = f"continuation {index + 1}"
        if not before:
            raise DataError(location, "has an empty context", "add a context")
        if not continuation:
            raise DataError(location, "has no token", "add some text")
        if len(continuation) > context:
            cause = f"has {len(continuation)} tokens, but the model's context is {context}"
            raise DataError(location, cause, "shorten it")
        # the last token is predicted but not read: rows that differ only there are computed once
        pairs_of_row.setdefault(tuple([*before, *continuation][-(context + 1) : -1]), []).append(index)
    # rows of similar lengths, so that batches have little padding
    inputs = sorted(pairs_of_row, key=len)
    max_tokens = min(TOKENS_AT_ONCE, MAX_LOGITS // model.spec.vocab_size)
    results, first = [(0.0, True)] * len(pairs), 0
    while first < len(inputs):
        last = first + 1
        while last < len(inputs) and (last + 1 - first) * len(inputs[last]) <= max_tokens:
            last += 1
        batch = [torch.tensor(row) for row in inputs[first:last]]
        tokens = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True).to(model.device)
        lengths = torch.tensor([len(row) for row in batch], device=model.device)
        for row, logits in zip(inputs[first:last], model(tokens, num_tokens=lengths).logits, strict=True):
            for index in pairs_of_row[row]:
                # the logits of the last len(targets) positions of the row predict the continuation
                targets = torch.tensor(pairs[index][1], device=model.device)
                answer_logits = logits[len(row) - len(targets) : len(row)].float()  # (targets, V)
                logprobs = answer_logits.log_softmax(-1).gather(1, targets[:, None])
                results[index] = float(logprobs.sum()), bool((answer_logits.argmax(-1) == targets).all())
        first = last
    return results
