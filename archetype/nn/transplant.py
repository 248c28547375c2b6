"""Transplants: how a part of a new model takes over the weights of a donor's part, and what then holds of its output.

The transplants of a kind are its capability `transplant`: a subclass of `Transplant` in the file `transplant.py` of its
folder, which says what each dimension of its tensors is and what the kind can take over from other kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from archetype.errors import SpecError, enumeration
from archetype.spec.base import Spec
from archetype.spec.registry import provided

S = TypeVar("S", bound=Spec)
How = Literal["kept", "cut", "grown", "merged", "copied", "new"]
NEW = -1  # index of an entry that the donor does not have


class Start(IntEnum):
    """What is promised of a new part's output, compared with the donor's for the same input. The worst one counts."""

    SAME = 0
    ROUNDED = 1
    CHANGED = 2

    @property
    def words(self) -> str:
        return ("the same bits", "the same up to rounding", "changed")[self]


@dataclass(frozen=True)
class Taken:
    """Where a tensor of the new model comes from.

    Attributes:
        how: kept as it is; cut to fewer or grown to more entries; merged from several; copied from one with another
            role; or new.
        sources: names of the donor's tensors.
        note: how new entries were drawn, or how several were merged.
    """

    how: How
    sources: tuple[str, ...] = ()
    note: str = ""


@dataclass
class Ledger:
    """What became of every tensor, and what is promised of the start."""

    tensors: dict[str, Taken] = field(default_factory=dict)
    starts: dict[str, tuple[Start, str]] = field(default_factory=dict)  # by part: the promise, and why

    def promise(self, place: str, start: Start, why: str = "") -> None:
        before = self.starts.get(place, (Start.SAME, ""))[0]
        if start > before or place not in self.starts:
            self.starts[place] = start, why

    @property
    def start(self) -> Start:
        return max((start for start, _ in self.starts.values()), default=Start.SAME)


@dataclass
class Transfer(Generic[S]):
    """A part of the new model, and the donor's part from which it takes weights.

    Attributes:
        old: specification of the donor's part.
        new: specification of the new part.
        donor: the donor's module.
        module: the new module, with the initial weights that it would be trained from.
        path: name of the new module in its model.
        donor_path: name of the donor's module.
        old_sizes: sizes of dimensions of the whole donor, by letter (D, V and T).
        new_sizes: the same of the new model.
        ledger: records every tensor and promise.
        selected: donor's indices of the entries of a dimension, by letter; `NEW` for entries that it does not have.
        choices: how several weights become one, by subject, where there is more than one way.
        similar: other parts of the donor, by name, such as the embedding of a head.
    """

    old: S
    new: S
    donor: nn.Module
    module: nn.Module
    path: str
    donor_path: str
    old_sizes: Mapping[str, int]
    new_sizes: Mapping[str, int]
    ledger: Ledger
    selected: Mapping[str, Sequence[int]] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    similar: Mapping[str, nn.Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors, self.donated = dict(self.module.state_dict()), dict(self.donor.state_dict())
        self.left = set(self.tensors)  # tensors that nothing was said about

    def put(self, name: str, tensor: Tensor, how: How, sources: Sequence[str] = (), note: str = "") -> None:
        """Set a tensor of the new module. Sources are names in the donor's module."""
        target = self.tensors[name]
        assert target.shape == tensor.shape, (self.path, name, target.shape, tensor.shape)
        target.copy_(tensor)
        self._record(name, Taken(how, tuple(_joined(self.donor_path, source) for source in sources or (name,)), note))

    def keep(self, *names: str) -> None:
        """Copy tensors that have the same name and shape in the donor."""
        for name in names:
            self.put(name, self.donated[name], "kept")

    def note(self, name: str, note: str, how: How | None = None) -> None:
        """Say more about a tensor that was taken over."""
        path = _joined(self.path, name)
        self.ledger.tensors[path] = replace(taken := self.ledger.tensors[path], how=how or taken.how, note=note)

    def keep_initial(self, name: str, note: str = "as initialized") -> None:
        """Leave a tensor as it was initialized."""
        self._record(name, Taken("new", (), note))

    def fill(self, name: str, value: float) -> None:
        """Set a new tensor to one number."""
        self.tensors[name].fill_(value)
        self._record(name, Taken("new", (), f"all {value:g}"))

    def _record(self, name: str, taken: Taken) -> None:
        self.left.discard(name)
        self.ledger.tensors[_joined(self.path, name)] = taken

    def promise(self, start: Start, why: str = "") -> None:
        """Say what holds of the output; of several promises, the worst one counts."""
        self.ledger.promise(self.path, start, why)

    def choice(self, subject: str, *ways: str) -> str:
        """Return the way that was chosen for a subject; the first one by default."""
        chosen = self.choices.get(subject, ways[0])
        if chosen not in ways:
            raise SpecError(f"--with {subject}", f"{chosen!r} is not a way", f"use {enumeration(ways, 'or')}")
        return chosen

    def inner(self, path: str, donor_path: str, old: Spec, new: Spec) -> "Transfer[Any]":
        """Return the transfer between two parts inside of these."""
        return Transfer(
            old, new, self.donor.get_submodule(donor_path), self.module.get_submodule(path),
            _joined(self.path, path), _joined(self.donor_path, donor_path), self.old_sizes, self.new_sizes,
            self.ledger, self.selected, self.choices, self.similar,
        )  # fmt: skip

    def transplant_inner(self, path: str, donor_path: str, old: Spec, new: Spec) -> None:
        """Transfer the weights of a part inside of this one."""
        transplant(self.inner(path, donor_path, old, new))
        self.left -= {name for name in self.left if name.startswith(f"{path}.")}


class Transplant(Generic[S]):
    """What a kind can take over from a donor.

    Attributes:
        layouts: dimensions of each tensor, by its name in the module, such as "HP D" for a matrix from D features to H
            heads of P features. Entries beyond the donor's are drawn.
        writes: tensors whose product is the output of the part: their entries beyond the donor's are zero, so that
            the output does not change while their gradient is not zero.
    """

    layouts: ClassVar[Mapping[str, str]] = {}
    writes: ClassVar[tuple[str, ...]] = ()

    def sizes(self, part: S, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return the sizes of the letters in `layouts`, from those of the whole model (D, V and T)."""
        return sizes

    def layouts_of(self, part: S) -> Mapping[str, str]:
        """Return the layouts, where they depend on fields."""
        return self.layouts

    def takes(self, old: Spec, new: S) -> bool:
        """Return whether weights of the donor's part can be taken over at all."""
        return type(old) is type(new)

    def transfer(self, at: Transfer[S]) -> None:
        """Fill the new module. By default: equal entries of equally named tensors."""
        self.take_named(at)
        if at.old != at.new:
            at.promise(*self.start(at))

    def start(self, at: Transfer[S]) -> tuple[Start, str]:
        """Return what holds if specifications differ and all tensors of the donor were kept."""
        return Start.CHANGED, "its fields differ"

    def take_named(self, at: Transfer[S]) -> None:
        """Take over every tensor that has the same name in the donor, entry by entry where the layout is known."""
        old, new = self.sizes(at.old, at.old_sizes), self.sizes(at.new, at.new_sizes)
        selected = {letter: selection(old[letter], new[letter], at.selected.get(letter)) for letter in new}
        layouts = self.layouts_of(at.new)
        for name in sorted(at.left):
            if name not in at.donated:
                at.keep_initial(name)
                at.promise(Start.CHANGED, f"{name} is new")
                continue
            layout = layouts.get(name)
            before = at.donated[name]
            if layout is None:
                if before.shape == at.tensors[name].shape:
                    at.keep(name)
                else:
                    at.keep_initial(name, f"as initialized: {tuple(before.shape)} does not fit")
                    at.promise(Start.CHANGED, f"{name} has another shape")
                continue
            self._take(at, name, layout, old, selected)
        if unused := sorted(at.donated.keys() - at.tensors.keys()):
            at.promise(Start.CHANGED, f"{enumeration(unused)} of the donor is not used")

    def _take(
        self, at: Transfer[S], name: str, layout: str, old: Mapping[str, int], selected: Mapping[str, Sequence[int]]
    ) -> None:
        letters = [letter for letter in layout if letter != " "]
        used = {letter: selected[letter] for letter in letters}
        before, target = at.donated[name], at.tensors[name]
        if all(list(indices) == list(range(old[letter])) for letter, indices in used.items()):
            at.keep(name)
            return
        entries = target
        if not target.is_meta:  # on which there are no numbers to gather, see `mean`
            taken, is_new = gathered(before, [old[letter] for letter in letters], list(used.values()))
            drawn = torch.zeros_like(target) if name in self.writes else target
            entries = torch.where(is_new.view(target.shape), drawn, taken.view(target.shape))
        at.put(name, entries, *self._how(old, used, name))
        at.promise(self._promise(old, used), f"{name} has other entries")

    def _how(self, old: Mapping[str, int], used: Mapping[str, Sequence[int]], name: str) -> Any:
        words = []
        how: How = "kept"
        for letter, indices in used.items():
            taken = [index for index in indices if index != NEW]
            if len(set(taken)) < old[letter]:
                how = "cut"
                words.append(f"{len(set(taken))} of {old[letter]} {letter}")
            if len(taken) < len(indices):
                how = "grown" if how == "kept" else how
                drawn = "zero" if name in self.writes else "as initialized"
                words.append(f"{len(indices) - len(taken)} new {letter}, {drawn}")
            if len(set(taken)) < len(taken):
                how = "copied" if how == "kept" else how
                words.append(f"{old[letter]} {letter} repeated to {len(indices)}")
        return how, (), "; ".join(words)

    def _promise(self, old: Mapping[str, int], used: Mapping[str, Sequence[int]]) -> Start:
        is_cut = any(set(range(old[letter])) - set(indices) for letter, indices in used.items())
        return Start.CHANGED if is_cut else Start.ROUNDED


def transplant(at: Transfer[Any]) -> None:
    """Transfer weights between two parts by the new kind's transplants."""
    kind = transplant_of(at.new)
    at.ledger.promise(at.path, Start.SAME)
    with torch.no_grad():
        if kind.takes(at.old, at.new):
            kind.transfer(at)
        else:
            names = enumeration([str(getattr(part, "kind", type(part).__name__)) for part in (at.old, at.new)])
            at.promise(Start.CHANGED, f"nothing is taken over between {names}")
        for name in sorted(at.left):
            at.keep_initial(name)


def transplant_of(part: Spec) -> Transplant[Any]:
    return cast(Callable[[], Transplant[Any]], provided("transplant", type(part)) or Transplant)()


def selection(old: int, new: int, chosen: Sequence[int] | None = None) -> Sequence[int]:
    """Return the donor's index of every entry of a dimension: those chosen, or the first ones, then new ones."""
    if chosen is not None and len(chosen) == new:
        return chosen
    return [*range(min(old, new)), *[NEW] * (new - old)]


def are_equal(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; False on the meta device, where there are none to compare."""
    return not x.is_meta and torch.equal(x, y)


def mean(x: Tensor, dim: int) -> Tensor:
    """Return the mean over a dimension."""
    # on the meta device torch would compute it in Python, and import its compiler for that, which takes seconds
    return x.select(dim, 0) if x.is_meta else x.mean(dim)


def gathered(tensor: Tensor, sizes: Sequence[int], indices: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the chosen entries of a tensor with these sizes, and which of them are new (their values mean nothing)."""
    taken = tensor.reshape(*sizes)
    is_new = torch.zeros((), dtype=torch.bool, device=tensor.device)
    for dim, chosen in enumerate(indices):
        index = torch.tensor(chosen, dtype=torch.long, device=tensor.device)
        taken = taken.index_select(dim, index.clamp(min=0))
        shape = [1] * len(sizes)
        shape[dim] = len(chosen)
        is_new = is_new | (index == NEW).view(shape)
    return taken, is_new.expand(taken.shape)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
