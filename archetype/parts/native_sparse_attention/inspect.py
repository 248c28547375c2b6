"""Views of native sparse attention: the selected keys' weights, and the mean gate of each branch for each token."""

from collections.abc import Iterator

from archetype.nn.inspect import AttentionSteps, PartTrace, Series, Shown
from archetype.nn.selection import Choice
from archetype.parts.attention.inspect import attention_steps
from archetype.parts.attention.keys import Keys
from archetype.parts.native_sparse_attention.spec import BRANCHES, NativeSparseAttention
from archetype.spec.registry import provides


def attention(part: PartTrace) -> AttentionSteps:
    assert part.context is not None
    q, k, v = (part.activations[name] for name in "qkv")
    score = part.module.score_function
    keys = Keys(k, v, choice=Choice(part.activations.get("chosen")))
    q, mask = part.module.selected.masked(q, keys, score, None, part.context)
    return attention_steps(score, q, k, v, mask)


def gates(part: PartTrace) -> Iterator[Series]:
    means = part.activations["gates"][0].float().mean(1)  # (T, 3) of (T, H, 3)
    return (Series(part.path, f"gate of {name}", means[:, index]) for index, name in enumerate(BRANCHES))


provides("inspect", NativeSparseAttention)(Shown(attention=attention, series=gates))
