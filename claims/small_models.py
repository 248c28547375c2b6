"""Small models for checks. Every tensor is random, because ones and zeros could hide mistakes."""

from typing import Any

import torch
from torch import Tensor, nn

from archetype.models.block.spec import Block, PreNorm
from archetype.models.build import build
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.nn.context import ForwardContext
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Learned

EXACT = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative tolerances
WRONG = 1e-3  # relative error that every planted mistake must exceed

ATTENTION = Attention(num_heads=4, num_kv_heads=2)
GATED = GatedMLP(d_ff=44, activation="silu")
PRE_NORM = PreNorm(norm=RMSNorm())


def block(**changes: Any) -> Block:
    return Block(**{"wiring": PRE_NORM, "mixer": ATTENTION, "feedforward": GATED} | changes)


def decoder(*layers: Block, **changes: Any) -> Decoder:
    sizes: dict[str, Any] = {"vocab_size": 31, "context_length": 64, "d_model": 16, "final_norm": RMSNorm()}
    return Decoder(**sizes | {"layers": layers} | changes)


def attending(num_layers: int = 2, **changes: Any) -> Decoder:
    return decoder(*[block(mixer=ATTENTION.replace(**changes))] * num_layers)


@torch.no_grad()
def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw all parameters and buffers: matrices N(0, 1 / (2 inputs)), biases N(0, 0.3), norms N(1, 0.3)."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        leaf = name.rpartition(".")[2]
        # a variance must be positive
        if leaf == "running_var":
            tensor.uniform_(0.5, 1.5, generator=generator)
        elif tensor.dim() > 1:
            tensor.normal_(0.0, (2 * tensor.shape[-1]) ** -0.5, generator=generator)
        elif tensor.is_floating_point():
            tensor.normal_(0.0 if "bias" in leaf or "mean" in leaf else 1.0, 0.3, generator=generator)
    return model.eval()


def random_model(model: ModelSpec, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    return randomize(build(model, dtype=dtype), seed).requires_grad_(False)


def random_tokens(model: ModelSpec, batch: int, length: int, seed: int = 0) -> Tensor:
    """Return random token ids (B, T)."""
    size = getattr(model, "vocab_size", 1)
    return torch.randint(0, size, (batch, length), generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Return N(0, 1) samples that depend on the seed but not on the dtype."""
    # always drawn in float64, so that both dtypes see the same numbers
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest magnitude of `theirs`."""
    size = theirs.double().abs().max().item()
    return (ours.double() - theirs.double()).abs().max().item() / (size or 1.0)


def logits_at(model: Any, tokens: Tensor, first: int) -> Tensor:
    """Return the logits of tokens at positions from `first` on; in float64, rotary angles are float64 as well."""
    context = ForwardContext.of(tokens)
    positions = context.positions + first
    added = isinstance(model.spec.embedding.position, Learned)
    context.positions = positions.to(model.dtype) if model.dtype == torch.float64 and not added else positions
    x = model.final_norm(model.run(model.embedding(tokens, context), context), context)
    logits: Tensor = model.lm_head(x, model.embedding.token.weight)
    return logits
