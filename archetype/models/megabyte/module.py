"""MegaByte: a global model over patches of bytes, and a local model within each patch (Yu 2023, section 2).

The paper predicts byte t from the bytes before it. Here, as in all models, the logits at position t predict byte t + 1
and are computed in the patch of byte t + 1; byte 0 is not predicted. The global model reads a learned start vector and
then every complete patch: its output after k patches is the context of patch k.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype.models.causal import CausalModel
from archetype.models.initialization import init_weight
from archetype.models.megabyte.spec import MegaByte as MegaByteSpec
from archetype.models.output import Output
from archetype.models.stack.module import Stack
from archetype.nn.context import ForwardContext, Lengths, Tokens
from archetype.nn.layer_state import LayerState
from archetype.nn.registry import module_for
from archetype.nn.state import State
from archetype.parts.embedding.module import check_positions_fit, table
from archetype.parts.position.module import Learned
from archetype.parts.position.spec import Learned as LearnedSpec
from archetype.weights.linear import Linear
from archetype.weights.packed import Weight


@dataclass
class PatchState(LayerState):
    """State of a global layer: the first slot holds the start vector, each later slot a complete patch."""

    can_shorten: ClassVar[bool] = False  # within a patch
    layer: LayerState
    patch_size: int

    def narrow(self, slots: int) -> "PatchState":
        # `slots` counts bytes, and a patch of bytes fills one slot
        return PatchState(self.layer.narrow(slots // self.patch_size + 1), self.patch_size)

    def _values(self) -> Iterator[tuple[str, Tensor | LayerState]]:
        yield "layer", self.layer


@dataclass
class PartialPatch(LayerState):
    """The current patch of each row: its bytes, undefined where not yet written, and its context."""

    tokens: Int[Tensor, "B J"]
    context: Float[Tensor, "B D_g"]

    def update(self, tokens: Tensor, context: Tensor) -> None:
        self.tokens, self.context = tokens, context.to(self.context.dtype)


class WithStartToken(nn.Module):
    """An embedding with a learned start vector."""

    def __init__(self, model: MegaByteSpec, d_model: int) -> None:
        super().__init__()
        self.spec = model
        self.start = nn.Parameter(torch.empty(d_model))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        # drawn like a table with one row
        init_weight(tensor[None], f"embedding.{name}", self.spec.initialization, self.spec.num_layers, generator)
        return True


class GlobalEmbedding(WithStartToken):
    """Byte vectors plus position vectors. The vectors of a patch's J bytes are concatenated to D_g features."""

    def __init__(self, model: MegaByteSpec) -> None:
        super().__init__(model, model.global_model.d_model)
        share = model.global_model.d_model // model.patch_size
        self.token = table(model.vocab_size, share)
        self.position = Learned(LearnedSpec(), model.context_length, share)

    def forward(self, text: Int[Tensor, "B M J"], first: Int[Tensor, "b 1"]) -> Float[Tensor, "B M D_g"]:
        # vectors of patches; the first patch has index `first` in its sequence
        offsets = torch.arange(text.shape[1] * text.shape[2], device=text.device)
        positions = self.position(first * text.shape[2] + offsets).unflatten(1, text.shape[1:])
        return (self.token(text) + positions).flatten(2)  # (B, M, J, D_g / J) -> (B, M, D_g)


class LocalEmbedding(WithStartToken):
    """Vector of the previous byte for each byte of a patch, and the start vector for its first byte."""

    def __init__(self, model: MegaByteSpec) -> None:
        super().__init__(model, model.local_model.d_model)
        self.token = table(model.vocab_size, model.local_model.d_model)

    def forward(self, text: Int[Tensor, "B M J"]) -> Float[Tensor, "B M J D"]:
        start = self.start.expand(*text.shape[:2], 1, -1)  # (B, M, 1, D)
        return torch.cat((start, self.token(text[..., :-1])), dim=2)


@module_for(MegaByteSpec)
class MegaByte(CausalModel):
    """A large model over patches, and a small model that generates the bytes of each patch."""

    probes: ClassVar = {"contexts": "B M D_g"}  # context of each patch, from the global to the local model
    spec: MegaByteSpec

    def __init__(self, model: MegaByteSpec) -> None:
        super().__init__()
        self.spec = model
        self.global_embedding, self.local_embedding = GlobalEmbedding(model), LocalEmbedding(model)
        self.global_model, self.local_model = (Stack(stack) for stack in model.stacks)
        d_model = model.local_model.d_model
        self.projection = Linear(model.global_model.d_model // model.patch_size, d_model)
        self.add_head(model.head, model.vocab_size, d_model)

    @property
    def token_table(self) -> Weight:
        # of the local embedding, whose vectors have the width that the head reads
        return self.local_embedding.token.weight

    @torch.no_grad()
    def new_layers(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> list[LayerState]:
        # the global layers have read the start vector, and the current patch is empty
        size = self.spec.patch_size
        # one slot per patch, and one for the start vector
        layers = self.global_model.new_layers(batch, capacity // size + 1, dtype, device)
        lengths = torch.zeros(batch, dtype=torch.long, device=device)
        start = self.global_embedding.start.expand(batch, 1, -1)
        contexts = self._globally(start, self.context(start, lengths), layers)
        partial = PartialPatch(lengths[:, None].repeat(1, size), contexts[:, 0].to(dtype))
        return [*(PatchState(layer, size) for layer in layers), partial]

    def forward(
        self,
        tokens: Tokens,
        state: State | None = None,
        num_tokens: Lengths | None = None,
        last_only: bool = False,
        with_logits: bool = True,
    ) -> Output:
        """Return logits of the byte after each position, (B, T, V), and the state; see `CausalModel`."""
        check_positions_fit(tokens.shape[1], self.spec.context_length)
        context = self.context(tokens, state.lengths if state else None, num_tokens)
        text = self._patches(tokens, context, state)  # (B, M, J)
        contexts = context.probe(self, "contexts", self._contexts(text, context, state))  # (B, M, D_g)
        first = context.shared_positions[:, :1] // self.spec.patch_size  # index of the first patch of `text`
        newest = context.ends[:, None] // self.spec.patch_size  # (B, 1): patch of the byte after each row's last
        rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
        patch, patch_context = text[rows, newest - first][:, 0], contexts[rows, newest - first][:, 0]
        answered = context.shared_positions + 1  # positions of the bytes that the logits predict
        if state is not None:
            _partial(state).update(patch, patch_context)
        if last_only:
            text, contexts, first, answered = patch[:, None], patch_context[:, None], newest, context.ends[:, None]
        x = self._locally(text, contexts, first, context)[rows, answered - first * self.spec.patch_size]  # (B, t, D)
        logits = self.lm_head(x, self.token_table) if with_logits else None  # (B, t, V)
        return Output(logits, state.advance(context.ends) if state else None, context.aux_loss, x)

    def _patches(self, tokens: Tokens, context: ForwardContext, state: State | None) -> Int[Tensor, "B M J"]:
        # The first patch includes the current patch's bytes, the last may have free places. Bytes are shifted by the
        # number already in the current patch, so that the patches of all rows are aligned.
        size, length = self.spec.patch_size, tokens.shape[1]
        if state is None:
            count = length // size + 1
            return nn.functional.pad(tokens, (0, count * size - length)).unfold(1, size, size)
        count = (length - 1) // size + 2
        offsets = torch.arange(count * size, device=tokens.device)
        had = context.positions[:, :1] % size
        # (B, M J), index of each byte among the bytes of the partial patch (J of them) and the new tokens
        source = torch.where(offsets < had, offsets, offsets - had + size).clamp(max=size + length - 1)
        return torch.cat((_partial(state).tokens, tokens), dim=1).gather(1, source).view(-1, count, size)

    def _contexts(
        self, text: Int[Tensor, "B M J"], context: ForwardContext, state: State | None
    ) -> Float[Tensor, "B M D_g"]:
        # the global model's caches then hold all complete patches
        size = self.spec.patch_size
        first = context.shared_positions[:, :1] // size
        x = self.global_embedding(text[:, :-1], first)  # (B, M - 1, D_g): the last patch is not complete
        if state is None:
            x = torch.cat((self.global_embedding.start.expand(x.shape[0], 1, -1), x), dim=1)
            # with the start vector
            num_patches = None if context.num_tokens is None else context.num_tokens // size + 1
            return self._globally(x, _context_of(context, x, num_tokens=num_patches))
        complete = context.ends // size - first[:, 0]  # (B,), patches that the new bytes complete
        # only one in J decoded bytes completes a patch: this check (a synchronization) is cheaper than a needless step,
        # which an exported program takes, since its operations do not depend on values
        if torch.compiler.is_exporting() or bool((complete > 0).any()):
            layers = [layer.layer for layer in state.layers if isinstance(layer, PatchState)]
            x = self._globally(x, _context_of(context, x, first[:, 0] + 1, complete), layers)
        return torch.cat((_partial(state).context[:, None].to(x.dtype), x), dim=1)

    def _globally(
        self, x: Float[Tensor, "B M D_g"], context: ForwardContext, layers: list[LayerState] | None = None
    ) -> Float[Tensor, "B M D_g"]:
        state = None if layers is None else State(context.positions[:, 0], layers, x.shape[1])
        return self.global_model.final_norm(self.global_model.run(x, context, state), context)

    def _locally(
        self,
        text: Int[Tensor, "B M J"],
        contexts: Float[Tensor, "B M D_g"],
        first: Int[Tensor, "b 1"],
        context: ForwardContext,
    ) -> Float[Tensor, "B S D"]:
        # each patch is a separate sequence; a byte sees those before it
        size = self.spec.patch_size
        x = self.local_embedding(text) + self.projection(contexts.unflatten(2, (size, -1)))  # (B, M, J, D)
        starts = (first + torch.arange(text.shape[1], device=text.device)) * size
        num_tokens = (context.ends[:, None] + 1 - starts).clamp(0, size)  # including the byte after each row's last
        x = x.flatten(0, 1)  # (B M, J, D)
        inner = _context_of(context, x, num_tokens=num_tokens.flatten())
        y: Tensor = self.local_model.final_norm(self.local_model.run(x, inner), inner)
        return y.unflatten(0, text.shape[:2]).flatten(1, 2)


def _partial(state: State) -> PartialPatch:
    partial = state.layers[-1]
    assert isinstance(partial, PartialPatch)
    return partial


def _context_of(
    context: ForwardContext, x: Tensor, lengths: Tensor | None = None, num_tokens: Tensor | None = None
) -> ForwardContext:
    # another stack of the same pass; parts of both add to one list of losses
    inner = ForwardContext.of(x, lengths, num_tokens, observer=context.observer, kernels=context.kernels)
    return replace(inner, aux_losses=context.aux_losses)
