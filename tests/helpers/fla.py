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
from torch.nn.functional import silu

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
    module, functions = STANDINS.get(name, ("", ()))
    for function in functions:
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


def mamba3_siso_combined(Q: Tensor, K: Tensor, Z: Tensor | None = None, **inputs: Any) -> Tensor:
    """Mamba-3 with one vector per step, which turns neighbouring features."""
    Q_bias, K_bias = inputs.pop("Q_bias"), inputs.pop("K_bias")
    y = _mamba3(Q[:, :, None], K[:, :, None], Q_bias[:, None], K_bias[:, None], neighbours=True, **inputs)[:, :, 0]
    return y if Z is None else y * silu(Z)


def mamba3_mimo_combined(Q: Tensor, K: Tensor, V: Tensor, Z: Tensor | None = None, **inputs: Any) -> Tensor:
    """Mamba-3 with several vectors per step, which turns the features i and i + N / 2."""
    of_ranks = {name: inputs.pop(f"MIMO_{name}") for name in ("V", "Z", "Out")}  # (H, r, P)
    y = _mamba3(Q, K, V=V, MIMO_V=of_ranks["V"], neighbours=False, **inputs)
    if Z is not None:
        y = y * silu(torch.einsum("bthp,hrp->btrhp", Z, of_ranks["Z"]))
    return y if of_ranks["Out"] is None else torch.einsum("btrhp,hrp->bthp", y, of_ranks["Out"])


def _mamba3(
    Q: Tensor, K: Tensor, Q_bias: Tensor, K_bias: Tensor, V: Tensor, ADT: Tensor, DT: Tensor, Trap: Tensor,
    Angles: Tensor, D: Tensor, MIMO_V: Tensor | None = None, *, neighbours: bool, **options: Any,
) -> Tensor:  # fmt: skip
    """All pairs of positions at once: y_t = sum_s (Q_t K_s) exp(sum of ADT after s) w_ts V_s, with turned Q and K.

    A position is written with its own weight, DT Trap, and to later ones also with DT (1 - Trap) of the next. Names
    and shapes are mamba_ssm's: Q and K (B, T, r, K, N), V (B, T, H, P), y (B, T, r, H, P).
    """
    heads, length = V.shape[2], V.shape[1]
    angles = (torch.pi * torch.tanh(Angles) * DT.transpose(1, 2)[..., None]).cumsum(1)[:, :, None]  # (B, T, 1, H, a)
    turns = torch.polar(torch.ones_like(angles), angles)

    def turned(x: Tensor, bias: Tensor) -> Tensor:
        x = x.repeat_interleave(heads // x.shape[3], dim=3) + bias.transpose(0, 1)
        pairs = x.unflatten(-1, (-1, 2)) if neighbours else x.unflatten(-1, (2, -1)).mT  # (B, T, r, H, N / 2, 2)
        first = torch.view_as_real(torch.view_as_complex(pairs[..., : turns.shape[-1], :].contiguous()) * turns)
        pairs = torch.cat((first, pairs[..., turns.shape[-1] :, :]), dim=-2)
        return (pairs if neighbours else pairs.mT).flatten(-2)

    scores = torch.einsum("btrhn,bsqhn->bhtrsq", turned(Q, Q_bias), turned(K, K_bias))
    sums = ADT.cumsum(-1)  # (B, H, T)
    decays = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
    share = torch.sigmoid(Trap)
    again = torch.nn.functional.pad((DT * (1 - share))[..., 1:], (0, 1))
    weights = (DT * share)[..., None, :] + again[..., None, :] * torch.ones(length, length).tril(-1)
    values = V[:, :, None] if MIMO_V is None else torch.einsum("bthp,hrp->btrhp", V, MIMO_V)
    return torch.einsum("bhtrsq,bhts,bsqhp->btrhp", scores, decays * weights, values) + D[:, None] * values


STANDINS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "nsa.NativeSparseAttention": ("fla.ops.nsa.parallel", (flash_attn_func,)),
    "mamba3.Mamba3": ("fla.layers.mamba3", (mamba3_siso_combined, mamba3_mimo_combined)),
}
