"""Transplants of experts: a network copied into each (upcycling, Komatsuzaki 2022), and experts added or removed."""

from collections.abc import Mapping
from typing import Any, ClassVar

from archetype.nn.transplant import Start, Transfer, Transplant
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.spec.base import Spec
from archetype.spec.registry import provides

MATRICES = ("gate", "up", "down")


@provides("transplant", MixtureOfExperts)
class ExpertsTransplant(Transplant[MixtureOfExperts]):
    layouts: ClassVar[Mapping[str, str]] = {
        "router.weight": "E D", "router.bias": "E", "correction": "E", "shared_gate.weight": "1 D",
        "expert_scales": "E", "router.norm.weight": "D",
        "experts.gate": "E F D", "experts.up": "E F D", "experts.down": "E D F",
        "experts.gate_bias": "E F", "experts.up_bias": "E F", "experts.down_bias": "E D",
        "shared.gate.weight": "S D", "shared.up.weight": "S D", "shared.down.weight": "D S",
    }  # fmt: skip
    writes: ClassVar = ("experts.down", "experts.down_bias", "shared.down.weight")

    def sizes(self, part: MixtureOfExperts, sizes: Mapping[str, int]) -> Mapping[str, int]:
        width = part.latent_width or sizes["D"]
        shared = 0 if part.shared is None else part.shared.width(sizes["D"])
        return {**sizes, "E": part.num_experts + part.idle, "F": part.expert.width(width), "S": shared, "1": 1}

    def takes(self, old: Spec, new: MixtureOfExperts) -> bool:
        return isinstance(old, MixtureOfExperts | MLP | GatedMLP)

    def transfer(self, at: Transfer[Any]) -> None:
        if isinstance(at.old, MixtureOfExperts):
            super().transfer(at)
        else:
            self._upcycle(at)

    def _upcycle(self, at: Transfer[Any]) -> None:
        # each expert is the network, so that any weights that sum to 1 give its output
        if at.old != at.new.expert or at.new.latent_width is not None or not at.new.norm.is_absent:
            at.promise(Start.CHANGED, "the experts have another form than the network")
            return
        for name in MATRICES:
            for tensor, source in ((f"experts.{name}", f"{name}.weight"), (f"experts.{name}_bias", f"{name}.bias")):
                if tensor in at.tensors:
                    before = at.donated[source]
                    at.put(tensor, before.expand(at.tensors[tensor].shape), "copied", [source], "into each expert")
        sums_to_one = at.new.router.renormalize and at.new.router.scale == 1.0 and at.new.weighs == "outputs"
        if not sums_to_one:
            at.promise(Start.CHANGED, "the weights of a token's experts do not sum to 1; use router.renormalize: true")
        elif at.new.shared is not None or at.new.idle:
            at.promise(Start.CHANGED, "the shared or idle experts add to the output")
        else:
            at.promise(Start.ROUNDED, "each expert is the network, and the weights sum to 1")
