"""Who may look at whom, decided by positions alone."""

from jaxtyping import Bool, Int
from torch import Tensor

from archetype import spec


def causal(queries: Int[Tensor, "B T"], keys: Int[Tensor, "b S"]) -> Bool[Tensor, "B 1 T S"]:
    """True where the query at position i may see the key at position j: j <= i.

    Places of a buffer that hold nothing yet stand for later positions, so the same rule hides them.
    """
    return (keys[:, None, :] <= queries[:, :, None])[:, None]


def allowed(
    pattern: spec.Pattern, setting: spec.MaskContext, queries: Int[Tensor, "b T"], keys: Int[Tensor, "b2 S"]
) -> Bool[Tensor, "b3 1 T S"]:
    """True where the pattern lets the query at position i see the key at position j."""
    pairs: Tensor = pattern.allows(queries[:, None, :, None], keys[:, None, None, :], setting)
    return pairs


def present(num_tokens: Int[Tensor, "B"], keys: Int[Tensor, "S"]) -> Bool[Tensor, "B 1 1 S"]:
    """True where a key is no padding, of rows that start at position 0."""
    return (keys < num_tokens[:, None])[:, None, None]
