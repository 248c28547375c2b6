"""The cost of a part that declares none: counted on its module, built and run on the meta device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    RouterCost,
    SelectionCost,
    WiringCost,
    set_fallback,
)
from archetype.cost.work import TrainingWork, Work
from archetype.errors import SpecError
from archetype.nn.cache import LayerState
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import (
    build_embedding,
    build_feedforward,
    build_head,
    build_mixer,
    build_norm,
    build_position,
    module_class,
)
from archetype.nn.selection import build_selection
from archetype.parts.embedding.cost import TokenEmbeddingCost
from archetype.parts.head.cost import HeadCost
from archetype.parts.position.cost import PositionCost
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.feedforward import FeedForward
from archetype.roles.head import Head
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.position import AttentionSizes, EmbeddingPosition, MixerPosition
from archetype.roles.residual import Residual
from archetype.roles.router import Router
from archetype.roles.selection import KeySelection
from archetype.roles.wiring import Wiring
from archetype.spec.base import Spec

META = torch.device("meta")


class MeasuredContentCost(PartCost):
    """A mixer or a feed-forward part, by its projections and by the products of one pass."""

    def __init__(self, part: Any, d: Formula) -> None:
        super().__init__(part, d)
        self.module = _on_meta(lambda: self.built(Place(d.value)))

    def built(self, place: Place) -> nn.Module | None:
        """The module at a place."""
        raise NotImplementedError

    def parameters(self) -> Counts:
        """Parameters, by the module's children, without tables by token id."""
        return _by_child(self.module)

    def tables(self) -> Counts:
        """By how much a child grows with each id of the vocabulary."""
        own, with_one = self.parameters(), _on_meta(lambda: self.built(Place(self.d.value, vocab_size=1)))
        grown = {name: count.value - own[name].value for name, count in _by_child(with_one).items()}
        return {name: constant(features) for name, features in grown.items() if features}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of what autograd saves in one pass."""
        x = torch.empty(work.rows, work.length, self.d.value, device=META)
        return _saved(lambda: self.module(x, _context(x), None), self.module, work)

    def state(self, length: int) -> int:
        """Numbers in the state of one row, where the module keeps one."""
        new_state = getattr(self.module, "new_state", None)
        state = new_state and new_state(1, length, torch.float32, META)
        return int(state.nbytes) // torch.float32.itemsize if state else 0


class MeasuredMixerCost(MeasuredContentCost, MixerCost):
    """A mixer; decoding is run with a state."""

    complexity = Complexity(*["not declared"] * 3)

    def built(self, place: Place) -> nn.Module:
        return build_mixer(self.part, place)

    def flops(self, work: Work) -> Counts:
        rows, state, lengths = work.rows.value, None, None
        x = torch.empty(rows, work.queries.value, self.d.value, device=META)
        if work.phase == "decode":
            state = self.module.new_state(rows, work.length.value, x.dtype, META)  # type: ignore[operator]
            lengths = torch.zeros(rows, dtype=torch.long, device=META)
        return {"products": _flops(lambda: self.module(x, _context(x, lengths), state), self.part)}


class MeasuredFeedForwardCost(MeasuredContentCost, FeedForwardCost):
    """The measured cost of a feed-forward part."""

    def built(self, place: Place) -> nn.Module | None:
        return build_feedforward(self.part, place)

    def flops(self, tokens: Formula) -> Counts:
        """The products of one pass together."""
        x = torch.empty(1, tokens.value, self.d.value, device=META)
        return {"products": _flops(lambda: self.module(x, _context(x), None), self.part)}


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


class MeasuredRouterCost(RouterCost):
    """A router, by its parameters and by the products of one pass."""

    def __init__(self, part: Router, d: Formula, num_experts: Formula) -> None:
        super().__init__(part, d, num_experts)
        self.module = _on_meta(lambda: module_class(part)(part, num_experts.value, Place(d.value)))

    def parameters(self) -> Formula:
        return _total(self.module)

    def flops(self, tokens: Formula) -> Formula:
        return _flops(lambda: self._affinities(1, tokens.value), self.part)

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of what autograd saves of logits and affinities, and those of which the chosen are taken."""
        return _saved(lambda: self._affinities(work.rows, work.length), self.module, work)

    def _affinities(self, rows: int, length: int) -> Tensor:
        x = torch.empty(rows, length, self.d.value, device=META)
        logits = self.module(x.flatten(0, 1), _context(x))
        affinities: Tensor = self.module.affinities(logits)  # type: ignore[operator]
        return affinities


class MeasuredEmbeddingCost(TokenEmbeddingCost):
    """A token embedding, by its parameters and by the products of one pass."""

    def __init__(self, part: TokenEmbedding, d: Formula, vocabulary: Formula, context_length: int) -> None:
        super().__init__(part, d, vocabulary, context_length)
        self.module = _on_meta(lambda: build_embedding(part, vocabulary.value, context_length, d.value))

    def parameters(self) -> Counts:
        return _by_child(self.module)

    def flops(self, work: Work) -> Counts:
        """All on the table of tokens, whose vectors the products read."""
        return {"token": _flops(lambda: self._vectors(1, work.tokens.value), self.part)}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of indices, and of what autograd saves in one pass."""
        saved = _saved(lambda: self._vectors(work.rows, work.length), self.module, work)
        return super().saved_activations(work) + saved

    def _vectors(self, rows: int, length: int) -> Tensor:
        ids = torch.zeros(rows, length, dtype=torch.long, device=META)
        vectors: Tensor = self.module(ids, ForwardContext.of(ids))
        return vectors


class MeasuredHeadCost(HeadCost):
    """A head, by its parameters and by the products of one pass."""

    def __init__(self, part: Head, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d, vocab_size)
        self.module = _on_meta(lambda: build_head(part, vocab_size, d.value))
        self.tied, self.num_answers = part.shares_table, getattr(part, "num_classes", vocab_size)
        self.further_arguments = () if part.has_classes else (torch.empty(vocab_size, d.value, device=META),)

    def parameters(self) -> Counts:
        """All of the module's together."""
        return {self._name: _total(self.module)}

    def flops(self, work: Work) -> Counts:
        tokens = work.rows if self.part.classifies else work.answered_tokens
        return {self._name: _flops(lambda: self._logits(1, tokens.value), self.part)}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of what autograd saves in one pass."""
        length = 1 if self.part.classifies else work.length
        return _saved(lambda: self._logits(work.rows, length), self.module, work)

    def num_logits(self, rows: int, tokens: int) -> int:
        return self.num_answers * (rows if self.part.classifies else tokens)

    @property
    def _name(self) -> str:
        return "classifier" if self.part.has_classes else "lm_head"

    def _logits(self, rows: int, length: int) -> Tensor:
        x = torch.empty(rows, length, self.d.value, device=META)
        logits: Tensor = self.module(x[:, 0] if self.part.classifies else x, *self.further_arguments)
        return logits


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


class MeasuredSelectionCost(SelectionCost):
    """A key selection, by its projections and by the products of one pass; it may leave out no key."""

    def __init__(self, part: KeySelection, d: Formula, query: Formula) -> None:
        super().__init__(part, d, query)
        self.module = _on_meta(lambda: build_selection(part, Place(d.value), query.value))

    def parameters(self) -> Counts:
        """Parameters, by the module's children."""
        return _by_child(self.module)

    def flops(self, work: Work) -> Counts:
        """FLOPs of choosing among all keys."""
        keys = self._state(work.rows.value, work.length.value) if work.phase == "decode" else None
        run = self._pass(work.rows.value, work.queries.value, work.length.value, keys)
        return {"products": _flops(run, self.part)}

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes of what autograd saves in one pass."""
        return _saved(self._pass(work.rows, work.length, work.length, None), self.module, work)

    def state(self, length: int) -> int:
        """Numbers that are own of one row."""
        own = self._state(1, length)
        return 0 if own is None else own.nbytes // torch.float32.itemsize

    def _state(self, rows: int, length: int) -> LayerState | None:
        own: LayerState | None = self.module.new_state(rows, length, torch.float32, META)  # type: ignore[operator]
        return own

    def _pass(self, rows: int, queries: int, keys: int, own: LayerState | None) -> Callable[[], Any]:
        x, inputs = (torch.empty(rows, queries, size.value, device=META) for size in (self.d, self.query))
        allowed = torch.ones(rows, 1, queries, keys, dtype=torch.bool, device=META)
        lengths = None if own is None else torch.zeros(rows, dtype=torch.long, device=META)
        return lambda: self.module(x, inputs, allowed, ForwardContext.of(x, lengths), own)


ROLES: dict[type[Spec], type[PartCost]] = {
    Mixer: MeasuredMixerCost,
    FeedForward: MeasuredFeedForwardCost,
    Norm: MeasuredNormCost,
    Router: MeasuredRouterCost,
    Head: MeasuredHeadCost,
    TokenEmbedding: MeasuredEmbeddingCost,
    Wiring: MeasuredWiringCost,
    Residual: MeasuredResidualCost,
    EmbeddingPosition: MeasuredPositionCost,
    MixerPosition: MeasuredPositionCost,
    KeySelection: MeasuredSelectionCost,
}


def measured(part: Spec, d: Formula, *sizes: Any) -> PartCost | None:
    """The cost of a part for which no class is registered; None for what is not a part of a layer."""
    cost = next((cost for role, cost in ROLES.items() if isinstance(part, role)), None)
    return None if cost is None else cost(part, d, *sizes)


set_fallback(measured)


def _on_meta(build: Callable[[], nn.Module | None]) -> nn.Module:
    with META:
        module = build()
    assert module is not None
    return module


def _context(x: Tensor, lengths: Tensor | None = None) -> ForwardContext:
    """The context of vectors that stand for tokens."""
    return replace(ForwardContext.of(x, lengths), tokens=torch.zeros(x.shape[:2], dtype=torch.long, device=META))


def _by_child(module: nn.Module) -> Counts:
    counts = {name: _total(child) for name, child in module.named_children()}
    return counts | {name: constant(p.numel()) for name, p in module.named_parameters(recurse=False)}


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
