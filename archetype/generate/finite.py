"""Check for NaN and infinite logits. The error names the first layer that produced such a value."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from archetype.errors import CheckpointError
from archetype.nn.cache import KeepsKeys


def check_finite(logits: Tensor, model: nn.Module, rerun: Callable[[], Any]) -> None:
    """Raise an error if logits (rows, V) contain NaN or infinity.

    Args:
        rerun: runs the same pass without a cache; called only if the logits are not finite.

    Raises:
        CheckpointError: a logit is NaN or infinite.
    """
    if bool(logits.sum().isfinite()) or bool(logits.isfinite().all()):  # the sum of finite numbers may overflow
        return
    where = first_not_finite(model, rerun)
    if not where and any(
        module.cache_dtype == torch.float16 for module in model.modules() if isinstance(module, KeepsKeys)
    ):
        raise CheckpointError("state_dtype", "a key or value exceeds 65,504, the range of float16", "use bfloat16")
    cause = f"the first NaN or infinite number is computed by {where}" if where else "some are NaN or infinite"
    raise CheckpointError("logits", cause, "check the weights there, or compute in float32")


def first_not_finite(model: nn.Module, run: Callable[[], Any]) -> str:
    """Return the path of the first module that computes NaN or infinity, as output or as a submodule's input, or ""."""
    bad: list[str] = []
    paths = {module: path for path, module in model.named_modules()}

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not bad and not all(map(_is_finite, inputs)):
            bad.append(paths[module].rpartition(".")[0])

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not bad and not _is_finite(output):
            bad.append(paths[module])

    hooks = [module.register_forward_pre_hook(before) for module in paths]
    hooks += [module.register_forward_hook(after) for module in paths]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return bad[0] if bad else ""


def _is_finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(value.isfinite().all())
