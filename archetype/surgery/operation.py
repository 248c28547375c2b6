"""Fill a model of another specification with the weights of a donor, part by part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from archetype.errors import SpecError, enumeration
from archetype.models.block.spec import Block
from archetype.models.build import Model, build
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import StackView
from archetype.nn.transplant import Ledger, Start, Transfer, are_equal, transplant, transplant_of
from archetype.spec.base import Spec
from archetype.surgery.layers import origins

Selected = Mapping[str, Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class Cuts:
    """What the new model takes where the donor has more or less of something.

    Attributes:
        layers: the donor's layer of each new layer (absent: the same ones, or spread evenly).
        selected: entries of dimensions by module and letter, such as {"blocks.3.feedforward": {"F": [0, 5]}}; the
            module "" selects features (D) and tokens (V) of the whole model.
        choices: how several weights become one, such as {"heads": "mean"}.
    """

    layers: Sequence[int] | None = None
    selected: Selected = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)


def fill(donor: Model, spec: ModelSpec, cuts: Cuts, seed: int = 0) -> tuple[Model, Ledger]:
    """Build a model and fill it with the donor's weights; return it with what became of each tensor.

    Without weights, on the meta device, weights that could be equal count as different.

    Raises:
        SpecError: the models are of different kinds, or the cuts do not fit.
    """
    if donor.spec.kind != spec.kind:
        cause = f"the donor is a model of kind {donor.spec.kind}, and the new one of kind {spec.kind}"
        raise SpecError("kind", cause, f"use a specification of kind {donor.spec.kind}")
    if not donor.spec.stacks:
        raise SpecError("kind", f"a model of kind {spec.kind} has no layers to change", "use a model with layers")
    model = build(spec, seed, donor.device, donor.dtype).eval()
    return model, Operation(donor, model, cuts).run()


class Operation:
    """One transplant: the donor, the new model, and the ledger that is written."""

    def __init__(self, donor: Model, model: Model, cuts: Cuts) -> None:
        self.donor, self.model, self.cuts, self.ledger = donor, model, cuts, Ledger()
        self.similar = (
            {"embedding": module} if isinstance(module := getattr(donor, "embedding", None), nn.Module) else {}
        )

    def run(self) -> Ledger:
        old, new = self.donor.spec, self.model.spec
        sizes = self._sizes(old, old.stacks[0]), self._sizes(new, new.stacks[0])
        for name, module in (("embedding", "embedding"), ("head", "lm_head")):
            self._part(module, module, getattr(old, name, None), getattr(new, name, None), sizes)
        for before, after in zip(old.stacks, new.stacks, strict=True):
            self._stack(before, after)
        self._rest()
        return self.ledger

    def _stack(self, old: StackView, new: StackView) -> None:
        sizes = self._sizes(self.donor.spec, old), self._sizes(self.model.spec, new)
        prefix = new.prefix
        layers = origins(old, new, self.cuts.layers)
        used: set[int] = set()
        for index, (origin, block) in enumerate(zip(layers, new.layers, strict=True)):
            path = f"{prefix}blocks.{index}"
            if block.weights_of is not None:
                self._shared(path, *(f"{prefix}blocks.{owner(old, at)}" for at in (origin, layers[block.weights_of])))
                continue
            self._block(path, f"{prefix}blocks.{owner(old, origin)}", old.layers[origin], block, sizes)
            if origin in used:
                self._silence(path, block)
            used.add(origin)
        if dropped := sorted(set(range(len(old.layers))) - set(layers)):
            names = f"layer{'s' * (len(dropped) > 1)} {enumeration(map(str, dropped))}"
            self.ledger.promise(f"{prefix}blocks", Start.CHANGED, f"the donor's {names} dropped")
        if old.residual != new.residual:
            self.ledger.promise(f"{prefix}residual", Start.CHANGED, "another residual wiring")
        self._part(f"{prefix}final_norm", f"{prefix}final_norm", old.final_norm, new.final_norm, sizes)

    def _block(self, path: str, donor_path: str, old: Block, new: Block, sizes: tuple[Any, Any]) -> None:
        module, donor = self.model.get_submodule(path), self.donor.get_submodule(donor_path)
        for name, part in new.contents.items():
            if name in old.contents:
                self._part(f"{path}.{name}", f"{donor_path}.{name}", old.contents[name], part, sizes)
            else:
                self.ledger.promise(f"{path}.{name}", Start.CHANGED, "the donor's layer has no such part")
        for name in old.contents.keys() - new.contents.keys():
            self.ledger.promise(path, Start.CHANGED, f"the donor's {name} is dropped")
        for content in new.contents:
            for norm in module.norms:  # type: ignore[union-attr]
                if hasattr(module, name := f"{content}_{norm}") and hasattr(donor, name):
                    before, after = (block.wiring.norm_of(content, norm) for block in (old, new))
                    self._part(f"{path}.{name}", f"{donor_path}.{name}", before, after, sizes)
        if (old.wiring.kind, old.residual_scale) != (new.wiring.kind, new.residual_scale):
            self.ledger.promise(path, Start.CHANGED, "another wiring")

    def _part(self, path: str, donor_path: str, old: Spec | None, new: Spec | None, sizes: tuple[Any, Any]) -> None:
        module, donor = _submodule(self.model, path), _submodule(self.donor, donor_path)
        if old is None or new is None or module is None or donor is None:
            if module is not donor:
                self.ledger.promise(path, Start.CHANGED, "is not in both models")
            return
        selected = {**self.cuts.selected.get("", {}), **self.cuts.selected.get(path, {})}
        transplant(
            Transfer(
                old,
                new,
                donor,
                module,
                path,
                donor_path,
                *sizes,
                self.ledger,
                selected,
                self.cuts.choices,
                self.similar,
            )
        )

    @torch.no_grad()
    def _silence(self, path: str, block: Block) -> None:
        # a layer that repeats another one begins by adding nothing
        for tensor, taken in self.ledger.tensors.items():
            if tensor.startswith(f"{path}.") and taken.how == "kept":
                self.ledger.tensors[tensor] = replace(taken, how="copied")
        for name, part in block.contents.items():
            for tensor in transplant_of(part).writes:
                full = f"{path}.{name}.{tensor}"
                if full in self.ledger.tensors:
                    self.model.get_parameter(full).zero_()
                    taken = self.ledger.tensors[full]
                    self.ledger.tensors[full] = replace(taken, how="new", note="zero, so that the layer adds nothing")
        adds_nothing = block.wiring.adds_to_stream
        self.ledger.promise(path, Start.SAME if adds_nothing else Start.CHANGED, "a further layer")

    def _shared(self, path: str, donor_path: str, first_path: str) -> None:
        # a layer that reuses another one's weights is the donor's if the donor's two layers are equal
        own, first = (self.donor.get_submodule(name).state_dict() for name in (donor_path, first_path))
        is_equal = own.keys() == first.keys() and all(are_equal(own[name], first[name]) for name in own)
        self.ledger.promise(path, Start.SAME if is_equal else Start.CHANGED, f"shares the weights of {first_path}")

    def _rest(self) -> None:
        # tables of the stack, further tokens and residual weights: what has the same name and shape
        donated, state = self.donor.state_dict(), self.model.state_dict()
        for name in sorted(state.keys() - self.ledger.tensors.keys()):
            place = name.rpartition(".")[0]
            at = Transfer(self.donor.spec, self.model.spec, self.donor, self.model, "", "", {}, {}, self.ledger)
            if name in donated and donated[name].shape == state[name].shape:
                with torch.no_grad():
                    at.keep(name)
            else:
                at.keep_initial(name)
                is_read = not name.startswith("further_tokens.")  # which only add predictions
                self.ledger.promise(place, Start.CHANGED if is_read else Start.SAME, f"{name} is new")

    def _sizes(self, spec: ModelSpec, stack: StackView) -> dict[str, int]:
        width = stack.d_model
        vocabulary = getattr(spec, "vocab_size", stack.vocab_size)
        return {"D": width, "N": width, "V": vocabulary, "T": getattr(spec, "context_length", 0)}


def owner(stack: StackView, layer: int) -> int:
    """Return the layer whose weights a layer uses: itself, or an earlier one."""
    shared = stack.layers[layer].weights_of
    return layer if shared is None else shared


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:  # there is none, or it is None
        return None
