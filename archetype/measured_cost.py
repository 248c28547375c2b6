"""The cost of a part that declares none: counted on its module, built and run on the meta device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from archetype.cost.formula import ZERO, Counts, Formula, constant
from archetype.cost.registry import (
    Complexity,
    FeedForwardCost,
    MixerCost,
    NormCost,
    PartCost,
    ResidualCost,
    WiringCost,
    set_fallback,
)
from archetype.cost.work import TrainingWork, Work
from archetype.errors import SpecError
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward, build_mixer, build_norm, build_position, module_class
from archetype.parts.position.cost import PositionCost
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.position import AttentionSizes, EmbeddingPosition, MixerPosition
from archetype.roles.residual import Residual
from archetype.roles.wiring import Wiring
from archetype.spec.base import Spec

META = torch.device("meta")


class MeasuredContentCost(PartCost):
    """A mixer or a feed-forward part, by its projections and by the products of one pass."""

    module: nn.Module
    further_arguments: tuple[None, ...] = ()  # of its forward

    def parameters(self) -> Counts:
        """Parameters, by the module's children."""
        counts = {name: _total(child) for name, child in self.module.named_children()}
        return counts | {name: constant(p.numel()) for name, p in self.module.named_parameters(recurse=False)}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of what autograd saves in one pass."""
        x = torch.empty(work.rows, work.length, self.d.value, device=META)
        return _saved(lambda: self.module(x, ForwardContext.of(x), *self.further_arguments), self.module, work)

    def state(self, length: int) -> int:
        """Numbers in the state that the module makes, if it makes one."""
        new_state = getattr(self.module, "new_state", None)
        state = new_state and new_state(1, length, torch.float32, META)
        return int(state.nbytes) // torch.float32.itemsize if state else 0


class MeasuredMixerCost(MeasuredContentCost, MixerCost):
    """A mixer; decoding is run with a state."""

    complexity = Complexity(*["not declared"] * 3)
    further_arguments = (None,)  # no state

    def __init__(self, part: Mixer, d: Formula) -> None:
        super().__init__(part, d)
        self.module = _on_meta(lambda: build_mixer(part, Place(d.value)))

    def flops(self, work: Work) -> Counts:
        rows, state, lengths = work.rows.value, None, None
        x = torch.empty(rows, work.queries.value, self.d.value, device=META)
        if work.phase == "decode":
            state = self.module.new_state(rows, work.length.value, x.dtype, META)  # type: ignore[operator]
            lengths = torch.zeros(rows, dtype=torch.long, device=META)
        return {"products": _flops(lambda: self.module(x, ForwardContext.of(x, lengths), state), self.part)}


class MeasuredFeedForwardCost(MeasuredContentCost, FeedForwardCost):
    """The measured cost of a feed-forward part."""

    def __init__(self, part: FeedForward, d: Formula) -> None:
        super().__init__(part, d)
        self.module = _on_meta(lambda: build_feedforward(part, Place(d.value)))

    def flops(self, tokens: Formula) -> Counts:
        """The products of one pass together."""
        x = torch.empty(1, tokens.value, self.d.value, device=META)
        return {"products": _flops(lambda: self.module(x, ForwardContext.of(x)), self.part)}


class MeasuredNormCost(NormCost):
    """A norm, by its parameters and by what one pass saves."""

    def __init__(self, part: Norm, d: Formula) -> None:
        super().__init__(part, d)
        self.module = _on_meta(lambda: build_norm(part, d.value))

    def parameters(self) -> Formula:
        return _total(self.module)

    def saved_activations(self, vectors: int) -> int:
        """Bytes of what autograd saves in one pass."""
        x = torch.empty(1, vectors, self.d.value, device=META)
        work = TrainingWork(1, vectors, False, "float32")
        return _saved(lambda: self.module(x, ForwardContext.of(x)), self.module, work)


class MeasuredPositionCost(PositionCost):
    """Positions, by their parameters."""

    def parameters(self, context_length: int) -> Formula:
        if not isinstance(self.part, EmbeddingPosition):
            return ZERO
        return _total(_on_meta(lambda: build_position(self.part, context_length, self.d.value)))

    def mixer_parameters(self, sizes: AttentionSizes) -> Formula:
        return _total(_on_meta(lambda: module_class(self.part)(self.part, sizes)))


class MeasuredWiringCost(WiringCost):
    """A wiring, by the norms that its module has for each content."""

    def __init__(self, part: Wiring, d: Formula) -> None:
        super().__init__(part, d)
        self.names = getattr(module_class(part), "norms", ()) if hasattr(part, "norm") else ()

    def parameters(self, content: str) -> tuple[Formula, Formula]:
        """Parameters of the first norm, and of all further ones."""
        counts = [norm.parameters() for norm in self._norms(content)]
        return sum(counts[:1], ZERO), sum(counts[1:], ZERO)

    def saved_activations(self, contents: Sequence[str], work: TrainingWork) -> int:
        """Bytes saved by all norms."""
        return sum(norm.saved_activations(work.tokens) for name in contents for norm in self._norms(name))

    def _norms(self, content: str) -> list[NormCost]:
        return [NormCost.of(self.part.norm_of(content, name), self.d) for name in self.names]


class MeasuredResidualCost(ResidualCost):
    """A residual wiring, by the parameters of the module that each content has."""

    def parameters(self) -> Formula:
        """All parameters of one content's module."""
        return _total(_on_meta(lambda: module_class(self.part)(self.part, Place(self.d.value, residual=self.part))))


ROLES: dict[type[Spec], type[PartCost]] = {
    Mixer: MeasuredMixerCost,
    FeedForward: MeasuredFeedForwardCost,
    Norm: MeasuredNormCost,
    Wiring: MeasuredWiringCost,
    Residual: MeasuredResidualCost,
    EmbeddingPosition: MeasuredPositionCost,
    MixerPosition: MeasuredPositionCost,
}


def measured(part: Spec, d: Formula) -> PartCost | None:
    """The cost of a part for which no class is registered; None for what is not a part of a layer."""
    cost = next((cost for role, cost in ROLES.items() if isinstance(part, role)), None)
    return None if cost is None else cost(part, d)


set_fallback(measured)


def _on_meta(build: Callable[[], nn.Module | None]) -> nn.Module:
    with META:
        module = build()
    assert module is not None
    return module


def _total(module: nn.Module) -> Formula:
    return constant(sum(parameter.numel() for parameter in module.parameters()))


class _FlopCounter(TorchDispatchMode):
    """FLOPs of this thread; torch's FlopCounterMode hooks the modules of all threads, a served model's too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As for the recorder of native operations: torch would load its compiler, only to keep it away from here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        self.total += 0 if count is None else count(*args, **(kwargs or {}), out_val=output)
        return output


def _flops(run: Callable[[], Any], part: Spec) -> Formula:
    counter = _FlopCounter()
    try:
        with torch.no_grad(), counter:
            run()
    except (RuntimeError, NotImplementedError) as error:
        cause = f"cannot be counted on the meta device: {str(error).partition(chr(10))[0]}"
        raise SpecError(type(part).__name__, cause, "register a cost: archetype.register(..., cost=COST)") from None
    return constant(counter.total)


def _saved(run: Callable[[], Any], module: nn.Module, work: TrainingWork) -> int:
    """Bytes of the tensors that autograd saves, each storage once, parameters left out."""
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    saved: dict[int, Tensor] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in own:
            saved.setdefault(storage, tensor.detach())
        return tensor

    enabled = work.compute_dtype == "bfloat16"
    with (
        torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=enabled),
    ):
        run()
    return sum(tensor.numel() * tensor.itemsize for tensor in saved.values())
