"""Who may look at whom, decided by positions alone."""

from jaxtyping import Bool, Int
from torch import Tensor


def causal(queries: Int[Tensor, "B T"], keys: Int[Tensor, "b S"]) -> Bool[Tensor, "B 1 T S"]:
    """True where the query at position i may see the key at position j: j <= i.

    Places of a buffer that hold nothing yet stand for later positions, so the same rule hides them.
    """
    return (keys[:, None, :] <= queries[:, :, None])[:, None]
