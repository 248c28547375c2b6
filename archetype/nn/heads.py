"""Head projections of mixers, which mixers of another kind can reuse."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.nn.ledger import Start
from archetype.nn.transfer import FOLDED, S, Transfer
from archetype.nn.transplant import Transplant, transplant_of
from archetype.roles.position import MixerPosition
from archetype.roles.selection import KeySelection
from archetype.spec.base import Spec

Index = TypeVar("Index", bound=KeySelection)


@dataclass(frozen=True)
class Heads:
    """Projections of a mixer with heads, of D features. The last of D + 1 columns is the bias, or zero.

    Attributes:
        q: of each query head.
        k: of each key head; a key head is read by as many query heads as any other, in turn.
        v: of each value head.
        o: from the heads to the output.
        sources: names of the tensors of each matrix.
        o_bias: bias of the output.
        scale: factor of the products of queries and keys.
        position: positions by which queries and keys are rotated, or which are added to their products.
        unlike: fields of the mixer because of which its output is not softmax(scale q k^T) v, then o.
    """

    q: Float[Tensor, "H P columns"]
    k: Float[Tensor, "K P columns"]
    v: Float[Tensor, "value_heads Q columns"]
    o: Float[Tensor, "D value_heads Q"]
    sources: Mapping[str, tuple[str, ...]]
    o_bias: Float[Tensor, "D"] | None = None
    scale: float = 1.0
    position: MixerPosition | None = None
    unlike: tuple[str, ...] = ("recurrence",)


class Projection(NamedTuple):
    """Rows of a module's matrix that project to heads, or columns that project from them."""

    module: str
    start: int
    heads: int
    features: int

    @classmethod
    def of(cls, module: str, dimension: str, index: int, sizes: Mapping[str, int]) -> "Projection":
        """Return a term of a dimension such as "HP|HP|KZ": its last letter counts the features of a head."""
        terms = [[sizes[letter] for letter in term] for term in dimension.split("|")]
        *heads, features = terms[index]
        return cls(module, sum(map(math.prod, terms[:index])), math.prod(heads), features)

    def rows(self, tensor: Tensor) -> Float[Tensor, "heads features *dims"]:
        """Return a view of these rows of a matrix or a bias, by head."""
        rows = tensor.narrow(0, self.start, self.heads * self.features)
        return rows.view(self.heads, self.features, *tensor.shape[1:])


class HeadsTransplant(Transplant[S]):
    """Base of mixers that can reuse each other's head projections.

    Softmax attention becomes a recurrence with its own queries, keys, values and output projection (Kasai 2021, T2R;
    Mercat 2024, SUPRA; Wang 2024, The Mamba in the Llama), whose outputs are then trained towards those of the donor
    (Zhang 2024, LoLCATs). Heads are repeated, or averaged in groups, to as many as the new mixer has. A norm of their
    outputs begins with the size that the donor's outputs have on the text.

    Attributes:
        matrices: module of queries, keys, values and the output projection, and which term of its layout they are.
        convolutions: causal convolutions after the projections, initialized to the identity on the newest position.
    """

    matrices: ClassVar[Mapping[str, tuple[str, int]]] = {letter: (letter, 0) for letter in "qkvo"}
    convolutions: ClassVar[tuple[str, ...]] = ("conv",)

    def has_heads(self, part: S) -> bool:
        """Return whether a part has head projections that other mixers can reuse."""
        return True

    def projections(self, part: S, sizes: Mapping[str, int]) -> Mapping[str, Projection]:
        """Return the projections of a part to queries, keys and values, and the one from heads to its output."""
        layouts, sizes = self.all_layouts(part), self.sizes(part, sizes)
        return {
            letter: Projection.of(module, layouts[f"{module}.weight"].split()[letter == "o"], index, sizes)
            for letter, (module, index) in self.matrices.items()
            if f"{module}.weight" in layouts
        }

    def heads(self, part: S, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Heads:
        """Return the projections of a part with these tensors, in a model with these sizes."""
        projections = self.projections(part, sizes)
        q, k, v = (each.rows(with_bias(tensors, each.module)) for each in (projections[letter] for letter in "qkv"))
        sources = {letter: (f"{each.module}.weight",) for letter, each in projections.items()}
        output, _, heads, features = projections["o"]
        o = tensors[f"{output}.weight"].unflatten(1, (heads, features))
        return Heads(q, k, v, o, sources, tensors.get(f"{output}.bias"))

    def takes(self, old: Spec, new: S) -> bool:
        return super().takes(old, new) or (self.has_heads(new) and gives_heads(old))

    def transfer(self, at: Transfer[S]) -> None:
        if Transplant.takes(self, at.old, at.new):
            super().transfer(at)
        else:
            self.take_heads(at, heads_of(at))

    def take_heads(self, at: Transfer[S], source: Heads) -> None:
        """Reuse the head projections of another kind of mixer; all other tensors are initialized as usual."""
        projections = self.projections(at.new, at.new_sizes)
        taken: dict[str, list[str]] = {}
        for letter, projection in projections.items():
            for name in (set_output if letter == "o" else set_rows)(at, letter, projection, source):
                taken.setdefault(name, []).extend(source.sources[letter])
        for name, sources in taken.items():
            at.put(name, at.tensors[name], "copied", sources, "the heads of the donor; the rest as initialized")
        for name in self.convolutions:
            if f"{name}.weight" in at.tensors:
                weight = at.tensors[f"{name}.weight"]
                weight.zero_()[..., -1] = 1.0
                at.put(f"{name}.weight", weight, "new", note="the newest position alone")
            if f"{name}.bias" in at.tensors:
                at.fill(f"{name}.bias", 0.0)
        scale_norm(at, projections["o"], source)
        at.promise(*self.start_of(at, source))

    def start_of(self, at: Transfer[S], source: Heads) -> tuple[Start, str]:
        """Return the promise for a mixer that reuses another kind's projections."""
        return Start.CHANGED, "another mixer, which takes over queries, keys, values and the output projection"


class IndexTransplant(HeadsTransplant[Index]):
    """Base of learned indexes: initialized randomly, or from attention's queries and keys (`index=keys`).

    Query heads of attention are averaged in groups, and all its key heads to the key of the index.
    """

    fields: ClassVar = {"H": "num_heads", "P": "head_dim"}
    fixed: ClassVar = dict.fromkeys("HP", "the index has different heads")

    def has_heads(self, part: Index) -> bool:
        return False

    def takes(self, old: Spec, new: Index) -> bool:
        return Transplant.takes(self, old, new) or gives_heads(old)

    def transfer(self, at: Transfer[Index]) -> None:
        super().transfer(at)
        if type(at.old) is type(at.new) and all(part.sees_all(at.new_sizes["T"]) for part in (at.old, at.new)):
            at.ledger.forget(at.path)
            at.promise(Start.SAME, "no key is left out")

    def fold(self, at: Transfer[Index]) -> None:
        super().fold(at)
        # queries from the input, and not of low rank
        if self.layouts["q.weight"].endswith(" R") and at.old_sizes["X"] and "q.weight" in at.donated:
            assert at.gains is not None
            at.compute("q.weight", at.donated["q.weight"] * at.gains, FOLDED)

    def take_heads(self, at: Transfer[Index], source: Heads) -> None:
        takes_keys = at.choice("index", "drawn", "keys") == "keys"
        for letter, projection in self.projections(at.new, at.new_sizes).items() if takes_keys else ():
            weight = at.tensors.get(f"{projection.module}.weight")
            if weight is not None and weight.shape[1] == at.new_sizes["D"]:  # not of low-rank queries
                set_rows(at, letter, projection, source)
                words = f"means of groups of {len(getattr(source, letter))} heads"
                at.put(f"{projection.module}.weight", weight, "merged", source.sources[letter], words)


def gives_heads(part: Spec) -> bool:
    kind = transplant_of(part)
    return isinstance(kind, HeadsTransplant) and kind.has_heads(part)


def heads_of(at: Transfer[Any]) -> Heads:
    """Return the projections of the donor's mixer."""
    return transplant_of(at.old).heads(at.old, at.donated, at.old_sizes)  # type: ignore[attr-defined]


def set_rows(at: Transfer[Any], letter: str, projection: Projection, source: Heads) -> list[str]:
    """Set queries, keys or values of a new mixer; features that the donor lacks stay as initialized."""
    matrix = spread(getattr(source, letter), projection.heads)  # (heads, features, D + 1)
    features, width = min(matrix.shape[1], projection.features), min(at.old_sizes["D"], at.new_sizes["D"])
    weight, bias = (f"{projection.module}.{kind}" for kind in ("weight", "bias"))
    if weight in at.tensors:
        projection.rows(at.tensors[weight])[:, :features, :width] = matrix[:, :features, :width]
    if bias in at.tensors:
        projection.rows(at.tensors[bias])[:, :features] = matrix[:, :features, -1]
    return [name for name in (weight, bias) if name in at.tensors]


def set_output(at: Transfer[Any], letter: str, projection: Projection, source: Heads) -> list[str]:
    """Set the output projection of a new mixer; entries that the donor lacks are zero."""
    shares = weights_of_heads(source.o.shape[1], projection.heads)
    # each of the donor's heads is read once in all
    matrix = torch.einsum("nh,dhq->dnq", (shares / shares.sum(0)).to(source.o), source.o)
    features, width = min(matrix.shape[2], projection.features), min(at.old_sizes["D"], at.new_sizes["D"])
    weight, bias = (f"{projection.module}.{kind}" for kind in ("weight", "bias"))
    target = at.tensors[weight].zero_().unflatten(1, (projection.heads, projection.features))
    target[:width, :, :features] = matrix[:width, :, :features]
    if bias in at.tensors:
        at.tensors[bias].zero_()
        if source.o_bias is not None:
            at.tensors[bias][:width] = source.o_bias[:width]
    return [name for name in (weight, bias) if name in at.tensors]


def scale_norm(at: Transfer[Any], outputs: Projection, source: Heads) -> None:
    """Begin the norm of the heads' outputs with the size that the outputs of the donor's heads have on the text.

    Averages of values are small, and a norm of gains 1 would make the new mixer louder than the donor's.
    """
    weight, o = at.tensors.get("norm.weight"), source.sources["o"][0]
    moment = None if weight is None else at.moment(o.removesuffix(".weight"))
    if weight is None or moment is None:
        return
    squares = moment.diagonal()[:-1].unflatten(0, (source.o.shape[1], -1)).mean(1)  # of each of the donor's heads
    shares = weights_of_heads(len(squares), outputs.heads).to(squares)
    squares = shares / shares.sum(1, keepdim=True) @ squares
    if len(weight) == outputs.features:  # the same gains for each head
        squares = squares.mean(0, keepdim=True)
    gains = squares.sqrt().repeat_interleave(len(weight) // len(squares))
    offset = 1.0 if getattr(getattr(at.new, "norm", None), "unit_offset", False) else 0.0
    at.put("norm.weight", gains - offset, "new", (o,), "the root mean square of the donor's heads on the text")


def spread(matrix: Float[Tensor, "K F D"], heads: int) -> Float[Tensor, "H F D"]:
    """Return as many heads as asked for: each of them repeated, or the means of groups of them."""
    shares = weights_of_heads(len(matrix), heads).to(matrix)
    return torch.einsum("nh,hfd->nfd", shares / shares.sum(1, keepdim=True), matrix)


def weights_of_heads(old: int, new: int) -> Float[Tensor, "new_heads old_heads"]:
    """Return the (new, old) matrix of heads: 1 where a new head repeats or averages an old one."""
    if new >= old:
        return torch.eye(old)[[head * old // new for head in range(new)]]
    return torch.eye(new)[[head * new // old for head in range(old)]].T


def with_bias(tensors: Mapping[str, Tensor], name: str) -> Float[Tensor, "rows columns"]:
    """Return the matrix of a projection, with its bias as the last column."""
    weight = tensors[f"{name}.weight"]
    bias = tensors.get(f"{name}.bias")
    column = weight.new_zeros(len(weight)) if bias is None else bias
    return torch.cat((weight, column[:, None]), dim=1)
