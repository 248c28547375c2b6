"""Fill a model with a new specification with a donor's weights, part by part."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from archetype.errors import SpecError, enumeration
from archetype.models.block.spec import Block
from archetype.models.build import Model, build
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import StackView
from archetype.nn.ledger import Ledger, Start, Taken
from archetype.nn.transfer import Cuts, Similar, Transfer
from archetype.nn.transplant import are_equal, transplant, transplant_of
from archetype.roles.norm import Norm
from archetype.roles.wiring import Wiring
from archetype.spec.base import Spec
from archetype.spec.repeats import OF_PASSES
from archetype.surgery.layers import norms_of, origins, owner, sizes_of, source_sizes

# fields of models of which parts, tensors and layers say what holds, or that change no output
PROMISED = (
    "version", "name", "vocab_size", "source_vocab_size", "context_length", "d_model", "embedding", "layers", "encoder",
    "decoder", "global_model", "local_model", "residual", "final_norm", "head", "further_tokens", "initialization",
)  # fmt: skip
Sizes = tuple[Mapping[str, int], Mapping[str, int]]


def fill(donor: Model, spec: ModelSpec, cuts: Cuts) -> tuple[Model, Ledger]:
    """Build a model and fill it with the donor's weights. Return the model and the ledger of its tensors.

    On the meta device shapes alone say so: weights that could be equal count as different.

    Raises:
        SpecError: the models are of different kinds, or the cuts do not fit.
    """
    check_kinds(donor.spec, spec)
    model = build(spec, cuts.seed, donor.device, donor.dtype).eval()
    _keep_precision(model, donor)
    ledger = Operation(donor, model, cuts).run()
    for subject in cuts.choices.keys() - ledger.asked:
        known = f"use {enumeration(sorted(ledger.asked), 'or')}" if ledger.asked else "remove it"
        raise SpecError(f"--with {subject}", "these changes need no such choice", known)
    return model, ledger


def _keep_precision(model: Model, donor: Model) -> None:
    # statistics and router corrections may be stored in a wider type than the matrices
    dtypes = (buffer.dtype for buffer in donor.buffers() if buffer.is_floating_point())
    widest = reduce(torch.promote_types, dtypes, model.dtype)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.to(widest))


def check_kinds(donor: ModelSpec, spec: ModelSpec) -> None:
    """Raise an error if a donor's kind of model cannot be transplanted to the new kind."""
    if donor.kind != spec.kind:
        cause = f"the donor is of kind {donor.kind}, but the new model of kind {spec.kind}"
        raise SpecError("kind", cause, f"use a specification of kind {donor.kind}")
    if not donor.stacks:
        raise SpecError("kind", f"a model of kind {spec.kind} has no layers to change", "use a model with layers")


class Operation:
    """One transplant: the donor, the new model, and the ledger that is written."""

    def __init__(self, donor: Model, model: Model, cuts: Cuts) -> None:
        self.donor, self.model, self.cuts, self.ledger = donor, model, cuts, Ledger()
        module = getattr(donor, "embedding", None)
        self.similar = {"embedding": Similar("embedding", module)} if isinstance(module, nn.Module) else {}

    @torch.no_grad()
    def run(self) -> Ledger:
        old, new = self.donor.spec, self.model.spec
        self._part_of_model("embedding", "embedding", 0)
        embeddings = (getattr(spec, "embedding", None) for spec in (old, new))
        before, after = (getattr(embedding, "source_placement", None) or embedding for embedding in embeddings)
        self._part("source_embedding", "source_embedding", before, after, (source_sizes(old), source_sizes(new)))
        for stacks in zip(old.stacks, new.stacks, strict=True):
            self._stack(*stacks)
        self._part_of_model("lm_head", "head", -1, self._gains_of_end(old.stacks[0], new.stacks[0]))
        self._part_of_model("classifier", "head", -1)
        # tables of the stack, further tokens and residual weights
        self._take_rest("", "", old, new)
        for name in type(new).model_fields:
            is_same = name in PROMISED or getattr(old, name) == getattr(new, name)
            self.ledger.require(name, is_same, f"{name} differs")
        return self.ledger

    def _part_of_model(self, path: str, field: str, stack: int, gains: Tensor | None = None) -> None:
        specs = self.donor.spec, self.model.spec
        old, new = (getattr(spec, field, None) for spec in specs)
        sizes = [sizes_of(spec, spec.stacks[stack]) for spec in specs]
        self._part(path, path, old, new, (sizes[0], sizes[1]), gains=gains)

    def _stack(self, old: StackView, new: StackView) -> None:
        sizes = sizes_of(self.donor.spec, old), sizes_of(self.model.spec, new)
        self._table(old, new, sizes)
        prefix, layers = new.prefix, origins(old, new, self.cuts.layers)
        silent: set[int] = set()  # new layers that add nothing
        for index, (origin, block) in enumerate(zip(layers, new.layers, strict=True)):
            path, donor_path = f"{prefix}blocks.{index}", f"{prefix}blocks.{owner(old, origin)}"
            is_repeated = origin in layers[:index]
            if block.weights_of is not None:
                first = layers[block.weights_of]
                is_alike = old.layers[origin].own == old.layers[first].own
                self._shared(path, donor_path, f"{prefix}blocks.{owner(old, first)}", is_alike, is_repeated)
            else:
                similar = self._sources(old, new, index, layers, silent)
                self._block(path, donor_path, old.layers[origin], block, sizes, similar)
                adds = new.residual.is_sum and block.wiring.adds_to_stream and block.reads_again is None
                if adds and (self._silence(path, block) if is_repeated else self._is_silent(path, block)):
                    silent.add(index)
                else:
                    self.ledger.require(path, not is_repeated, f"layer {origin} of the donor again")
            before, theirs = (
                [one.adds_input_of, *(getattr(one, name) for name in OF_PASSES)] for one in (block, old.layers[origin])
            )
            is_same_input = before == theirs and (index == origin or before == [None, *(False for _ in OF_PASSES)])
            self.ledger.require(path, is_same_input, "reads the input of a different layer")
        place = f"{prefix}blocks"
        reaches = any(stack.reaches_next(layer) for stack in (old, new) for layer in range(len(stack.layers)))
        is_moved = reaches and layers != list(range(len(old.layers)))
        self.ledger.require(place, not is_moved, "a layer passes a value to the next layer, which has changed")
        dropped = sorted(set(range(len(old.layers))) - set(layers))
        names = f"layer{'s' * (len(dropped) > 1)} {enumeration(map(str, dropped))}"
        self.ledger.require(place, not dropped, f"the donor's {names} dropped")
        is_ordered = list(dict.fromkeys(layers)) == sorted(set(layers))
        self.ledger.require(place, is_ordered, "the donor's layers are in a different order")
        self.ledger.require(f"{prefix}residual", old.residual == new.residual, "another residual wiring")
        norm = f"{prefix}final_norm"
        self._part(norm, norm, old.final_norm, new.final_norm, sizes, gains=self._gains_of_end(old, new))

    def _table(self, old: StackView, new: StackView, sizes: Sizes) -> None:
        # the table of positions that the layers of a stack share
        if new.relative_bias is None:
            return
        (spec, heads), place = new.relative_bias, f"{new.prefix}position_bias"
        if old.relative_bias is None:
            if names := self._silence_part(place, spec):
                self.ledger.promise(place, Start.SAME, f"{', '.join(names)} begins with 0")
            return
        before, heads_before = old.relative_bias
        counts = {**sizes[0], "H": heads_before}, {**sizes[1], "H": heads}
        self._part(place, f"{old.prefix}position_bias", before, spec, counts)

    def _block(
        self, path: str, donor_path: str, old: Block, new: Block, sizes: Sizes, similar: Mapping[str, Similar]
    ) -> None:
        before = norms_of(self.donor.get_submodule(donor_path), old)
        after = norms_of(self.model.get_submodule(path), new)
        folds = new.wiring.normalizes_input and new.wiring.adds_to_stream and old.wiring.kind == new.wiring.kind
        gains: dict[str, Tensor | None] = {}
        for content in new.contents.keys() & old.contents.keys() if folds else ():
            source, target = _read(before, content), _read(after, content)
            gains[content] = self._gains(f"{donor_path}.{source}", before[source], after[target])
        for name, norm in after.items():
            content = name.removesuffix("_norm").removesuffix("_post")
            source = name if name in before else f"mixer{name.removeprefix(content)}"  # one norm of both contents
            if source in before:
                folded = None if name.endswith("_post_norm") else gains.get(content)
                self._part(f"{path}.{name}", f"{donor_path}.{source}", before[source], norm, sizes, gains=folded)
        if before.keys() - after.keys() and {"mixer_norm", "feedforward_norm"} <= before.keys():
            is_one = self._is_one_norm(donor_path, gains)
            self.ledger.require(path, is_one, "the norms to be merged are not equal")
        for name, part in new.contents.items():
            if name in old.contents:
                at = f"{path}.{name}", f"{donor_path}.{name}"
                self._part(*at, old.contents[name], part, sizes, similar, gains.get(name))
            else:
                self.ledger.promise(f"{path}.{name}", Start.CHANGED, "the donor's layer has no such part")
        for name in old.contents.keys() - new.contents.keys():
            self.ledger.promise(path, Start.CHANGED, f"the donor's {name} is dropped")
        reads_alike = before.keys() == after.keys() or self.model.spec.stacks[0].residual.is_sum
        self.ledger.require(path, reads_alike, "its parts read the residual stream differently")
        forms = [(_form(block.wiring), block.residual_scale) for block in (old, new)]
        is_same = forms[0] == forms[1] and (new.output_scale or not old.output_scale)
        self.ledger.require(path, is_same, "another wiring")
        self._take_rest(path, donor_path, old, new)

    def _take_rest(self, path: str, donor_path: str, old: Spec, new: Spec) -> None:
        # tensors of a block or of the model itself, and of parts that the donor does not have
        modules = self.donor.get_submodule(donor_path), self.model.get_submodule(path)
        at = Transfer(old, new, *modules, path, donor_path, {}, {}, self.ledger)
        for name in sorted(at.left):
            if (f"{path}.{name}" if path else name) in self.ledger.tensors:
                continue
            if at.fits(name):
                at.keep(name)
            elif name == "output_scale":
                at.fill(name, 1.0)
            else:
                at.keep_initial(name)
                start = Start.SAME if name.startswith("further_tokens.") else Start.CHANGED  # which only predict
                self.ledger.promise(path or name.rpartition(".")[0], start, f"{name} is new")

    def _part(
        self,
        path: str,
        donor_path: str,
        old: Spec | None,
        new: Spec | None,
        sizes: Sizes,
        similar: Mapping[str, Similar] | None = None,
        gains: Tensor | None = None,
    ) -> None:
        module, donor = _submodule(self.model, path), _submodule(self.donor, donor_path)
        if old is None or new is None or module is None or donor is None:
            self.ledger.require(path, module is donor, "is not in both models")
            return
        selected = {} if self.cuts.vocabulary is None else {"V": self.cuts.vocabulary.tokens}
        similar = self.similar if similar is None else similar
        models = old, new, donor, module, path, donor_path
        transplant(Transfer(*models, *sizes, self.ledger, self.cuts, selected, similar, gains))

    def _gains(self, donor_path: str, old: Norm, new: Norm) -> Tensor | None:
        # gains of a norm of the donor that the new norm does not have
        kind: Any = transplant_of(old)
        gains: Tensor | None = kind.gains(old, new, self.donor.get_submodule(donor_path))
        return None if gains is None else gains.detach()

    def _gains_of_end(self, old: StackView, new: StackView) -> Tensor | None:
        # the head reads the final norm; blocks of further tokens read it as well
        spec = self.model.spec
        is_read = len(spec.stacks) == 1 and spec.further_stack is None and _submodule(self.model, "lm_head") is not None
        return self._gains("final_norm", old.final_norm, new.final_norm) if is_read else None

    def _is_one_norm(self, donor_path: str, gains: Mapping[str, Tensor | None]) -> bool:
        # whether two norms of the donor may become one: they are equal, or their gains are folded
        norms = (self._state(f"{donor_path}.{name}_norm") for name in ("mixer", "feedforward"))
        return _is_equal(*norms) or all(folded is not None for folded in gains.values())

    def _state(self, donor_path: str) -> dict[str, Tensor]:
        return self.donor.get_submodule(donor_path).state_dict()

    def _silence(self, path: str, block: Block) -> bool:
        # a layer that repeats another one begins by adding nothing: its outputs are zero, or the gains of their norms
        for name, taken in self.ledger.tensors.items():
            if name.startswith(f"{path}.") and taken.how == "kept":
                self.ledger.tensors[name] = replace(taken, how="copied", note="the layer is repeated")
        module, is_silent = self.model.get_submodule(path), True
        added: Any = module.added or ""
        for content, part in block.contents.items():
            names: Sequence[str] = ()
            if added:
                names = self._silence_part(f"{path}.{content}{added}", block.wiring.norm_of(content, added[1:]))
            if "weight" not in names:  # without gains, the norm of zeros is zero
                is_silent &= bool(self._silence_part(f"{path}.{content}", part))
        if block.output_scale:
            module.get_parameter("output_scale").fill_(1.0)
            self.ledger.tensors[f"{path}.output_scale"] = Taken("new", (), "all 1")
        if is_silent:
            self.ledger.forget(path)
            self.ledger.promise(path, Start.SAME, "an additional layer that adds nothing")
        return is_silent

    def _silence_part(self, path: str, part: Any) -> Sequence[str]:
        names = transplant_of(part).silence(part, self.model.get_submodule(path))
        for name in names:
            self.ledger.tensors[f"{path}.{name}"] = Taken("new", (), "so that it adds nothing")
        return names

    def _is_silent(self, path: str, block: Block) -> bool:
        # nobody knows without numbers, unless the layer was silenced here
        state = self.model.get_submodule(path).state_dict()
        for name, part in block.contents.items():
            writes = [state[place] for tensor in transplant_of(part).writes if (place := f"{name}.{tensor}") in state]
            if not writes or any(tensor.is_meta or tensor.any() for tensor in writes):
                return False
        return True

    def _sources(
        self, old: StackView, new: StackView, index: int, layers: Sequence[int], silent: AbstractSet[int]
    ) -> Mapping[str, Similar]:
        # the donor's layer whose keys a layer reads, or read: as its own if nothing is added between
        origin, source = layers[index], new.layers[index].mixer.source(index)
        donors = old.layers[origin].mixer.source(origin)
        if source is None and donors is not None:
            read = donors
        elif source is not None and donors is None:
            read = layers[source]
            if not (self._reads_same(old, origin, read) and set(range(source, index)) <= silent):
                return self.similar
        else:
            is_same = source is None or (layers[source] == donors and layers[source] not in layers[:source])
            self.ledger.require(f"{new.prefix}blocks.{index}.mixer", is_same, "reads a different layer than before")
            return self.similar if donors is None else {**self.similar, "read": self._mixer_of(old, donors)}
        return {**self.similar, "keys": self._mixer_of(old, read)}

    def _mixer_of(self, old: StackView, layer: int) -> Similar:
        path = f"{old.prefix}blocks.{owner(old, layer)}.mixer"
        return Similar(path, self.donor.get_submodule(path))

    def _reads_same(self, old: StackView, *layers: int) -> bool:
        # whether the mixers of two of the donor's layers have the same norm before them
        norms, states = [], []
        for layer in layers:
            wiring, state = old.layers[layer].wiring, self._state(f"{old.prefix}blocks.{owner(old, layer)}")
            norms.append(wiring.norm_of("mixer") if wiring.normalizes_input else None)
            states.append({name: x for name, x in state.items() if name.startswith("mixer_norm.")})
        return norms[0] == norms[1] and _is_equal(*states)

    def _shared(self, path: str, donor_path: str, first: str, is_alike: bool, is_repeated: bool) -> None:
        # a layer that reuses another one's weights is the donor's if the donor's two layers are equal
        self.ledger.promise(path, Start.SAME)
        self.ledger.require(path, not is_repeated, "repeats a layer")
        is_same = is_alike and _is_equal(self._state(donor_path), self._state(first))
        self.ledger.require(path, is_same, f"repeats {first}, which differs")


def _read(norms: Mapping[str, Norm], content: str) -> str:
    # the norm whose output a content reads: its own, or one of both contents
    return f"{content}_norm" if f"{content}_norm" in norms else "mixer_norm"


def _form(wiring: Wiring) -> dict[str, Any]:
    # all but the norms, which are compared one by one
    return {name: x for name, x in wiring if not isinstance(x, Norm) and x is not None and name != "shared_norm"}


def _is_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(are_equal(a[name], b[name]) for name in a)


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:  # there is none, or it is None
        return None
