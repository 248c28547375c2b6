"""Transfer of weights between two parts: their specifications and tensors, and how tensors are set and recorded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from archetype.errors import SpecError, enumeration
from archetype.nn.layouts import best
from archetype.nn.ledger import DRAWN, How, Ledger, Start, Taken
from archetype.spec.base import Spec

S = TypeVar("S", bound=Spec)
FOLDED = "times the gains of the preceding norm"


class Similar(NamedTuple):
    """Another part of the donor."""

    path: str
    module: nn.Module


class Vocabulary(NamedTuple):
    """The donor's token of each new token, `NEW` if there is none, and the donor's tokens that spell those, by id."""

    tokens: Sequence[int]
    pieces: Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Cuts:
    """What the new model takes where the donor has more or less of something.

    Attributes:
        layers: the donor's layer of each new layer (absent: the same ones, or spread evenly).
        choices: methods of cutting and merging by subject, such as {"heads": "mean"}.
        ranks: importance of the entries of a dimension of a donor's module, by its name and the letter; None for a
            dimension, or for all, whose first entries are kept where it is cut.
        moments: mean of x x^T over the inputs x of a donor's module on a text, (D, D), by its name.
        vocabulary: tokens of another vocabulary (absent: the same ones).
        seed: of everything that is drawn.
    """

    layers: Sequence[int] | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    ranks: Callable[[str, str], Tensor | None] | None = None
    moments: Callable[[str], Tensor | None] | None = None
    vocabulary: Vocabulary | None = None
    seed: int = 0


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
        cuts: selection of entries where the models differ in size.
        selected: donor's indices of the entries of a dimension, by letter; `NEW` for entries that it does not have.
        similar: other parts of the donor that a part reads, by role, such as the embedding of a head.
        gains: factors of the input's features that the donor's norm applies and the new model's norm does not.
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
    cuts: Cuts = Cuts()
    selected: Mapping[str, Sequence[int]] = field(default_factory=dict)
    similar: Mapping[str, Similar] = field(default_factory=dict)
    gains: Tensor | None = None

    def __post_init__(self) -> None:
        self.tensors, self.donated = dict(self.module.state_dict()), dict(self.donor.state_dict())
        self.left = set(self.tensors)  # tensors that nothing was said about
        self.computed: dict[str, str] = {}  # how tensors of the donor were changed before they are taken over

    @property
    def both(self) -> Sequence[tuple[S, Mapping[str, int]]]:
        """Both parts, each with the sizes of its model."""
        return (self.old, self.old_sizes), (self.new, self.new_sizes)

    def inner(self, path: str, donor_path: str, old: Spec, new: Spec, **changes: Any) -> "Transfer[Any]":
        """Return the transfer between two inner parts; `changes` replace attributes, such as the sizes."""
        any_kind: Transfer[Any] = self
        return replace(
            any_kind, old=old, new=new, donor=self.donor.get_submodule(donor_path),
            module=self.module.get_submodule(path), path=_joined(self.path, path),
            donor_path=_joined(self.donor_path, donor_path), **changes,
        )  # fmt: skip

    def put(self, name: str, tensor: Tensor, how: How, sources: Sequence[str] = (), note: str = "") -> None:
        """Set a tensor of the new module. Sources are names in the donor's module."""
        target = self.tensors[name]
        assert target.shape == tensor.shape, (self.path, name, target.shape, tensor.shape)
        target.copy_(tensor)
        sources = sources or (() if how == DRAWN else (name,))
        changes = [self.computed[source] for source in dict.fromkeys(sources) if source in self.computed]
        how = "merged" if how == "kept" and changes else how
        note = "; ".join(filter(None, (note, *dict.fromkeys(changes))))
        self._record(name, Taken(how, tuple(_joined(self.donor_path, source) for source in sources), note))

    def compute(self, name: str, tensor: Tensor, note: str) -> None:
        """Replace a donor tensor before it is transferred. The note explains how it was computed."""
        self.donated[name] = tensor
        self.computed[name] = "; ".join(filter(None, (self.computed.get(name), note)))

    def keep(self, *names: str) -> None:
        """Copy tensors that have the same name and shape in the donor."""
        for name in names:
            self.put(name, self.donated[name], "kept")

    def fits(self, name: str) -> bool:
        """Return whether the donor has a tensor of the same name and shape."""
        return name in self.donated and self.donated[name].shape == self.tensors[name].shape

    def fill(self, name: str, value: float) -> None:
        """Set a new tensor to one number."""
        self.tensors[name].fill_(value)
        self._record(name, Taken("new", (), f"all {value:g}"))

    def keep_initial(self, name: str, note: str = "as initialized") -> None:
        """Leave a tensor as it was initialized."""
        self._record(name, Taken("new", (), note))

    def note(
        self, name: str, note: str, how: How | None = None, sources: Sequence[str] = (), computed: bool = False
    ) -> None:
        """Say more about a tensor that was taken over, and may have been computed. Sources are names in the donor."""
        taken = self.ledger.tensors[_joined(self.path, name)]
        how = "merged" if computed and taken.how == "kept" else how
        notes = "; ".join(filter(None, (taken.note, note)))
        self._record(name, Taken(how or taken.how, tuple(sources) or taken.sources, notes))

    def leave_open(self) -> None:
        """Record all remaining tensors as computed from the donor's weights."""
        for name in sorted(self.left):
            self._record(name, Taken("merged", (), "computed from the donor's weights"))
        self.promise(Start.CHANGED, "depends on the donor's weights")

    def _record(self, name: str, taken: Taken) -> None:
        self.left.discard(name)
        self.ledger.tensors[_joined(self.path, name)] = taken

    def promise(self, start: Start, why: str = "") -> None:
        """Promise a property of the output; the weakest of several promises counts."""
        self.ledger.promise(self.path, start, why)

    def require(self, condition: object, why: str) -> None:
        """Promise a changed output for this reason unless the condition holds."""
        self.ledger.require(self.path, condition, why)

    def choice(self, subject: str, *ways: str) -> str:
        """Return the method selected for a subject (default: the first)."""
        self.ledger.asked.add(subject)
        chosen = self.cuts.choices.get(subject, ways[0])
        if chosen not in ways:
            raise SpecError(f"--with {subject}", f"{chosen!r} is not a method", f"use {enumeration(ways, 'or')}")
        return chosen

    def rank(self, letter: str) -> Tensor | None:
        """Return the importance of each of the donor's entries of a dimension."""
        self.ledger.asked.add("cut")
        # features of the whole model, which are also those of its norms, are ranked together
        place = ("", "D") if letter in "DN" else (self.donor_path, letter)
        return None if self.cuts.ranks is None else self.cuts.ranks(*place)

    def moment(self, name: str = "") -> Tensor | None:
        """Return the mean of x x^T over the inputs x of a module of the donor on a text; None if there is none."""
        return None if self.cuts.moments is None else self.cuts.moments(_joined(self.donor_path, name))

    def indices(self, letter: str, old: int, new: int) -> Sequence[int]:
        """Return the donor's index of every entry of a dimension: those selected, the best ones, or the first ones."""
        chosen = self.selected.get(letter)
        if chosen is not None and len(chosen) == new:
            return chosen
        return best(old, new, self.rank(letter) if new < old else None)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
