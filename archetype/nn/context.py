"""Inputs shared by all layers of one forward pass: positions, padding, and tensors computed once."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archetype.native.kernels import FUSED, Kernels
from archetype.nn.shared_rows import PositionShares, SharedRows
from archetype.nn.symbolic import is_symbolic

T = TypeVar("T")
S = TypeVar("S")
Vectors = Float[Tensor, "B T D"]  # one vector per position
Tokens = Int[Tensor, "B T"]
LayerVectors = Float[Tensor, "B T D_p"]  # one vector per position, for a single layer
Lengths = Int[Tensor, "B"]  # or any other integer per sequence
Attend = Callable[[nn.Module, Tensor, Tensor, Tensor, float, float], Tensor]
Observer = Callable[[nn.Module, str, Tensor], Tensor]  # of a module, the name of a value within it, and the value


@dataclass
class EncoderOutput:
    """Output vectors of an encoder, and the number of tokens in each sequence, padding excluded (None: no padding)."""

    vectors: Float[Tensor, "B S D"]
    num_tokens: Lengths | None


@dataclass
class ForwardContext:
    """Positions of one forward pass, and values shared by its layers.

    Positions count from 0 at the first token of a sequence. Padding is always at the end and continues the count, so
    its cache entries are beyond the sequence's length, where the mask hides them and later tokens overwrite them.

    Attributes:
        positions: positions of the new tokens.
        num_tokens: number of tokens in each sequence, padding excluded (None: no padding).
        starts_at_zero: whether every sequence starts at position 0, without cached tokens.
        tokens: ids of the new tokens (None: the inputs are vectors, not tokens).
        encoder_output: input of cross-attention, if no cache holds its keys and values.
        position_bias: relative position table shared by the layers of the stack.
        document_ids: document of each token, if several documents are packed into a sequence and must not see each
            other; positions then start at 0 in each document.
        is_clean: whether each position is in the second, unmasked copy of its sequence, if both copies are computed in
            one pass (`with_clean_copy`).
        rows: positions of whole sequences, if several processes split each sequence (context parallelism); the other
            fields then contain only the positions of this process.
        aux_losses: scalars that parts add to the training loss.
        shared: results of `cached`, keyed by the argument `key`.
        layer: index of the running layer in its stack; with shared weights, not the index of the module.
        sources: layers whose values later layers read by `left_by` (None: possibly all).
        left: values published by `leave`, keyed by layer index.
        later: outputs that are added after the next layer, keyed by the layer that computed them.
        routing: vectors of routers that the next layer's router reads, keyed by layer.
        layer_inputs: per-layer vectors of the token embedding, keyed by layer index.
        observer: receives, and may replace, the values that parts pass to `probe`.
        kernels: native operations, computed immediately or recorded (`archetype.native.kernels`).
        attend: attention function of another library, from the layer's module, queries, keys and values, scale of the
            scores and dropout probability, to the heads' outputs (None: this library's attention).
    """

    positions: Int[Tensor, "B T"]
    num_tokens: Lengths | None
    starts_at_zero: bool
    tokens: Tokens | None = None
    encoder_output: EncoderOutput | None = None
    position_bias: nn.Module | None = None
    document_ids: Tokens | None = None
    is_clean: Bool[Tensor, "T"] | None = None
    rows: SharedRows | None = None
    aux_losses: list[Tensor] = field(default_factory=list)
    shared: dict[Hashable, Any] = field(default_factory=dict)
    layer: int = 0
    sources: frozenset[int] | None = None
    left: dict[int, Any] = field(default_factory=dict)
    later: dict[int, Vectors] = field(default_factory=dict)
    routing: dict[int, Float[Tensor, "N R"]] = field(default_factory=dict)
    layer_inputs: Mapping[int, LayerVectors] = field(default_factory=dict)
    observer: Observer | None = None
    kernels: Kernels = FUSED
    attend: Attend | None = None

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        lengths: Lengths | None = None,
        num_tokens: Lengths | None = None,
        document_ids: Tokens | None = None,
        observer: Observer | None = None,
        kernels: Kernels = FUSED,
    ) -> "ForwardContext":
        """Return the context of `tokens`, (B, T) or (B, T, D), after `lengths` cached tokens (None: no cache)."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        ids = None if tokens.is_floating_point() else tokens
        if document_ids is not None:
            is_first = nn.functional.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0))
            first = (steps * is_first).cummax(1).values  # (B, T): where the document of each token starts
            return cls(
                steps - first, num_tokens, True, ids, document_ids=document_ids, observer=observer, kernels=kernels
            )
        positions = steps.expand(tokens.shape[:2]) if lengths is None else lengths[:, None] + steps
        return cls(positions, num_tokens, lengths is None, ids, observer=observer, kernels=kernels)

    def shared_by(self, shares: PositionShares | None) -> "ForwardContext":
        """Return the context for the positions of this process; self if `shares` is None (no context parallelism)."""
        if shares is None:
            return self
        ids = self.document_ids
        own_ids, own_tokens = (None if x is None else shares.own(x) for x in (ids, self.tokens))
        rows = SharedRows(shares, self.shared_positions, ids)
        own_positions = shares.own(self.positions)
        return replace(self, positions=own_positions, tokens=own_tokens, document_ids=own_ids, rows=rows)

    def own(self, x: Tensor) -> Tensor:
        """Select this process's positions of sequences (B, S, ...), or all without context parallelism."""
        return x if self.rows is None else self.rows.shares.own(x)

    @property
    def ends(self) -> Lengths:
        """Length of each sequence after these tokens."""
        first = self.positions[:, 0]
        return first + (self.positions.shape[1] if self.num_tokens is None else self.num_tokens)

    def is_last_of(self, num_slots: int) -> bool:
        """Return whether every sequence's new tokens, ignoring padding, occupy the end of a cache of `num_slots` slots.

        Returns False if the answer depends on values of `positions` in a decode step or on a GPU, or on symbolic sizes.
        """
        # With fewer tokens than slots, the answer depends on the positions. Reading them would synchronize a GPU, and a
        # recorded decode step is replayed at other positions.
        length = self.positions.shape[1]
        if self.num_tokens is not None or is_symbolic(length):
            return False
        if length == num_slots:
            return True
        if length == 1 or self.positions.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        ends = self.cached("ends of rows", lambda: self.positions[:, -1].tolist())
        return all(end == num_slots - 1 for end in ends)

    @property
    def valid(self) -> Bool[Tensor, "B T"] | None:
        """Mask that is False at padding; None if there is no padding."""
        if self.num_tokens is None:
            return None
        return torch.arange(self.positions.shape[1], device=self.positions.device) < self.num_tokens[:, None]

    def fill_padding(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Return values of the new tokens, (B, T, ...), with `value` at padding."""
        if (valid := self.valid) is None:
            return x
        return x.masked_fill(~valid.view(*valid.shape, *(1,) * (x.dim() - 2)), value)

    @property
    def shared_positions(self) -> Int[Tensor, "b T"]:
        """`positions`, reduced to one row if they are the same in every sequence."""
        return self.positions[:1] if self.starts_at_zero and self.document_ids is None else self.positions

    def within_documents(self, allowed: Bool[Tensor, "b 1 T S"]) -> Bool[Tensor, "b2 1 T S"]:
        """Return the allowed pairs whose tokens are in the same document."""
        if self.document_ids is None:
            return allowed
        return allowed & (self.document_ids[:, None, :, None] == self.document_ids[:, None, None, :])

    def with_clean_copy(self) -> "ForwardContext":
        """Return the context of whole sequences whose second half is a copy of the first half without masks."""
        steps = torch.arange(self.positions.shape[1], device=self.positions.device)
        half = self.positions.shape[1] // 2
        return replace(self, positions=self.positions % half, is_clean=steps >= half)

    def between_copies(self, allowed: Bool[Tensor, "b 1 T S"]) -> Bool[Tensor, "b 1 T S"]:
        """Return the allowed pairs of the masked and the clean copy: masked tokens see only clean earlier blocks.

        Positions of one block see each other, and no position of an earlier block sees them (Arriola 2025, figure 3).
        """
        if self.is_clean is None:
            return allowed
        in_block = allowed & allowed.transpose(-1, -2)
        of_masked = torch.where(self.is_clean, allowed & ~in_block, in_block)  # keys of a masked query
        return torch.where(self.is_clean[:, None], allowed & self.is_clean, of_masked)

    @property
    def aux_loss(self) -> Float[Tensor, ""] | None:
        """Sum of `aux_losses`; None without auxiliary losses."""
        return torch.stack(self.aux_losses).sum() if self.aux_losses else None

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, computed once per pass for each key."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]

    def probe(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Return x, an intermediate value of a part, or the observer's replacement.

        Args:
            module: module of the part; its class attribute `probes` maps names to shapes.
            name: name of the value in `probes`.
            x: the value.
        """
        return x if self.observer is None or torch.compiler.is_compiling() else self.observer(module, name, x)

    def probes(self, module: nn.Module, **values: Tensor) -> tuple[Tensor, ...]:
        """Return intermediate values of a part as `probe` does, in order."""
        return tuple(self.probe(module, name, x) for name, x in values.items())

    def leave(self, value: Any) -> None:
        """Publish a value of this layer, such as its keys and values, for later layers of the same pass.

        A layer publishes at most one value, which is kept only if the `source` of a later mixer names the layer.
        Gradients flow through it. Values that later tokens need belong in the layer's state.
        """
        # without sources the index is not read, for which a block would be compiled once more
        if self.sources is None or (self.sources and self.layer in self.sources):
            self.left[self.layer] = value

    def left_by(self, layer: int) -> Any:
        """Return the value that an earlier layer of the stack published with `leave`."""
        # kept by `leave` only if `source` of a later mixer names the layer
        cause = "it has left nothing, or no later layer's `source` names it"
        assert layer in self.left, f"layer {layer} has left nothing for layer {self.layer}: {cause}"
        return self.left[layer]

    def before(self, state: S) -> S:
        """Return the state before this pass.

        With activation checkpointing, a block runs twice, and must start from the same state both times.
        """
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return state
        _, before = self.cached(("before", id(state)), lambda: (state, replace(state)))  # type: ignore[type-var]
        return before  # the cached pair also holds `state`, so that no other object gets the same id()


def mean_over_tokens(x: Vectors, num_tokens: Lengths | None) -> Float[Tensor, "B D"]:
    """Return the mean vector of each sequence, padding excluded."""
    if num_tokens is None:
        return x.mean(1)
    is_token = torch.arange(x.shape[1], device=x.device) < num_tokens[:, None]
    return (x * is_token[..., None]).sum(1) / num_tokens[:, None]


def last_tokens(x: Vectors, context: ForwardContext) -> Float[Tensor, "B 1 D"]:
    """Return the vector of each sequence's last token that is not padding."""
    if context.num_tokens is None:
        return x[:, -1:]
    rows = torch.arange(x.shape[0], device=x.device)
    return x[rows, context.num_tokens.clamp(min=1) - 1][:, None]
