"""Generation by unmasking: all masks of a block are predicted at once, and the most confident ones become tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.errors import DataError, SpecError
from archetype.generate.encoder import mask_of
from archetype.generate.filters import filtered
from archetype.generate.finite import check_finite
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.nn.state import State
from archetype.settings.generation import Sampling, Unmasking
from archetype.tokenizers import Tokenizer

APPLIES = frozenset(
    {"max_new_tokens", "temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"}
    | {"seed", "ignore_eos"}
)  # fields of Sampling that unmasking obeys


@torch.inference_mode()
def unmask(
    model: Encoder | Decoder,
    tokenizer: Tokenizer,
    prompt: list[int],
    sampling: Sampling,
    unmasking: Unmasking,
    ends: tuple[int, ...] = (),
) -> list[int]:
    """Generate `sampling.max_new_tokens` tokens after a prompt, or those before the first end token.

    Without blocks of its own, the model sees the masks of later blocks (LLaDA; Nie 2025, section 2.4). With
    block-causal attention, blocks are those of the model, and the keys of finished blocks are kept (Arriola 2025).

    Args:
        model: model in evaluation mode.
        prompt: token ids, possibly none.
        ends: ids that end a text, unless `sampling.ignore_eos`.

    Raises:
        SpecError: the model does not predict masked tokens, or a setting does not suit it.
        DataError: prompt and new tokens are longer than the model's context.
    """
    mask = mask_of(model, tokenizer)
    assert isinstance(model, Encoder)  # only encoders predict masked tokens
    own, count = model.spec.block_length, sampling.max_new_tokens
    if wrong := sorted(sampling.model_fields_set - APPLIES):
        raise SpecError(wrong[0], "does not apply to generation by unmasking", f"use {', '.join(sorted(APPLIES))}")
    if own is not None and unmasking.block is not None:
        cause = f"the model's attention has blocks of {own}"
        raise SpecError("block", cause, "remove it")
    length = len(prompt) + count
    if length > model.spec.context_length:
        cause = (
            f"has {len(prompt)} tokens, which with {count} new tokens exceed the model's {model.spec.context_length}"
        )
        raise DataError("prompt", cause, "shorten it, or generate fewer tokens")
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens = torch.tensor([[*prompt, *[mask] * count]], device=model.device)  # (1, T)
    state = None if own is None else _new_state(model, length)
    # blocks of the model start at multiples of its block length; others start after the prompt
    step, origin = (own, 0) if own is not None else (unmasking.block or count, len(prompt))
    starts = range(origin + (len(prompt) - origin) // step * step, length, step)
    if state is not None and starts.start > 0:
        state = model(tokens[:, : starts.start], earlier=state, with_logits=False).state
    for start in starts:
        block = slice(start, min(start + step, length))
        # an encoder without blocks reads the whole sequence; a shifted head also reads the token before the block
        read = slice(0, length) if state is None else slice(max(0, start - model.spec.head.is_shifted), block.stop)
        before = None if state is None else state.advance(torch.full_like(state.lengths, read.start))
        while (left := (tokens[0, block] == mask).nonzero()[:, 0] + start).numel():

            def forward(read: slice = read, before: State | None = before) -> Tensor:
                return model(tokens[:, read], earlier=before).logits

            logits = forward()[0, left - read.start].float()  # (masks, V)
            check_finite(logits, model, forward)
            # neither the mask nor ids without a text are generated
            logits[:, mask] = logits[:, tokenizer.vocab_size :] = -torch.inf
            ids, confidence = _candidates(logits, sampling, generator)
            best = _order(confidence, unmasking, generator)[: unmasking.tokens_per_step]
            tokens[0, left[best]] = ids[best]
        if state is not None:
            state = model(tokens[:, block], earlier=state, with_logits=False).state
        if not sampling.ignore_eos and any(
            id in ends for id in tokens[0, max(block.start, len(prompt)) : block.stop].tolist()
        ):
            break
    new: list[int] = tokens[0, len(prompt) : block.stop].tolist()
    if sampling.ignore_eos:
        return new
    return new[: next((index for index, id in enumerate(new) if id in ends), len(new))]


def _new_state(model: Encoder, capacity: int) -> State:
    layers = model.new_layers(1, capacity, model.dtype, model.device)
    return State(torch.zeros(1, dtype=torch.long, device=model.device), layers, capacity)


def _candidates(
    logits: Float[Tensor, "masks V"], sampling: Sampling, generator: torch.Generator
) -> tuple[Int[Tensor, "masks"], Float[Tensor, "masks"]]:
    # a token for each mask, and its probability before temperature and filters
    if sampling.greedy:
        ids = logits.argmax(-1)
    else:
        probabilities = filtered(logits, sampling).double().softmax(-1).cpu()
        ids = torch.multinomial(probabilities, 1, generator=generator)[:, 0].to(logits.device)
    return ids, logits.softmax(-1).gather(1, ids[:, None])[:, 0]


def _order(
    confidence: Float[Tensor, "masks"], unmasking: Unmasking, generator: torch.Generator
) -> Int[Tensor, "masks"]:
    # the masks in the order in which they become tokens; of equal confidences, the first
    match unmasking.order:
        case "confidence":
            return confidence.argsort(descending=True, stable=True)
        case "left_to_right":
            return torch.arange(len(confidence), device=confidence.device)
        case "random":
            return torch.randperm(len(confidence), generator=generator).to(confidence.device)
