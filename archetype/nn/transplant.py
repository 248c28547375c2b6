"""Transplants: how a new part reuses the weights of a donor's part, and what its output then promises.

The transplants of a kind are its capability `transplant`: a subclass of `Transplant` in the file `transplant.py` of its
folder, which says what each dimension of its tensors is and what the kind can take over from other kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, cast

import torch
from torch import Tensor, nn

from archetype.errors import enumeration
from archetype.nn.inspect import PartTrace
from archetype.nn.layouts import NEW, Entries, letters_of
from archetype.nn.ledger import How, Start
from archetype.nn.transfer import FOLDED, S, Transfer
from archetype.spec.base import Spec
from archetype.spec.registry import provided

TAPS = "W"  # letter of the positions that a causal convolution reads, the newest one last
# fields that only matter in training, and those that change the output by rounding: new biases begin with zero
TRAINING = ("dropout", "dt_min", "dt_max", "loss_weight", "balance_loss")
ROUNDING = ("bias", "conv_bias", "chunk_size")


class Transplant(Generic[S]):
    """What a kind can take over from a donor.

    Attributes:
        layouts: dimensions of each tensor, by its name in the module (see `archetype.nn.layouts`). A bias has the rows
            of its matrix, and is silent as they are. Entries beyond the donor's are drawn; those of taps W are zero,
            and come before the donor's.
        fields: field, property or method of the model's width that is the size of a letter.
        norms: norms inside of the part by module, each as its field and the dimension that it normalizes.
        writes: tensors whose product is the output of the part: their entries beyond the donor's are zero, so that
            the output does not change while their gradient is not zero.
        silent: letters of other tensors along which entries beyond the donor's are zero, so that features of the donor
            do not see new ones.
        twins: letters with the entries of another letter, for tensors in which these are silent.
        fixed: letters whose sizes cannot change without changing the output, and why.
        sized: additional fields that only set sizes.
        inner: modules that read what others of the part have computed, and never its input.
    """

    layouts: ClassVar[Mapping[str, str]] = {}
    fields: ClassVar[Mapping[str, str]] = {}
    norms: ClassVar[Mapping[str, tuple[str, str]]] = {}
    writes: ClassVar[tuple[str, ...]] = ()
    silent: ClassVar[Mapping[str, str]] = {}
    twins: ClassVar[Mapping[str, str]] = {}
    fixed: ClassVar[Mapping[str, str]] = {}
    sized: ClassVar[tuple[str, ...]] = ()
    inner: ClassVar[tuple[str, ...]] = ()

    def layouts_of(self, part: S) -> Mapping[str, str]:
        """Return the dimensions of the tensors of a part that are not those of all."""
        return {}

    def all_layouts(self, part: S) -> Mapping[str, str]:
        """Return the dimensions of each tensor of a part."""
        layouts = {**self.layouts, **self.layouts_of(part)}
        matrices = [name for name in layouts if name.endswith("weight")]
        biases = {name.removesuffix("weight") + "bias": layouts[name].split()[0] for name in matrices}
        return biases | layouts

    def sizes(self, part: S, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return the sizes of the letters in the layouts, from those of the whole model (D, V and T)."""
        values = {letter: getattr(part, name) for letter, name in self.fields.items()}
        own = {letter: value(sizes["D"]) if callable(value) else value or 0 for letter, value in values.items()}
        return {**sizes, **own}

    def inside(self, part: S) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        """Return the parts inside of one by module, with their own letters as dimensions of this part's letters."""
        return {path: (getattr(part, field), {"N": over}) for path, (field, over) in self.norms.items()}

    def fixed_in(self, part: S) -> Mapping[str, str]:
        """Return the letters whose sizes cannot change without changing the output, and why."""
        return self.fixed

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
        layouts = self.all_layouts(at.old)
        # parts inside fold the gains themselves
        others = tuple(f"{path}." for path in (*self.inside(at.old), *self.inner))
        matrices = sorted(name for name, x in at.donated.items() if x.dim() > 1 and not name.startswith(others))
        unknown = [name for name in matrices if name not in layouts]
        at.require(not unknown, f"the norm's gains cannot be folded into {enumeration(unknown)}")
        for name in matrices:
            if layouts.get(name, "").endswith(" D") and name not in self.writes:
                at.compute(name, at.donated[name] * at.gains, FOLDED)
        at.promise(Start.ROUNDED, "the gains of the preceding norm are folded into the matrices")

    def takes(self, old: Spec, new: S) -> bool:
        """Return whether weights of the donor's part can be taken over at all."""
        return type(old) is type(new)

    def transfer(self, at: Transfer[S]) -> None:
        """Fill the new module. By default: equal entries of equally named tensors."""
        self.take_named(at)
        if at.old != at.new:
            at.promise(*self.start(at))

    def start(self, at: Transfer[S]) -> tuple[Start, str]:
        """Return the promise if specifications differ but all donor tensors were kept."""
        if names := self.differing(at):
            return Start.CHANGED, f"{', '.join(names)} differs"
        same = {name: getattr(at.new, name) for name in self.sizing(at) & type(at.new).model_fields.keys()}
        return Start.SAME if at.old.model_copy(update=same) == at.new else Start.ROUNDED, ""

    def differing(self, at: Transfer[S]) -> list[str]:
        """Return the fields that change the output by their values; parts inside promise for themselves."""
        inside = {id(part) for parts in (self.inside(at.old), self.inside(at.new)) for part, _ in parts.values()}
        names = (name for name in type(at.new).model_fields if name not in (*self.sizing(at), *ROUNDING))
        pairs = {name: (getattr(at.old, name), getattr(at.new, name)) for name in names}
        return [name for name, (x, y) in pairs.items() if x != y and not (id(x) in inside and id(y) in inside)]

    def sizing(self, at: Transfer[S]) -> set[str]:
        """Return the fields that only set sizes, whose entries promise for themselves, or only matter in training."""
        return {*self.fields.values(), *self.sized, *TRAINING}

    def take_named(self, at: Transfer[S]) -> None:
        """Take over every tensor that has the same name in the donor, entry by entry where the layout is known."""
        layouts, entries = self.all_layouts(at.new), self.entries(at)
        inside = self._take_inside(at, entries)
        new = self.sizes(at.new, at.new_sizes)
        for letter, why in self.fixed_in(at.new).items():
            at.require(entries.sizes[letter] == new[letter], why)
        for name in sorted(at.left):
            if name not in at.donated and name.rpartition(".")[2] == "bias":
                at.fill(name, 0.0)
            elif name not in at.donated:
                at.keep_initial(name)
                at.promise(Start.CHANGED, f"{name} is new")
            elif name in layouts and at.donated[name].shape == entries.old_shape(layouts[name]):
                self._take(at, name, layouts[name], entries)
            elif at.fits(name):
                at.keep(name)
            else:
                at.keep_initial(name, f"as initialized: {tuple(at.donated[name].shape)} does not fit")
                at.promise(Start.CHANGED, f"{name} has a different shape")
        unused = sorted(name for name in at.donated.keys() - at.tensors.keys() if not name.startswith(inside))
        at.require(not unused, f"{enumeration(unused)} of the donor is not used")

    def entries(self, at: Transfer[S]) -> Entries:
        """Return the donor's index of every entry of all dimensions."""
        old, new = self.sizes(at.old, at.old_sizes), self.sizes(at.new, at.new_sizes)
        inside = (layout for _, letters in self.inside(at.new).values() for layout in letters.values())
        letters = set(letters_of("".join((*self.all_layouts(at.new).values(), *inside))))
        indices = {
            letter: at.indices(letter, old[letter], new[letter]) for letter in sorted(letters - self.twins.keys())
        }
        if TAPS in letters:
            before, after = old[TAPS], new[TAPS]
            indices[TAPS] = [*[NEW] * (after - before), *range(max(before - after, 0), before)]
        return Entries(old, indices | {twin: indices[letter] for twin, letter in self.twins.items() if twin in letters})

    def _take_inside(self, at: Transfer[S], entries: Entries) -> tuple[str, ...]:
        # parts inside of both; returns how the names of their tensors begin
        before, after = self.inside(at.old), self.inside(at.new)
        modules = dict(at.donor.named_modules()).keys() & dict(at.module.named_modules()).keys()
        paths = [path for path in after if path in before and path in modules]
        for path in paths:
            part, letters = after[path]
            flat = {letter: entries.of(dimension) for letter, dimension in letters.items()}
            transplant_inner(
                at, path, path, before[path][0], part,
                old_sizes={**at.old_sizes, **{letter: size for letter, (size, _) in flat.items()}},
                new_sizes={**at.new_sizes, **{letter: len(indices) for letter, (_, indices) in flat.items()}},
                selected={letter: indices for letter, (_, indices) in flat.items()},
                gains=at.gains if "D" in letters else None,
            )  # fmt: skip
        return tuple(f"{path}." for path in paths)

    def _take(self, at: Transfer[S], name: str, layout: str, entries: Entries) -> None:
        letters = letters_of(layout)
        if all(entries.are_same(letter) for letter in letters):
            at.keep(name)
            return
        numbers = target = at.tensors[name]
        matrix = name.removesuffix("bias") + "weight"
        silent = layout if name in self.writes else self.silent.get(name, self.silent.get(matrix, "")) + TAPS
        if not target.is_meta:  # torch would gather shapes in Python, and import its compiler for that
            drawn = target.masked_fill(entries.are_new(layout, silent, target.device), 0.0)
            is_new = entries.are_new(layout, layout, target.device)
            numbers = torch.where(is_new, drawn, entries.taken(at.donated[name], layout))
        at.put(name, numbers, *_how(entries, letters, silent))
        is_cut = any(entries.are_cut(letter) for letter in letters)
        at.promise(Start.CHANGED if is_cut else Start.ROUNDED, f"{name} has different entries")


def _how(entries: Entries, letters: Sequence[str], silent: str) -> tuple[How, tuple[str, ...], str]:
    # what became of a tensor, its sources, and which entries were left out, added or repeated
    hows: list[How] = []
    words = []
    for letter in letters:
        indices, old = entries.indices[letter], entries.sizes[letter]
        copied = [index for index in indices if index != NEW]
        if len(set(copied)) < old:
            hows.append("cut")
            words.append(f"{len(set(copied))} of {old} {letter}")
        if len(copied) < len(indices):
            hows.append("grown")
            drawn = "" if letter == "V" else ", zero" if letter in silent else ", as initialized"  # tokens are means
            words.append(f"{len(indices) - len(copied)} new {letter}{drawn}")
        if len(set(copied)) < len(copied):
            hows.append("copied")
            words.append(f"{old} {letter} repeated to {len(indices)}")
    if not hows:
        return "copied", (), "in another order"
    return "cut" if "cut" in hows else hows[0], (), "; ".join(words)


def transplant(at: Transfer[Any]) -> None:
    """Transfer weights between two parts by the new kind's transplants."""
    kind = transplant_of(at.new)
    at.promise(Start.SAME)
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
            at.promise(Start.CHANGED, f"no weights can be reused between {names}")
        for name in sorted(at.left):
            at.keep_initial(name)


def transplant_inner(at: Transfer[Any], path: str, donor_path: str, old: Spec, new: Spec, **changes: Any) -> None:
    """Transfer the weights of an inner part; `changes` replace attributes of the transfer."""
    transplant(at.inner(path, donor_path, old, new, **changes))
    at.left -= {name for name in at.left if name.startswith(f"{path}.")}


def transplant_of(part: Spec) -> Transplant[Any]:
    return cast(Callable[[], Transplant[Any]], provided("transplant", type(part)) or Transplant)()


def are_equal(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; False on the meta device, where there are none to compare."""
    return not x.is_meta and torch.equal(x, y)


def holds(condition: Tensor) -> bool:
    """Return whether a condition holds for all numbers; False on the meta device, where there are none."""
    return not condition.is_meta and bool(condition.all())


def mean(x: Tensor, dim: int) -> Tensor:
    """Return the mean over a dimension."""
    # torch would compute the shape of it in Python, and import its compiler for that, which takes seconds
    return x.select(dim, 0) if x.is_meta else x.mean(dim)
