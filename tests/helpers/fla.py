"""flash-linear-attention in a process of its own, where Triton interprets its kernels on the processor.

There, its layers are computed as they are published, without a GPU. Here, nothing is imported that would change what
PyTorch or transformers find installed.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

INSTALLED = Path(__file__).parent.parent.parent / ".venv-fla"  # by `make fla`


class FLA:
    """The library's layers and functions."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.pool = pool

    def layer(self, name: str, fields: dict[str, Any], tensors: dict[str, Tensor], x: Tensor, **inputs: Any) -> Any:
        """Return the tensors that a layer (`file.Class` within `fla.layers`) returns, without gradients."""
        return self.pool.submit(_layer, name, fields, tensors, x, inputs).result()

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return what a function (`file.function` within `fla.ops`) returns."""
        return self.pool.submit(_call, name, arguments, options).result()


@contextmanager
def opened() -> Iterator[FLA]:
    """Yield the library; its process ends with the context."""
    with ProcessPoolExecutor(1, get_context("spawn"), interpret) as pool:
        yield FLA(pool)


def interpret() -> None:
    """Have this process find the library, and interpret its kernels."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.append(str(INSTALLED))
    warnings.simplefilter("ignore")  # there is no GPU
    torch.set_num_threads(1)
    backends: Any = import_module("triton.backends.compiler")
    runtime: Any = import_module("triton.runtime")
    target = backends.GPUTarget("cpu", 0, 0)
    runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_active_torch_device=lambda: torch.device("cpu"),
            get_benchmarker=lambda: lambda run, **options: [0.0, 0.0, 0.0],  # every setting of a kernel is as good
        )
    )


@torch.no_grad()
def _layer(name: str, fields: dict[str, Any], tensors: dict[str, Tensor], x: Tensor, inputs: dict[str, Any]) -> Any:
    file, _, kind = name.rpartition(".")
    library = import_module(f"fla.layers.{file}")
    for module, function in STANDINS.get(name, {}).items():
        setattr(import_module(module), function.__name__, function)
    layer = getattr(library, kind)(**fields).eval()
    layer.load_state_dict(tensors)
    run = layer.cuda_kernels_forward if kind == "Mamba3" else layer  # whose `forward` only looks for a GPU before it
    return [y for y in run(x, **inputs) if isinstance(y, Tensor)]


def _call(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    file, _, function = name.rpartition(".")
    return getattr(import_module(f"fla.ops.{file}"), function)(*arguments, **options)


# What two layers import from libraries for CUDA alone, as these define it.


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int]) -> Tensor:
    """Attention of (B, T, H, P) queries to the `window_size[0]` positions before each and to its own (-1: to all)."""
    positions = torch.arange(q.shape[1])
    distance = positions[:, None] - positions
    near = (distance >= 0) & ((distance <= window_size[0]) | (window_size[0] < 0))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, near, enable_gqa=True)
    return y.transpose(1, 2)


def mamba3_siso_combined(
    Q: Tensor, K: Tensor, V: Tensor, ADT: Tensor, DT: Tensor, Trap: Tensor, Q_bias: Tensor, K_bias: Tensor,
    Angles: Tensor, D: Tensor, Z: Tensor | None, **options: Any,
) -> Tensor:  # fmt: skip
    """All pairs of positions at once: y_t = sum_s (Q_t K_s) exp(sum of ADT after s) w_ts V_s, with turned Q and K.

    A position is written with its own weight, DT Trap, and to later ones also with DT (1 - Trap) of the next.
    """
    heads, length = V.shape[2], V.shape[1]
    angles = (torch.pi * torch.tanh(Angles) * DT.transpose(1, 2)[..., None]).cumsum(1)  # (B, T, H, angles)
    turns = torch.polar(torch.ones_like(angles), angles)

    def turned(x: Tensor, bias: Tensor) -> Tensor:  # (B, H, T, N)
        x = x.repeat_interleave(heads // x.shape[2], dim=2) + bias
        pairs, rest = x[..., : 2 * turns.shape[-1]], x[..., 2 * turns.shape[-1] :]
        pairs = torch.view_as_real(torch.view_as_complex(pairs.unflatten(-1, (-1, 2)).contiguous()) * turns)
        return torch.cat((pairs.flatten(-2), rest), dim=-1).transpose(1, 2)

    scores = turned(Q, Q_bias) @ turned(K, K_bias).mT  # (B, H, T, T)
    sums = ADT.cumsum(-1)
    decays = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
    share = torch.sigmoid(Trap)
    again = torch.nn.functional.pad((DT * (1 - share))[..., 1:], (0, 1))  # (B, H, T)
    weights = (DT * share)[..., None, :] + again[..., None, :] * torch.ones(length, length).tril(-1)
    y = (scores * decays * weights @ V.transpose(1, 2)).transpose(1, 2) + D[:, None] * V
    return y if Z is None else y * torch.nn.functional.silu(Z)


STANDINS: dict[str, dict[str, Any]] = {
    "nsa.NativeSparseAttention": {"fla.ops.nsa.parallel": flash_attn_func},
    "mamba3.Mamba3": {"fla.layers.mamba3": mamba3_siso_combined},
}
