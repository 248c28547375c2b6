"""The inputs that all layers of one forward pass share: positions, padding, and tensors that are computed once."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.nn.shared_rows import PositionShares, SharedRows

T = TypeVar("T")
S = TypeVar("S")
Vectors = Float[Tensor, "B T D"]  # of each position
Tokens = Int[Tensor, "B T"]
LayerVectors = Float[Tensor, "B T D_p"]  # of each position, for one layer alone
Lengths = Int[Tensor, "B"]  # or any number of each row


@dataclass
class EncoderOutput:
    """An encoder's vectors, and how many of each row are not padding (None: all)."""

    vectors: Float[Tensor, "B S D"]
    num_tokens: Lengths | None


@dataclass
class ForwardContext:
    """The positions of one pass, and what all of its layers share.

    `positions` counts from 0 at a row's first token ever; padding, always at a row's end, goes on counting, so that
    what it leaves in a cache lies beyond the row's length, where no mask looks and the next tokens overwrite it.

    Attributes:
        positions: of the new tokens.
        num_tokens: how many of each row's tokens are not padding (None: all T of every row).
        starts_at_zero: every row starts at position 0 and sees nothing but these tokens.
        tokens: ids of the new tokens (None: the model reads vectors that stand for no token).
        encoder_output: what cross-attention attends to, where no cache has its keys and values.
        position_bias: the table of relative positions that the stack's layers share.
        document_ids: the document of each token, where several stand in a row and none is to see another; positions
            then count from the first token of each.
        rows: where all tokens stand, if several processes share the positions of each row; this context is then of
            those that this process has.
        aux_losses: scalars that parts add to the training loss.
        shared: results that layers share, by key.
        layer: index in its stack of the layer that runs, which may use an earlier one's weights.
        sources: indices of the layers of which later ones read what they leave (None: it may be every one).
        left: what these layers have left, by their index.
        layer_inputs: what the embedding gives single layers beside the stream, by their index.
    """

    positions: Int[Tensor, "B T"]
    num_tokens: Lengths | None
    starts_at_zero: bool
    tokens: Tokens | None = None
    encoder_output: EncoderOutput | None = None
    position_bias: nn.Module | None = None
    document_ids: Tokens | None = None
    rows: SharedRows | None = None
    aux_losses: list[Tensor] = field(default_factory=list)
    shared: dict[Hashable, Any] = field(default_factory=dict)
    layer: int = 0
    sources: frozenset[int] | None = None
    left: dict[int, Any] = field(default_factory=dict)
    layer_inputs: Mapping[int, LayerVectors] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        lengths: Lengths | None = None,
        num_tokens: Lengths | None = None,
        document_ids: Tokens | None = None,
    ) -> "ForwardContext":
        """The context of `tokens`, (B, T) or (B, T, D), after `lengths` earlier ones (None: they are the first)."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        ids = None if tokens.is_floating_point() else tokens
        if document_ids is not None:
            is_first = nn.functional.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0))
            first = (steps * is_first).cummax(1).values  # the place of each token's document
            return cls(steps - first, num_tokens, starts_at_zero=True, tokens=ids, document_ids=document_ids)
        if lengths is None:
            return cls(steps.expand(tokens.shape[:2]), num_tokens, starts_at_zero=True, tokens=ids)
        return cls(lengths[:, None] + steps, num_tokens, starts_at_zero=False, tokens=ids)

    def shared_by(self, shares: PositionShares | None) -> "ForwardContext":
        """The context of the positions that this process has; the same where processes share none."""
        if shares is None:
            return self
        ids = self.document_ids
        own_ids, own_tokens = (None if one is None else shares.own(one) for one in (ids, self.tokens))
        rows = SharedRows(shares, self.shared_positions, ids)
        own = shares.own(self.positions)
        return replace(self, positions=own, tokens=own_tokens, document_ids=own_ids, rows=rows)

    def own(self, x: Tensor) -> Tensor:
        """Cut whole rows to the positions of this process, the second dimension; all where processes share none."""
        return x if self.rows is None else self.rows.shares.own(x)

    @property
    def ends(self) -> Lengths:
        """Each row's length after these tokens."""
        first = self.positions[:, 0]
        return first + (self.positions.shape[1] if self.num_tokens is None else self.num_tokens)

    def is_last_of(self, num_places: int) -> bool:
        """Whether every row's tokens, none of which is padding, are the last of so many places of a cache.

        Of fewer tokens than places it is asked on a CPU alone, for a GPU would have to be waited for, and of several,
        for a step of one is recorded and goes on at another place.
        """
        length = self.positions.shape[1]
        if self.num_tokens is not None or length == num_places:
            return self.num_tokens is None
        if length == 1 or self.positions.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        ends = self.cached("ends of rows", lambda: self.positions[:, -1].tolist())
        return all(end == num_places - 1 for end in ends)

    @property
    def valid(self) -> Bool[Tensor, "B T"] | None:
        """False where a token is padding; None where none is."""
        if self.num_tokens is None:
            return None
        return torch.arange(self.positions.shape[1], device=self.positions.device) < self.num_tokens[:, None]

    @property
    def shared_positions(self) -> Int[Tensor, "b T"]:
        """The positions, as one row where all rows are alike."""
        return self.positions[:1] if self.starts_at_zero and self.document_ids is None else self.positions

    def within_documents(self, allowed: Bool[Tensor, "b 1 T S"]) -> Bool[Tensor, "b2 1 T S"]:
        """The pairs of new tokens that are allowed, without those of different documents."""
        if self.document_ids is None:
            return allowed
        return allowed & (self.document_ids[:, None, :, None] == self.document_ids[:, None, None, :])

    @property
    def aux_loss(self) -> Float[Tensor, ""] | None:
        """The sum of what parts add to the training loss; None where none adds anything."""
        return torch.stack(self.aux_losses).sum() if self.aux_losses else None

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result of `compute`, shared by all who ask under the same key during this pass."""
        if key not in self.shared:
            self.shared[key] = compute()
        result: T = self.shared[key]
        return result

    def leave(self, value: Any) -> None:
        """Leave a value of this pass, such as keys or values of its positions, for later layers of the stack.

        A layer leaves one value, which is kept where the `source` of a later layer's mixer is this layer. It is a
        result like the layer's vectors: gradients come back through it, and it is gone after the pass; what later
        tokens need belongs in a state.
        """
        if self.sources is None or self.layer in self.sources:
            self.left[self.layer] = value

    def left_by(self, layer: int) -> Any:
        """What an earlier layer of the stack has left."""
        cause = "it has left nothing, or no later layer's `source` names it"
        assert layer in self.left, f"layer {layer} has left nothing for layer {self.layer}: {cause}"
        return self.left[layer]

    def before(self, state: S) -> S:
        """What a state held before this pass.

        Activation checkpointing computes a block a second time, which must not start from what the first left there.
        """
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return state
        _, before = self.cached(("before", id(state)), lambda: (state, replace(state)))  # type: ignore[type-var]
        return before  # the state itself is held beside it, or another one might be made at its address


def mean_over_tokens(x: Vectors, num_tokens: Lengths | None) -> Float[Tensor, "B D"]:
    """The mean of each row's vectors at tokens that are not padding."""
    if num_tokens is None:
        return x.mean(1)
    is_token = torch.arange(x.shape[1], device=x.device) < num_tokens[:, None]
    return (x * is_token[..., None]).sum(1) / num_tokens[:, None]


def last_tokens(x: Vectors, context: ForwardContext) -> Float[Tensor, "B 1 D"]:
    """The vector of each row's last token that is not padding."""
    if context.num_tokens is None:
        return x[:, -1:]
    rows = torch.arange(x.shape[0], device=x.device)
    return x[rows, context.num_tokens.clamp(min=1) - 1][:, None]
