"""Recording of the activations of one forward pass by name, with optional changes to them.

Names are `MODULE.in` and `MODULE.out` for every module that reads and returns vectors (`blocks.3.mixer.out`, and
`blocks.3.in` for the residual stream before layer 3), and `MODULE.PROBE` for internal values that a part exposes
(`blocks.3.mixer.q`). Layers that share a block are named separately. If another module is called again, such as an
embedding used by both sides of an encoder-decoder, the second call is `embedding.out:2`. The pass keeps no state and is
never recorded as native steps.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from copy import copy, deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from archetype.errors import SpecError, nearest
from archetype.generate.engine import Engine, Loaded
from archetype.inspection.inputs import Inputs
from archetype.inspection.names import SharedBlocks, activation_shapes, default_names, join, module_at
from archetype.models.build import GenerativeModel, Model
from archetype.models.megabyte.module import MegaByte
from archetype.nn.cache import CrossKVCache
from archetype.nn.context import ForwardContext
from archetype.nn.inspect import PartTrace
from archetype.nn.layer_state import LayerState

Change = Callable[[Tensor], Tensor]
Indices = int | Sequence[int] | slice | None


@dataclass(frozen=True)
class Call:
    """Context and state with which a mixer or cross-attention was called."""

    context: ForwardContext | None = None
    cache: LayerState | None = None


@dataclass
class Trace:
    """Activations of a forward pass.

    Attributes:
        logits: (B, T, V) for tokens, (B, Y) for classes; None for a model without a head.
        activations: recorded activations by name.
        calls: contexts and states by module.
    """

    model: Model
    inputs: Inputs
    logits: Tensor | None = None
    activations: dict[str, Tensor] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)

    def part(self, path: str) -> PartTrace:
        """Return the inputs, activations and state of a part; of the whole model for an empty path."""
        start, call = join(path, ""), self.calls.get(path, Call())
        activations = {name.removeprefix(start): x for name, x in self.activations.items() if name.startswith(start)}
        return PartTrace(path, module_at(self.model, path), activations, call.context, call.cache)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.activations:
            raise SpecError(name, "was not recorded", nearest(name, self.activations))
        return self.activations[name]

    def __contains__(self, name: str) -> bool:
        return name in self.activations

    def __iter__(self) -> Iterator[str]:
        return iter(self.activations)

    def __repr__(self) -> str:
        return f"<Trace of {len(self.inputs.tokens)} positions: {len(self.activations)} activations>"


def copy_sharing_tensors(model: Model) -> Model:
    """Return a copy of a model's modules with the same tensors."""
    tensors = (
        value
        for module in model.modules()
        for values in (module._parameters, module._buffers, vars(module))
        for value in values.values()
        if isinstance(value, Tensor)
    )
    return deepcopy(model, {id(tensor): tensor for tensor in tensors})  # the memo keeps tensors shared


class Tracer:
    """Forward pass to be computed. `set`, `ablate` and `record` change the pass and return it.

    Args:
        loaded: model with its tokenizer, needed for `generate`.
    """

    def __init__(self, model: Model, inputs: Inputs, loaded: Loaded | None = None) -> None:
        self.model, self.inputs, self._loaded = model, inputs, loaded
        self._end: int | None = None  # end of the text read so far by the current pass of a generation
        self._has_positions = False  # whether a change is limited to some positions
        self.shapes, self._shared = activation_shapes(model), SharedBlocks(model)
        self._recorded = set(default_names(model))
        self._changes: dict[str, list[Change]] = {}

    def set(
        self, name: str, value: Tensor | float | Change, *, positions: Indices = None, heads: Indices = None
    ) -> "Tracer":
        """Replace an activation.

        Args:
            name: name of the activation, such as "blocks.3.mixer.out".
            value: value that is broadcast to the activation's shape, or a function of the original activation.
            positions: positions to change (default: all).
            heads: attention heads to change (default: all).

        Raises:
            SpecError: the activation does not exist, or has no heads.
        """
        self._has_positions |= positions is not None
        self._changes.setdefault(self._known(name), []).append(
            lambda x: self._changed(name, x, value, positions, heads)
        )
        return self

    def ablate(self, name: str, *, positions: Indices = None, heads: Indices = None, mean: bool = False) -> "Tracer":
        """Replace a part's output, or some of its attention heads, with zeros or with the mean over positions.

        Args:
            name: name of a module, such as "blocks.3.mixer", or of an activation.
            positions: positions to change (default: all).
            heads: attention heads to replace, before the output projection (default: the complete output).
            mean: whether to use the mean over all positions of this text instead of zeros.
        """
        if f"{name}.out" in self.shapes:
            name = f"{name}.out" if heads is None else f"{name}.heads"
        axis = -2  # positions, for vectors (B, T, D) and heads (B, H, T, P)
        return self.set(
            name,
            (lambda x: x.mean(axis, keepdim=True).expand(x.shape)) if mean else 0.0,
            positions=positions,
            heads=heads,
        )

    def record(self, *patterns: str) -> "Tracer":
        """Record additional activations besides each layer's vectors and probes.

        Args:
            patterns: names of activations, with * as wildcard ("blocks.*.mixer.q.out").

        Raises:
            SpecError: a pattern matches no activation.
        """
        for pattern in patterns:
            names = [name for name in self.shapes if fnmatchcase(name, pattern)]
            if not names:
                self._known(pattern)
            self._recorded.update(names)
        return self

    @torch.no_grad()
    def run(self) -> Trace:
        """Compute the forward pass.

        Raises:
            SpecError: a changed activation is not computed in this pass, or the new value has the wrong shape.
        """
        trace, calls, called = Trace(self.model, self.inputs), Counter[str](), self._naming()

        def reach(name: str, x: Tensor) -> Tensor:
            name = called(name)
            calls[name] += 1
            recorded = name in self._recorded
            name = name if calls[name] == 1 else f"{name}:{calls[name]}"
            if name in self._changes:
                for change in self._changes[name]:
                    x = change(x)
            if recorded:
                trace.activations[name] = x
            return x

        model = self._observed(reach, self._recorded, trace)
        trace.logits = model(**self.inputs.arguments).logits
        # a change that no pass reached would otherwise go unnoticed
        for name in self._changes:
            base, _, call = name.partition(":")
            if calls[base] < int(call or 1):
                raise SpecError(name, "is not computed in this pass", nearest(name, +calls))
        return trace

    def generate(self, **sampling: Any) -> str:
        """Generate text after the prompt, with these changes in every forward pass.

        Changes without positions apply to all passes, including the passes for generated tokens. Open-ended slices do
        so from their start on. Other positions refer to the prompt. Without changes, the engine's passes are used.

        Args:
            sampling: fields of `Sampling`.

        Raises:
            ArchetypeError: the model does not generate text, or a changed activation is not computed during generation,
                when keys and queries are read from the cache and patches have other positions.
        """
        if self._loaded is None or not isinstance(self.model, GenerativeModel) or self.inputs.ids is None:
            raise SpecError("generate", "this model does not generate text", "use run()")
        if self._has_positions and isinstance(self.model, MegaByte):
            raise SpecError("positions", "differ between patches and text", "remove positions")
        ids = {name: x[0].tolist() for name, x in self.inputs.arguments.items()}
        prompt, target = ids.get("source") or ids["tokens"], ids.get("target", [])[1:]
        calls, called = Counter[str](), self._naming()

        def reach(name: str, x: Tensor) -> Tensor:
            name = called(name)
            calls[name] += 1
            for change in self._changes.get(name, ()):
                x = change(x)
            return x

        def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # a pass of a generation begins where the state ends
            tokens, state = args[0], args[1] if len(args) > 1 else kwargs.get("state")
            self._end = tokens.shape[1] + (int(state.lengths[0]) if state is not None else 0)

        def end(*_: Any) -> None:
            self._end = None

        loaded: Any = copy(self._loaded)
        if self._changes:
            loaded.model = self._observed(reach, frozenset(), None)
            loaded.model.register_forward_pre_hook(begin, with_kwargs=True)
            loaded.model.register_forward_hook(end)
        text = Engine(loaded, 1, 0).submit(prompt, target=target, **sampling).result()
        for name in self._changes:
            if not calls[name]:
                raise SpecError(name, "is not computed during generation", nearest(name, +calls))
        return text

    def _naming(self) -> Callable[[str], str]:
        # names an activation of a shared block by the layer that is computed
        calls = Counter[str]()

        def called(name: str) -> str:
            names = self._shared.names(name)
            calls[name] += 1
            return names[(calls[name] - 1) % len(names)]

        return called

    def _observed(
        self, reach: Callable[[str, Tensor], Tensor], recorded: AbstractSet[str], trace: Trace | None
    ) -> Model:
        # hooks and observer are on a copy, so that other threads, and a change that calls the model, compute as usual
        model = copy_sharing_tensors(self.model)
        paths = {module: path for path, module in model.named_modules()}
        needed = recorded | {name.partition(":")[0] for name in self._changes}
        for module, path in paths.items():
            self._hook(module, path, reach, needed, trace)

        def observe(module: nn.Module, name: str, x: Tensor) -> Tensor:
            return reach(join(paths[module], name), x)

        model.observer = observe
        return model

    def _hook(
        self,
        module: nn.Module,
        path: str,
        reach: Callable[[str, Tensor], Tensor],
        needed: AbstractSet[str],
        trace: Trace | None,
    ) -> None:
        before, after, called = join(path, "in"), join(path, "out"), self._naming()

        def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not args or not isinstance(args[0], Tensor):
                return None
            context = next((value for value in args if isinstance(value, ForwardContext)), None)
            if context is not None and trace is not None:
                cache = next((value for value in args if isinstance(value, LayerState)), None)
                trace.calls[called(path)] = Call(context, _copied(cache))
            return (reach(before, args[0]), *args[1:])

        def leave(_: nn.Module, args: tuple[Any, ...], y: Any) -> Tensor | None:
            return reach(after, y) if isinstance(y, Tensor) else None

        if not needed.isdisjoint(self._shared.names(before)):
            module.register_forward_pre_hook(enter)
        if not needed.isdisjoint(self._shared.names(after)):
            module.register_forward_hook(leave)

    def _known(self, name: str) -> str:
        base, _, call = name.partition(":")
        if base not in self.shapes or not (call or "2").isdecimal():
            raise SpecError(name, "there is no such activation", nearest(name, self.shapes))
        return name

    def _changed(
        self, name: str, x: Tensor, value: Tensor | float | Change, positions: Indices, heads: Indices
    ) -> Tensor:
        # a pass of a generation may contain none of the positions
        indices = self._indices(name, x, positions, heads)
        return x if any(not len(index) for index in indices.values()) else _replaced(name, x, value, indices)

    def _indices(self, name: str, x: Tensor, positions: Indices, heads: Indices) -> dict[int, Tensor]:
        letters = _letters(self.shapes[name.partition(":")[0]], x.dim())
        result = {}
        for kind, selection, names in (("positions", positions, "TSMN"), ("heads", heads, "HK")):
            if selection is None:
                continue
            axis = next((axis for axis, letter in enumerate(letters) if letter in names), None)
            if axis is None:
                raise SpecError(name, f"the shape ({' '.join(letters)}) has no {kind}", f"remove {kind}")
            # axis N joins the positions of all rows, so every row has the indices, shifted
            rows = len(next(iter(self.inputs.arguments.values()))) if letters[axis] == "N" else 1
            size = x.shape[axis] // rows
            generates = kind == "positions" and self._end is not None
            indices = _resolved(name, kind, selection, len(self.inputs.tokens) if generates else size)
            # an open-ended slice also covers the tokens to be generated
            if generates and isinstance(selection, slice) and selection.stop is None and (selection.start or 0) >= 0:
                indices = torch.arange(selection.start or 0, self.model.spec.context_length, selection.step or 1)
            if generates and self._end is not None:  # a pass covers the last `size` positions of the text read so far
                indices = indices - (self._end - size)
                indices = indices[(indices >= 0) & (indices < size)]
            result[axis] = (indices + size * torch.arange(rows)[:, None]).flatten().to(x.device)
        return result


def _resolved(name: str, kind: str, selection: int | Sequence[int] | slice, size: int) -> Tensor:
    index = [selection] if isinstance(selection, int) else selection
    index = index if isinstance(index, slice) else list(index)
    try:
        return torch.arange(size)[index]
    except IndexError:
        raise SpecError(name, f"{kind} {selection} are out of range", f"use 0 to {size - 1}") from None


def _letters(shape: str, dims: int) -> list[str]:
    # leading dimensions of vectors are batch and positions
    letters = shape.split()
    return [*["B", "T"][: dims - len(letters) + 1], *letters[1:]] if letters[0] == "..." else letters


def _replaced(name: str, x: Tensor, value: Tensor | float | Change, indices: dict[int, Tensor]) -> Tensor:
    try:
        # open mesh: one index tensor per axis, shaped to broadcast
        index = tuple(
            indices.get(axis, torch.arange(size, device=x.device)).view(-1, *[1] * (x.dim() - axis - 1))
            for axis, size in enumerate(x.shape)
        )
        selected = x[index] if indices else _copy(x)
        new = value(selected) if callable(value) else value
        if not indices and isinstance(new, Tensor) and (new.shape, new.dtype) == (x.shape, x.dtype):
            return new.to(x.device)
        y = _copy(x)
        y[index] = torch.as_tensor(new, device=x.device).to(x.dtype).expand(selected.shape)
    except RuntimeError as error:
        cause = f"has shape {tuple(x.shape)}, which does not fit this value: {str(error).splitlines()[0]}"
        raise SpecError(name, cause, "use a value that broadcasts to it") from None
    return y


def _copy(x: Tensor) -> Tensor:
    # the same strides, since products with other strides may differ in the last bits
    if 0 in x.stride():
        return x.clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _copied(cache: LayerState | None) -> LayerState | None:
    # the pass changes the state in place
    if cache is None or isinstance(cache, CrossKVCache):
        return cache
    _, _, first = next(cache.tensors())
    return cache.select(torch.arange(len(first), device=first.device))
