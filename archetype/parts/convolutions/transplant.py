"""Transplants into parts with short convolutions."""

from typing import Any

from archetype.nn.transfer import Transfer


def begin_convolutions(at: Transfer[Any]) -> None:
    """Initialize kernels to zero if the donor has no convolutions, so the output is unchanged."""
    new = at.new.convolutions
    if new is not None and new.residual and at.old.convolutions is None:
        for name in sorted(name for name in at.left if name.startswith("convolutions.")):
            at.fill(name, 0.0)
        at.old = at.old.model_copy(update={"convolutions": new})
