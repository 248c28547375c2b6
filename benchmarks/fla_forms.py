"""Our mixers with the recurrence or attention of flash-linear-attention's naive functions, which are PyTorch.

The library's layers call Triton kernels, which need a GPU. Its naive functions are the form that runs on any processor:
in chunks where there is such a function, otherwise token by token. All around them, such as projections, is ours, so
that only the recurrence is compared. `make fla` installs the library next to the environment.
"""

import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module, metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from archetype import spec
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_mixer
from archetype.parts.native_sparse_attention.module import NativeSparseAttention
from tests.helpers.fla import INSTALLED

Run = Callable[[Tensor, LayerState | None], Tensor]  # x, after the text of a state (None: without one) -> y
Outputs = tuple[Tensor, Tensor]  # (B, T, H, Q), and the memory after it
Replaced = tuple[str, Callable[..., Outputs]]  # name of our function in the mixer's file, and the form that replaces it


def installed() -> str | None:
    """Return the library's version if it is there."""
    names = metadata.distributions(name="flash-linear-attention", path=[str(INSTALLED)])
    return next((each.version for each in names), None)


@cache
def naive(file: str, function: str) -> Callable[..., Any]:
    """Return a naive function of `fla.ops`.

    transformers' classes compute with the library as soon as it is imported, and fail without a GPU: they come first.
    """
    if str(INSTALLED) not in sys.path:
        sys.path.append(str(INSTALLED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no GPU
        result: Callable[..., Any] = getattr(import_module(f"fla.ops.{file}.naive"), function)
    return result


def _unscaled(q: Tensor) -> Tensor:
    # their functions multiply queries by 1 / sqrt(P), which ours have been before
    return q * q.shape[-1] ** 0.5


def _by_head(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in tensors)


def retention(ours: Any, size: int, states: tuple[Tensor], q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Outputs:
    return simple_gla(*states, q, k, v, a.expand(len(q), -1, -1), size=size)


def simple_gla(memory: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, *, size: int) -> Outputs:
    """One decay per head: of chunks of 64 tokens, their default."""
    k, q = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (k, q))
    if v.shape[1] == 1:
        return naive("simple_gla", "naive_recurrent_simple_gla")(q, k, v, a, 1.0, memory)  # type: ignore[no-any-return]
    return naive("simple_gla", "naive_chunk_simple_gla")(q, k, v, a, memory, True, scale=1.0)  # type: ignore[no-any-return]


def gla(ours: Any, size: int, states: tuple[Tensor], q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Outputs:
    return naive("gla", "naive_recurrent_gla")(_unscaled(q), k, v, a, *states, True)  # type: ignore[no-any-return]


def delta_rule(
    ours: Any, size: int, states: tuple[Tensor], q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> Outputs:
    inputs = _by_head(_unscaled(q), k, v, b)
    if v.shape[1] == 1:
        y, memory = naive("delta_rule", "delta_rule_recurrence")(*inputs, *states)
    else:
        y, memory = naive("delta_rule", "delta_rule_chunkwise")(*inputs)
    return y.transpose(1, 2), memory


def removal(
    ours: Any, size: int, states: tuple[Tensor], r: Tensor, k: Tensor, v: Tensor, w: Tensor, read: Tensor, write: Tensor
) -> Outputs:
    # what is removed is read before the decay of the step
    inputs = _by_head(_unscaled(r), k, v, read * w.exp(), write, w)
    form = "dplr_recurrence" if v.shape[1] == 1 else "dplr_chunkwise"
    y, memory = naive("generalized_delta_rule.dplr", form)(*inputs, *states)
    return y.transpose(1, 2), memory


class NaiveSparseAttention(NativeSparseAttention):
    """Native sparse attention of shared keys, over whole sequences."""

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        mixer = self.spec
        q = self._rotated(self._split(self.q(x), mixer.head_dim), context)
        new = self._keys("selected", x, context)
        q, k, v = _by_head(q, new.k, new.v)  # (B, T, H, P)
        block, scale = mixer.compression.block, mixer.head_dim**-0.5
        pooled = [pad(y, (0, 0, 0, 0, 0, -y.shape[1] % block)).unflatten(1, (-1, block)).mean(2) for y in (k, v)]
        compressed, _ = naive("nsa", "naive_nsa_compression")(q, *pooled, block, scale)
        chosen = naive("nsa", "naive_nsa_topk")(q, pooled[0], mixer.selection.top_blocks, block, scale)
        selected = naive("nsa", "naive_nsa_selection")(q, k, v, chosen, block, scale)
        gates = torch.sigmoid(self.gate(x)).unflatten(-1, (mixer.num_heads, 3, 1)).unbind(-2)
        heads = gates[0] * compressed + gates[1] * selected + gates[2] * self._window(q, k, v)
        return self.o(heads.flatten(2))

    def _window(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # flash-attn computes it for their layer
        positions = torch.arange(q.shape[1])
        distance = positions[:, None] - positions
        near = (distance >= 0) & (distance < self.spec.window)
        return scaled_dot_product_attention(*_by_head(q, k, v), near, enable_gqa=True).transpose(1, 2)


def form_of(mixer: spec.Mixer, d_model: int, batch: int, length: int, replaced: Replaced | None) -> tuple[
    nn.Module, Run, LayerState | None
]:  # fmt: skip
    """Return the mixer with its recurrence replaced, and the state of one more token (None: not computed alone).

    Without `replaced`, the mixer is native sparse attention.
    """
    place = Place(d_model, causal=True, layer=0)
    ours: Any = build_mixer(mixer, place)
    module: Any = ours if replaced is not None else NaiveSparseAttention(mixer, place)  # type: ignore[arg-type]
    for each in (ours, module):
        initialize(each, spec.NormalInitialization(), 1, seed=0)
    token = torch.randn(batch, 1, d_model)
    after = ForwardContext.of(token, torch.full((batch,), length))

    def run(x: Tensor, state: LayerState | None) -> Tensor:
        context = after if x.shape[1] == 1 else ForwardContext.of(x)
        if replaced is None:
            return module(x, context)  # type: ignore[no-any-return]
        file, (name, form) = sys.modules[type(module).__module__], replaced
        original = getattr(file, name)
        setattr(file, name, form)
        try:
            return module(x, context, state)  # type: ignore[no-any-return]
        finally:
            setattr(file, name, original)

    text = torch.randn(batch, length, d_model)
    with torch.no_grad():
        expected, result = ours(text, ForwardContext.of(text)), run(text, None)
        # the same mixer; for a few tokens, scores may be so close that rounding selects other keys
        assert (expected - result).abs().amax(-1).quantile(0.9) < 1e-4 * expected.abs().max(), mixer
    state = None if replaced is None else module.new_state(batch, length + 1, torch.float32, torch.device("cpu"))
    return module, run, state
