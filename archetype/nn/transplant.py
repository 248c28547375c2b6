"""Transplants: how a part of a new model takes over the weights of a donor's part, and what then holds of its output.

The transplants of a kind are its capability `transplant`: a subclass of `Transplant` in the file `transplant.py` of its
folder, which says what each dimension of its tensors is and what the kind can take over from other kinds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from archetype.errors import SpecError, enumeration
from archetype.nn.inspect import PartTrace
from archetype.spec.base import Spec
from archetype.spec.registry import provided

S = TypeVar("S", bound=Spec)
How = Literal["kept", "cut", "grown", "merged", "copied", "new"]
NEW = -1  # index of an entry that the donor does not have
WITHOUT_SOURCE: How = "new"
FOLDED = "times the gains of the norm before it"
Ranks = Callable[[str, str], Tensor | None]
Moments = Callable[[str], Tensor | None]


class Similar(NamedTuple):
    """Another part of the donor."""

    path: str
    module: nn.Module


def no_ranks(module: str, letter: str) -> Tensor | None:
    return None


def no_moments(module: str) -> Tensor | None:
    return None


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
        how: kept as it is; cut to fewer or grown to more entries; merged from several or computed from one; copied from
            one with another role; or new.
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
    asked: set[str] = field(default_factory=set)  # subjects of which a part had to choose a way

    def promise(self, place: str, start: Start, why: str = "") -> None:
        before = self.starts.get(place, (Start.SAME, ""))[0]
        if start > before or place not in self.starts:
            self.starts[place] = start, why

    def forget(self, place: str) -> None:
        """Remove the promises of a part and of all parts inside of it, whose output is not used."""
        self.starts = {at: start for at, start in self.starts.items() if not f"{at}.".startswith(f"{place}.")}

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
        similar: other parts of the donor that a part reads, by role, such as the embedding of a head.
        ranks: importance of the entries of a dimension of a donor's module, by its name and the letter, for what is
            cut; None where nothing is known, and the first entries are kept.
        gains: factors of the input's features that the donor's norm applies and the new model's norm does not.
        pieces: the donor's tokens that spell a new token, by its id.
        moments: mean of x x^T over the inputs x of a donor's module on a text, (D, D) by its name; None without a text.
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
    similar: Mapping[str, Similar] = field(default_factory=dict)
    ranks: Ranks = no_ranks
    gains: Tensor | None = None
    pieces: Mapping[int, Sequence[int]] = field(default_factory=dict)
    moments: Moments = no_moments

    def __post_init__(self) -> None:
        self.tensors, self.donated = dict(self.module.state_dict()), dict(self.donor.state_dict())
        self.left = set(self.tensors)  # tensors that nothing was said about
        self.computed: dict[str, str] = {}  # how tensors of the donor were changed before they are taken over

    @property
    def both(self) -> Sequence[tuple[S, Mapping[str, int]]]:
        """Both parts, each with the sizes of its model."""
        return (self.old, self.old_sizes), (self.new, self.new_sizes)

    def put(self, name: str, tensor: Tensor, how: How, sources: Sequence[str] = (), note: str = "") -> None:
        """Set a tensor of the new module. Sources are names in the donor's module."""
        target = self.tensors[name]
        assert target.shape == tensor.shape, (self.path, name, target.shape, tensor.shape)
        target.copy_(tensor)
        sources = sources or (() if how == WITHOUT_SOURCE else (name,))
        changes = [self.computed[source] for source in dict.fromkeys(sources) if source in self.computed]
        how = "merged" if how == "kept" and changes else how
        note = "; ".join(filter(None, (note, *dict.fromkeys(changes))))
        self._record(name, Taken(how, tuple(_joined(self.donor_path, source) for source in sources), note))

    def compute(self, name: str, tensor: Tensor, note: str) -> None:
        """Replace a tensor of the donor before it is taken over. The note says how it was computed."""
        self.donated[name] = tensor
        self.computed[name] = "; ".join(filter(None, (self.computed.get(name), note)))

    def keep(self, *names: str) -> None:
        """Copy tensors that have the same name and shape in the donor."""
        for name in names:
            self.put(name, self.donated[name], "kept")

    def note(
        self, name: str, note: str, how: How | None = None, sources: Sequence[str] = (), computed: bool = False
    ) -> None:
        """Say more about a tensor that was taken over, and may have been computed. Sources are names in the donor."""
        taken = self.ledger.tensors[path := _joined(self.path, name)]
        how = "merged" if computed and taken.how == "kept" else how
        notes = "; ".join(filter(None, (taken.note, note)))
        self.ledger.tensors[path] = Taken(how or taken.how, tuple(sources) or taken.sources, notes)

    def keep_initial(self, name: str, note: str = "as initialized") -> None:
        """Leave a tensor as it was initialized."""
        self._record(name, Taken("new", (), note))

    def leave_open(self) -> None:
        """Say of everything that nothing was said about that it depends on the donor's numbers."""
        for name in sorted(self.left):
            self._record(name, Taken("merged", (), "computed from the donor's weights"))
        self.promise(Start.CHANGED, "depends on the donor's weights")

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
        self.ledger.asked.add(subject)
        chosen = self.choices.get(subject, ways[0])
        if chosen not in ways:
            raise SpecError(f"--with {subject}", f"{chosen!r} is not a way", f"use {enumeration(ways, 'or')}")
        return chosen

    def rank(self, letter: str) -> Tensor | None:
        """Return the importance of each of the donor's entries of a dimension."""
        self.ledger.asked.add("cut")
        # features of the whole model, which are also those of its norms, are ranked together
        return self.ranks("", "D") if letter in "DN" else self.ranks(self.donor_path, letter)

    def indices(self, letter: str, old: int, new: int) -> Sequence[int]:
        """Return the donor's index of every entry of a dimension: those selected, the best ones, or the first ones."""
        chosen = self.selected.get(letter)
        if chosen is not None and len(chosen) == new:
            return chosen
        return best(old, new, self.rank(letter) if new < old else None)

    def inner(self, path: str, donor_path: str, old: Spec, new: Spec, **changes: Any) -> "Transfer[Any]":
        """Return the transfer between two parts inside of these; `changes` replace attributes, such as the sizes."""
        any_kind: Transfer[Any] = self
        return replace(
            any_kind, old=old, new=new, donor=self.donor.get_submodule(donor_path),
            module=self.module.get_submodule(path), path=_joined(self.path, path),
            donor_path=_joined(self.donor_path, donor_path), **changes,
        )  # fmt: skip

    def transplant_inner(self, path: str, donor_path: str, old: Spec, new: Spec, **changes: Any) -> None:
        """Transfer the weights of a part inside of this one."""
        self.transfer_inner(path, self.inner(path, donor_path, old, new, **changes))

    def transfer_inner(self, path: str, inner: "Transfer[Any]") -> None:
        """Carry out a transfer inside of this one, under a name in the new module."""
        transplant(inner)
        self.left -= {name for name in self.left if name.startswith(f"{path}.")}


class Transplant(Generic[S]):
    """What a kind can take over from a donor.

    Attributes:
        layouts: dimensions of each tensor, by its name in the module, such as "HP D" for a matrix from D features to H
            heads of P features, "2I D" for two matrices of I rows, one below the other, and "H(P|Q) C" for heads of P
            and then Q features. Entries beyond the donor's are drawn.
        writes: tensors whose product is the output of the part: their entries beyond the donor's are zero, so that
            the output does not change while their gradient is not zero.
        silent: letters of other tensors along which entries beyond the donor's are zero, so that features of the donor
            do not see new ones.
        newest_last: letters of dimensions that grow and shrink at their start, such as the taps of a convolution.
        twins: letters with the entries of another letter, for tensors in which these are silent.
        sized: fields that only set sizes of the layouts, or initial values, or how the same numbers are computed.
    """

    layouts: ClassVar[Mapping[str, str]] = {}
    writes: ClassVar[tuple[str, ...]] = ()
    silent: ClassVar[Mapping[str, str]] = {}
    newest_last: ClassVar[str] = ""
    twins: ClassVar[Mapping[str, str]] = {}
    sized: ClassVar[tuple[str, ...]] = ()

    def layouts_of(self, part: S) -> Mapping[str, str]:
        """Return the dimensions of each tensor of a part."""
        return self.layouts

    def sizes(self, part: S, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return the sizes of the letters in the layouts, from those of the whole model (D, V and T)."""
        return sizes

    def inside(self, part: S) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        """Return the parts inside of one by module, with their own letters as layouts of this part's letters."""
        return {}

    def fixed(self, part: S) -> Mapping[str, str]:
        """Return the letters whose sizes cannot change without changing the output, and why."""
        return {}

    def importance(self, part: S, trace: PartTrace) -> Mapping[str, Tensor]:
        """Return the importance of entries in a recorded pass, by the letter of their dimension; passes add up."""
        return {}

    def silence(self, part: S, module: nn.Module) -> Sequence[str]:
        """Set the output to zero for every input; return the tensors that are changed, none if that is impossible."""
        names = [name for name, _ in module.named_parameters() if name in self.writes]
        for name in names:
            module.get_parameter(name).zero_()
        return names

    def fold(self, at: Transfer[S]) -> None:
        """Multiply the donor's matrices that read the input by the gains of the norm before them."""
        assert at.gains is not None
        layout = self.layouts_of(at.old)
        inside = tuple(f"{path}." for path in self.inside(at.old))  # which fold the gains themselves
        matrices = {name for name, x in at.donated.items() if x.dim() > 1 and not name.startswith(inside)}
        if unknown := sorted(matrices - layout.keys()):
            at.promise(Start.CHANGED, f"the norm's gains cannot be folded into {enumeration(unknown)}")
        for name in sorted(matrices & layout.keys()):
            if layout[name].endswith(" D") and name not in self.writes:
                at.compute(name, at.donated[name] * at.gains, FOLDED)
        at.promise(Start.ROUNDED, "the gains of the norm before it are folded into its matrices")

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
        names = self.differing(at)
        return (Start.CHANGED, f"{', '.join(names)} differs") if names else (Start.ROUNDED, "")

    def differing(self, at: Transfer[S]) -> list[str]:
        """Return the fields that change the output by their values; parts inside promise for themselves."""
        inside = {id(part) for parts in (self.inside(at.old), self.inside(at.new)) for part, _ in parts.values()}
        names = (name for name in type(at.new).model_fields if name not in self.sized)
        pairs = {name: (getattr(at.old, name), getattr(at.new, name)) for name in names}
        return [name for name, (x, y) in pairs.items() if x != y and not (id(x) in inside and id(y) in inside)]

    def take_named(self, at: Transfer[S]) -> None:
        """Take over every tensor that has the same name in the donor, entry by entry where the layout is known."""
        old, new = self.sizes(at.old, at.old_sizes), self.sizes(at.new, at.new_sizes)
        layouts = self.layouts_of(at.new)
        selected = self._selected(at, layouts, old, new)
        inside = self._take_inside(at, old, selected)
        for letter, why in self.fixed(at.new).items():
            if old[letter] != new[letter]:
                at.promise(Start.CHANGED, why)
        for name in sorted(at.left):
            if name not in at.donated and name.rpartition(".")[2] == "bias":
                at.fill(name, 0.0)
                continue
            if name not in at.donated:
                at.keep_initial(name)
                at.promise(Start.CHANGED, f"{name} is new")
                continue
            layout = layouts.get(name)
            before = at.donated[name]
            if layout is None or before.shape != tuple(entries(dim, old, selected)[0] for dim in layout.split()):
                if before.shape == at.tensors[name].shape:
                    at.keep(name)
                else:
                    at.keep_initial(name, f"as initialized: {tuple(before.shape)} does not fit")
                    at.promise(Start.CHANGED, f"{name} has another shape")
                continue
            self._take(at, name, layout, old, selected)
        if unused := sorted(name for name in at.donated.keys() - at.tensors.keys() if not name.startswith(inside)):
            at.promise(Start.CHANGED, f"{enumeration(unused)} of the donor is not used")

    def _selected(
        self, at: Transfer[S], layouts: Mapping[str, str], old: Mapping[str, int], new: Mapping[str, int]
    ) -> dict[str, Sequence[int]]:
        # the donor's index of every entry, by letter
        inside = (layout for _, letters in self.inside(at.new).values() for layout in letters.values())
        letters = {letter for layout in (*layouts.values(), *inside) for letter in layout if letter.isalpha()}
        selected = {
            letter: at.indices(letter, old[letter], new[letter]) for letter in sorted(letters - self.twins.keys())
        }
        for letter in letters & set(self.newest_last):
            before, after = old[letter], new[letter]
            selected[letter] = [*[NEW] * (after - before), *range(max(before - after, 0), before)]
        return selected | {twin: selected[letter] for twin, letter in self.twins.items() if letter in selected}

    def _take_inside(
        self, at: Transfer[S], old: Mapping[str, int], selected: Mapping[str, Sequence[int]]
    ) -> tuple[str, ...]:
        # parts inside of both; returns how the names of their tensors begin
        before, after = self.inside(at.old), self.inside(at.new)
        modules = dict(at.donor.named_modules()).keys() & dict(at.module.named_modules()).keys()
        paths = [path for path in after if path in before and path in modules]
        for path in paths:
            part, letters = after[path]
            flat = {letter: entries(layout, old, selected) for letter, layout in letters.items()}
            at.transplant_inner(
                path, path, before[path][0], part,
                old_sizes={**at.old_sizes, **{letter: size for letter, (size, _) in flat.items()}},
                new_sizes={**at.new_sizes, **{letter: len(indices) for letter, (_, indices) in flat.items()}},
                selected={letter: indices for letter, (_, indices) in flat.items()},
                gains=at.gains if "D" in letters else None,
            )  # fmt: skip
        return tuple(f"{path}." for path in paths)

    def fill_tokens(self, at: Transfer[S], name: str) -> None:
        """Set the rows of new tokens (V, or V and features) to means of old rows."""
        if name not in at.tensors or name not in at.donated:
            return
        old, new = self.sizes(at.old, at.old_sizes), self.sizes(at.new, at.new_sizes)
        _, *features = self.layouts_of(at.new)[name].split()
        rows = [row for row, index in enumerate(at.indices("V", old["V"], new["V"])) if index == NEW]
        if not rows:
            return
        columns = [range(old["V"]), *(at.indices(letter, old[letter], new[letter]) for letter in features)]
        if not at.tensors[name].is_meta:
            table, is_new = gathered(at.donated[name], columns)
            table = table.masked_fill(is_new, 0.0)  # (V, ...), with the features of the new model
            mean = table.mean(0)
            for row in rows:
                pieces = at.pieces.get(row)
                at.tensors[name][row] = table[list(pieces)].mean(0) if pieces else mean
        of = "of the tokens that spell them, or of all" if at.pieces else "of all others"
        at.note(name, f"rows of new tokens are the mean {of}")

    def _take(
        self, at: Transfer[S], name: str, layout: str, old: Mapping[str, int], selected: Mapping[str, Sequence[int]]
    ) -> None:
        used = {letter: selected[letter] for letter in layout if letter.isalpha()}
        before, target = at.donated[name], at.tensors[name]
        if all(list(indices) == list(range(old[letter])) for letter, indices in used.items()):
            at.keep(name)
            return
        silent = layout if name in self.writes else self.silent.get(name, "")
        # entries that are new along silent letters
        heard = {letter: indices if letter in silent else [0] * len(indices) for letter, indices in used.items()}
        numbers = target
        if not target.is_meta:  # torch would gather shapes in Python, and import its compiler for that
            taken, is_new = gathered(before, [entries(dim, old, used)[1] for dim in layout.split()])
            _, is_silent = gathered(before, [entries(dim, old, heard)[1] for dim in layout.split()])
            numbers = torch.where(is_new, target.masked_fill(is_silent, 0.0), taken)
        at.put(name, numbers, *self._how(old, used, name))
        at.promise(self._promise(old, used), f"{name} has other entries")

    def _how(self, old: Mapping[str, int], used: Mapping[str, Sequence[int]], name: str) -> Any:
        words = []
        how: How = "kept"
        for letter, indices in used.items():
            copied = [index for index in indices if index != NEW]
            if len(set(copied)) < old[letter]:
                how = "cut"
                words.append(f"{len(set(copied))} of {old[letter]} {letter}")
            if len(copied) < len(indices):
                how = "grown" if how == "kept" else how
                is_silent = name in self.writes or letter in self.silent.get(name, "")
                drawn = "" if letter == "V" else ", zero" if is_silent else ", as initialized"  # tokens are means
                words.append(f"{len(indices) - len(copied)} new {letter}{drawn}")
            if len(set(copied)) < len(copied):
                how = "copied" if how == "kept" else how
                words.append(f"{old[letter]} {letter} repeated to {len(indices)}")
        if how == "kept":
            how, words = "copied", ["in another order"]
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
            if at.gains is not None:
                transplant_of(at.old).fold(at)
            try:
                kind.transfer(at)
            except RuntimeError:
                if not all(tensor.is_meta for tensor in at.tensors.values()):
                    raise
                at.leave_open()  # there are no numbers to compute with
        else:
            names = enumeration([str(getattr(part, "kind", type(part).__name__)) for part in (at.old, at.new)])
            at.promise(Start.CHANGED, f"nothing is taken over between {names}")
        for name in sorted(at.left):
            at.keep_initial(name)


def transplant_of(part: Spec) -> Transplant[Any]:
    return cast(Callable[[], Transplant[Any]], provided("transplant", type(part)) or Transplant)()


def best(old: int, new: int, ranks: Tensor | None = None) -> Sequence[int]:
    """Return which entries of a dimension are kept, in their order, followed by new ones."""
    if ranks is not None and new < old:
        return sorted(ranks.topk(new).indices.tolist())
    return [*range(min(old, new)), *[NEW] * (new - old)]


def entries(layout: str, sizes: Mapping[str, int], selected: Mapping[str, Sequence[int]]) -> tuple[int, Sequence[int]]:
    """Return the donor's size of a dimension with a layout such as "H(P|Q)", and its index of every new entry."""
    total, indices = 0, []
    for term in re.split(r"\|(?![^()]*\))", layout):
        count, chosen = 1, [0]
        for factor in re.findall(r"\([^()]*\)|.", term):
            inner: Sequence[int] = ()
            if factor.isdigit():
                size, inner = int(factor), range(int(factor))
            elif factor.startswith("("):
                size, inner = entries(factor[1:-1], sizes, selected)
            else:
                size, inner = sizes[factor], selected[factor]
            chosen = [NEW if NEW in (i, j) else i * size + j for i in chosen for j in inner]
            count *= size
        indices += [i if i == NEW else total + i for i in chosen]
        total += count
    return total, indices


def are_equal(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; False on the meta device, where there are none to compare."""
    return not x.is_meta and torch.equal(x, y)


def mean(x: Tensor, dim: int) -> Tensor:
    """Return the mean over a dimension."""
    # torch would compute the shape of it in Python, and import its compiler for that, which takes seconds
    return x.select(dim, 0) if x.is_meta else x.mean(dim)


def holds(condition: Tensor) -> bool:
    """Return whether a condition holds for all numbers; False on the meta device, where there are none."""
    return not condition.is_meta and bool(condition.all())


def gathered(tensor: Tensor, indices: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the chosen entries of each dimension, and which of them are new (their values mean nothing)."""
    is_new = torch.zeros((), dtype=torch.bool, device=tensor.device)
    for dim, chosen in enumerate(indices):
        index = torch.tensor(chosen, dtype=torch.long, device=tensor.device)
        tensor = tensor.index_select(dim, index.clamp(min=0))
        shape = [1] * len(indices)
        shape[dim] = len(chosen)
        is_new = is_new | (index == NEW).view(shape)
    return tensor, is_new.expand(tensor.shape)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
