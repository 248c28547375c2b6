"""Transplants of experts: a network copied into each (upcycling, Komatsuzaki 2022), doubled, merged or removed."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from archetype.nn.inspect import PartTrace
from archetype.nn.layouts import best
from archetype.nn.ledger import Start
from archetype.nn.transfer import Transfer
from archetype.nn.transplant import Transplant
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.router.spec import SoftmaxRouter
from archetype.spec.base import Spec
from archetype.spec.registry import provides

MATRICES = ("gate", "up", "down")


@provides("transplant", MixtureOfExperts)
class ExpertsTransplant(Transplant[MixtureOfExperts]):
    """Upcycle a network to equal experts whose weights sum to 1; its first features may become the shared expert.

    Fewer experts are those with the largest weights on a text, or merged in groups (Li 2024, M-SMoE): each of the
    others joins the one of these with the most similar router logits, and a group is the mean of its experts by their
    weights. The router keeps the rows of the largest. Hidden features are not permuted before, as upcycled experts need
    not be.
    """

    layouts: ClassVar = {
        "router.table": "V C", "shared_gate.weight": "1 D", "latent_down.weight": "L D", "latent_up.weight": "D L",
        "router.down.weight": "R D", "router.fc1.weight": "R R", "router.fc2.weight": "R R", "router.carry": "R",
        "shared.gate.weight": "S D", "shared.up.weight": "S D", "shared.down.weight": "D S",
    }  # fmt: skip
    writes: ClassVar = (
        "experts.down", "experts.down_bias", "shared.down.weight", "shared.down.bias", "latent_up.weight",
    )  # fmt: skip

    def layouts_of(self, part: MixtureOfExperts) -> Mapping[str, str]:
        width, routed = "L" if part.latent_width else "D", "I" if part.idle or part.always else "E"
        corrected, stacked = "I" if part.idle else "E", "I" if part.always else "E"
        return {
            "router.weight": f"{routed} D", "correction": corrected, "router.projection.weight": f"{routed} D",
            "router.out.weight": f"{routed} R", "router.norm.weight": "R" if part.router.state_width else "D",
            "experts.gate": f"{stacked} F {width}", "experts.up": f"{stacked} F {width}",
            "experts.down": f"{stacked} {width} F", "experts.down_bias": f"{stacked} {width}",
            "experts.gate_bias": f"{stacked} F", "experts.up_bias": f"{stacked} F", "expert_scales": routed,
        }  # fmt: skip

    def sizes(self, part: MixtureOfExperts, sizes: Mapping[str, int]) -> Mapping[str, int]:
        width = part.latent_width or sizes["D"]
        shared = 0 if part.shared is None else part.shared.width(sizes["D"])
        return {
            **sizes, "E": part.num_experts, "I": part.num_computed + part.idle, "F": part.expert.width(width),
            "S": shared, "L": width, "C": part.experts_per_token, "R": part.router.state_width,
        }  # fmt: skip

    def importance(self, part: MixtureOfExperts, trace: PartTrace) -> Mapping[str, Tensor]:
        """Sums of the weights of each expert, and products of the experts' router logits."""
        weights, chosen, logits = (trace.activations[name] for name in ("weights", "chosen", "router_logits"))
        counts = logits.new_zeros(logits.shape[-1], dtype=torch.float32)
        counts = counts.index_add(0, chosen.flatten(), weights.flatten().float())
        own = logits[:, : part.num_experts].float()  # without further experts, which come last
        return {"E": counts[: part.num_experts], "EE": own.T @ own}

    def inside(self, part: MixtureOfExperts) -> Mapping[str, tuple[Spec, Mapping[str, str]]]:
        norms = {"norm": (part.norm, {"N": "D"}), "latent_norm": (part.latent_norm, {"N": "L"})}
        return {name: inner for name, inner in norms.items() if not inner[0].is_absent}

    def fold(self, at: Transfer[MixtureOfExperts]) -> None:
        if at.old.norm.is_absent:
            super().fold(at)
        else:
            at.promise(Start.CHANGED, "the experts read the normalized input, and the router does not")

    def silence(self, part: MixtureOfExperts, module: nn.Module) -> Sequence[str]:
        return () if part.idle else super().silence(part, module)  # idle experts return their input

    def takes(self, old: Spec, new: MixtureOfExperts) -> bool:
        return isinstance(old, MixtureOfExperts | MLP | GatedMLP)

    def transfer(self, at: Transfer[Any]) -> None:
        if not isinstance(at.old, MixtureOfExperts):
            self._upcycle(at)
            return
        old, new = at.old.num_experts, at.new.num_experts
        if at.old.shared is None and at.new.shared is not None:
            self._add_shared(at)
        if "router.table" in at.left and (new < old or at.old.experts_per_token != at.new.experts_per_token):
            at.keep_initial("router.table", "redrawn, since it lists the donor's experts")
            at.promise(Start.CHANGED, "different experts for each token id")
        further = at.old.always + at.old.idle
        if further and (at.new.always, at.new.idle) == (at.old.always, at.old.idle):  # they stay the last ones
            chosen = at.selected.get("E", at.indices("E", old, new))
            at.selected = {**at.selected, "E": chosen, "I": [*chosen, *range(old, old + further)]}
        if at.old.idle or at.new.idle or at.old.always or at.new.always or "E" in at.selected or old == new:
            super().transfer(at)
        elif new > old:
            self._multiply(at, new // old if new % old == 0 else 0)
        elif at.choice("experts", "cut", "merged") == "merged":
            self._merge(at, old, new)
        else:
            super().transfer(at)

    def start(self, at: Transfer[MixtureOfExperts]) -> tuple[Start, str]:
        same: dict[str, Any] = {
            "expert": at.old.expert.replace(d_ff=at.new.expert.d_ff), "num_experts": at.new.num_experts,
            "balance_loss": at.new.balance_loss,
        }  # fmt: skip
        if at.old.shared is None:
            same |= {"shared": at.new.shared, "shared_gate": at.new.shared_gate}
        elif at.new.shared is not None:
            same["shared"] = at.old.shared.replace(d_ff=at.new.shared.d_ff)
        if at.old.model_copy(update=same) != at.new:
            return Start.CHANGED, "its fields differ"
        return (Start.SAME, "") if at.old.num_experts == at.new.num_experts else (Start.CHANGED, "other experts")

    def _add_shared(self, at: Transfer[MixtureOfExperts]) -> None:
        # a further expert for every token, whose output is zero at first
        for name in sorted(name for name in at.left if name.startswith(("shared.", "shared_gate."))):
            at.fill(name, 0.0) if name in self.writes else at.keep_initial(name)

    def _upcycle(self, at: Transfer[Any]) -> None:
        # each expert is the network, so that any weights that sum to 1 give its output
        new, shared = at.new, at.new.shared
        width, sizes = at.old.width(at.old_sizes["D"]), self.sizes(new, at.new_sizes)
        forms = [part.replace(d_ff=1) for part in (at.old, new.expert, shared) if part is not None]
        is_same = all(form == forms[0] for form in forms) and new.norm.is_absent and new.latent_width is None
        if not is_same or at.old_sizes["D"] != at.new_sizes["D"]:
            at.promise(Start.CHANGED, "the experts have a different architecture than the network")
            return
        first = sizes["S"]  # hidden features of the shared expert
        if first + sizes["F"] != width:
            cause = f"{first} shared and {sizes['F']} routed hidden features differ from the network's {width}"
            at.promise(Start.CHANGED, cause)
            return
        total = self._sum_of_weights(new)
        for name in MATRICES:
            for kind in ("weight", "bias"):
                if (source := f"{name}.{kind}") in at.donated:
                    self._split(at, name, source, first, total or 1.0)
        if new.shared_gate:
            at.fill("shared_gate.weight", 0.0)
        at.require(total is not None, "the weights of a token's experts do not sum to 1; use router.renormalize: true")
        at.require(not new.idle, "idle experts add to the output")
        at.promise(Start.ROUNDED, "each expert equals the network, and the weights sum to 1")

    def _split(self, at: Transfer[Any], name: str, source: str, first: int, total: float) -> None:
        # hidden features are the rows of gate and up, and the columns of down, whose bias has none
        before, is_weight = at.donated[source], source.endswith("weight")
        tensor = f"experts.{name}" if is_weight else f"experts.{name}_bias"
        if name == "down" and not is_weight:
            shared, rest = before, before
        else:
            shared, rest = before.tensor_split([first], dim=1 if name == "down" else 0)
        share = 1 / total if name == "down" else 1.0
        note = f"into each expert{f', divided by the sum {total:g} of the weights' if share != 1.0 else ''}"
        if first and name == "down" and not is_weight:  # the shared expert adds it
            at.fill(tensor, 0.0)
        else:
            at.put(tensor, (rest * share).expand(at.tensors[tensor].shape), "copied", [source], note)
        if first:
            gate = 2.0 if name == "down" and at.new.shared_gate else 1.0  # a gate of zero is a factor of 1/2
            is_whole = shared.shape == before.shape
            words = "into the shared expert" if is_whole else f"the first {first} hidden features"
            words += ", doubled for the gate of 1/2" if gate != 1.0 else ""
            at.put(f"shared.{source}", shared * gate, "copied" if is_whole else "cut", [source], words)

    def _sum_of_weights(self, part: MixtureOfExperts) -> float | None:
        # of a token's experts, if it is known
        if part.weighs != "outputs" or part.router.weighs_choices:
            return None
        is_whole = isinstance(part.router, SoftmaxRouter) and part.experts_per_token == part.num_experts
        return part.router.scale if part.router.renormalize or (is_whole and not part.idle) else None

    def _multiply(self, at: Transfer[Any], times: int) -> None:
        # copies of an expert have equal logits, so that a token which selects `times` as many selects all copies
        old, new, router = at.old, at.new, at.new.router
        experts = range(new.num_experts)
        chosen = [expert // times for expert in experts] if times else best(old.num_experts, new.num_experts)
        at.selected = {**at.selected, "E": chosen}
        same = {"num_experts": new.num_experts, "experts_per_token": times * old.experts_per_token}
        is_same = (
            times and old.model_copy(update=same) == new and new.groups is None and new.weighs == "outputs"
            and (router.renormalize or isinstance(router, SoftmaxRouter))
            and not router.routes_tokens and not router.weighs_choices
        )  # fmt: skip
        self.take_named(at)
        cause = "tokens select different experts; use a multiple of num_experts and of experts_per_token"
        at.require(is_same, cause)
        at.promise(Start.ROUNDED, f"{times} copies of each expert share its weight")

    def _merge(self, at: Transfer[Any], old: int, new: int) -> None:
        weights, products = at.rank("E"), at.rank("EE")
        if weights is None or products is None:  # without a text
            router = at.donated.get("router.weight", torch.eye(old))
            weights, products = router.new_ones(old, dtype=torch.float32), router.float() @ router.float().T
        dominant = best(old, new, weights)
        lengths = products.diagonal().clamp(min=1e-30).sqrt()
        likeness = (products / lengths[:, None] / lengths)[:, list(dominant)]  # by old and new expert
        likeness[list(dominant), torch.arange(new)] = float("inf")
        group = likeness.argmax(1)  # (E): which of the dominant experts each one joins
        shares = nn.functional.one_hot(group, new).T * weights.clamp(min=1e-12)  # by new and old expert
        shares = shares / shares.sum(1, keepdim=True)
        names = [name for name in at.tensors if name.startswith("experts.")]
        for name in names:
            before = at.donated[name]
            merged = before.clone()
            merged[list(dominant)] = torch.einsum("ke,e...->k...", shares.to(before), before)
            at.donated[name] = merged
        at.selected = {**at.selected, "E": dominant}
        super().transfer(at)
        counts = ", ".join(str(int((group == index).sum())) for index in range(new))
        for name in names:
            at.note(name, f"means of groups of {counts}", "merged")
        at.promise(Start.CHANGED, f"{old} experts are merged into {new}")
