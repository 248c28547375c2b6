"""One forward pass that is recorded by name, and perhaps changed by name; unchanged, it is the plain one to the bit.

Names are `MODULE.in` and `MODULE.out` for every module that takes and gives vectors (`blocks.3.mixer.out`, and
`blocks.3.in` for the residual stream before layer 3), and `MODULE.PROBE` for what a part offers of its inside
(`blocks.3.mixer.q`). Layers that share a block have a name each. Of another module that is called again, as an
embedding by both sides of an encoder-decoder, the second call is `embedding.out:2`. The pass keeps no state and is
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
from archetype.nn.cache import CrossKVCache, LayerState
from archetype.nn.context import ForwardContext
from archetype.nn.inspect import PartTrace

Change = Callable[[Tensor], Tensor]
Places = int | Sequence[int] | slice | None


@dataclass(frozen=True)
class Call:
    """With what a mixer or a cross-attention was called beside vectors."""

    context: ForwardContext | None = None
    cache: LayerState | None = None


@dataclass
class Trace:
    """The tensors of a pass.

    Attributes:
        model: that computed it.
        inputs: what it read.
        logits: of tokens (B, T, V) or classes (B, Y); None for a model without a head.
        activations: by name.
        calls: contexts and caches, by module.
    """

    model: Model
    inputs: Inputs
    logits: Tensor | None = None
    activations: dict[str, Tensor] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)

    def part(self, path: str) -> PartTrace:
        """What one part read, computed and gave; the whole model at an empty path."""
        start, call = join(path, ""), self.calls.get(path, Call())
        own = {name.removeprefix(start): x for name, x in self.activations.items() if name.startswith(start)}
        return PartTrace(path, module_at(self.model, path), own, call.context, call.cache)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.activations:
            raise SpecError(name, "is not among what was recorded", nearest(name, self.activations))
        return self.activations[name]

    def __contains__(self, name: str) -> bool:
        return name in self.activations

    def __iter__(self) -> Iterator[str]:
        return iter(self.activations)

    def __repr__(self) -> str:
        return f"<Trace of {len(self.inputs.tokens)} positions: {len(self.activations)} activations>"


class Tracer:
    """A pass that is about to be computed; `set` and `ablate` change it and return it.

    Args:
        model: in evaluation mode.
        inputs: what it reads.
        loaded: the model with its tokenizer, for texts that it goes on with.
    """

    def __init__(self, model: Model, inputs: Inputs, loaded: Loaded | None = None) -> None:
        self.model, self.inputs, self._loaded = model, inputs, loaded
        self._end: int | None = None  # of the text, as far as the present pass of a generation has read it
        self._has_positions = False  # whether a change is made at some positions alone
        self.shapes, self._shared = activation_shapes(model), SharedBlocks(model)
        self._recorded = set(default_names(model))
        self._changes: dict[str, list[Change]] = {}

    def set(
        self, name: str, value: Tensor | float | Change, *, positions: Places = None, heads: Places = None
    ) -> "Tracer":
        """Put a value in the place of an activation.

        Args:
            name: of the activation, such as "blocks.3.mixer.out".
            value: numbers that are broadcast to its shape, or a function of what the pass computes there.
            positions: of the text, where alone it changes (absent: everywhere).
            heads: of attention, likewise.

        Raises:
            SpecError: there is no such activation, or it has no heads.
        """
        self._has_positions |= positions is not None
        self._changes.setdefault(self._known(name), []).append(
            lambda x: self._changed(name, x, value, positions, heads)
        )
        return self

    def ablate(self, name: str, *, positions: Places = None, heads: Places = None, mean: bool = False) -> "Tracer":
        """Put zeros, or the mean over positions, in the place of a part's output or of some heads of attention.

        Args:
            name: of a module, such as "blocks.3.mixer", or of an activation.
            positions: where (absent: everywhere).
            heads: of attention, before its output projection (absent: the whole output).
            mean: whether to put the mean over all positions of this text.
        """
        if f"{name}.out" in self.shapes:
            name = f"{name}.out" if heads is None else f"{name}.heads"
        axis = -2  # of positions, of vectors and of heads
        return self.set(
            name, (lambda x: x.mean(axis, keepdim=True).expand(x.shape)) if mean else 0.0,
            positions=positions, heads=heads,
        )  # fmt: skip

    def record(self, *patterns: str) -> "Tracer":
        """Record more than each layer's vectors and probes.

        Args:
            patterns: names, in which * stands for anything ("blocks.*.mixer.q.out").

        Raises:
            SpecError: no activation has such a name.
        """
        for pattern in patterns:
            names = [name for name in self.shapes if fnmatchcase(name, pattern)]
            if not names:
                self._known(pattern)
            self._recorded.update(names)
        return self

    @torch.no_grad()
    def run(self) -> Trace:
        """Compute the pass.

        Raises:
            SpecError: what was set is not computed in this pass, or has another shape.
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
        for name in self._changes:
            base, _, number = name.partition(":")
            if calls[base] < int(number or 1):
                raise SpecError(name, "is not computed in this pass", nearest(name, +calls))
        return trace

    def generate(self, **sampling: Any) -> str:
        """Generate text after the prompt, with these changes in every pass.

        A change without positions is made in all passes, those that read what was written as well, and so is one of a
        slice without an end from there on; other positions are those of the text. Without changes the passes are the
        engine's own, to the bit.

        Args:
            sampling: fields of `Sampling`.

        Raises:
            ArchetypeError: the model does not continue texts, or what was set is not computed while it does: keys and
                queries are read from the state then, and patches have other positions.
        """
        if self._loaded is None or not isinstance(self.model, GenerativeModel) or self.inputs.ids is None:
            raise SpecError("generate", "this model does not continue texts", "use run()")
        if self._has_positions and isinstance(self.model, MegaByte):
            raise SpecError("positions", "of patches are others than those of the text", "change it everywhere")
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
                raise SpecError(name, "is not computed while text is generated", nearest(name, +calls))
        return text

    def _naming(self) -> Callable[[str], str]:
        """What names an activation of a module when it is computed: by the layer whose turn it is."""
        calls = Counter[str]()

        def called(name: str) -> str:
            names = self._shared.names(name)
            calls[name] += 1
            return names[(calls[name] - 1) % len(names)]

        return called

    def _observed(
        self, reach: Callable[[str, Tensor], Tensor], recorded: AbstractSet[str], trace: Trace | None
    ) -> Model:
        """Return a copy of the model, with the same tensors, of which `reach` sees and may replace activations.

        Those are the ones that are recorded or changed. Hooks and observer belong to the copy, so that other threads,
        and a change that itself calls the model, compute as ever.
        """
        tensors = (
            value
            for module in self.model.modules()
            for values in (module._parameters, module._buffers, vars(module))
            for value in values.values()
            if isinstance(value, Tensor)
        )
        model = deepcopy(self.model, {id(tensor): tensor for tensor in tensors})
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
        """Add hooks to a module whose input or output is needed."""
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
        base, _, number = name.partition(":")
        if base not in self.shapes or not (number or "2").isdecimal():
            raise SpecError(name, "there is no such activation", nearest(name, self.shapes))
        return name

    def _changed(
        self, name: str, x: Tensor, value: Tensor | float | Change, positions: Places, heads: Places
    ) -> Tensor:
        """An activation with a value in some places; as it is where a pass of a generation has none of these."""
        places = self._places(name, x, positions, heads)
        return x if any(not len(chosen) for chosen in places.values()) else _replaced(name, x, value, places)

    def _places(self, name: str, x: Tensor, positions: Places, heads: Places) -> dict[int, Tensor]:
        """The places of an activation where alone it changes, by axis."""
        letters = _letters(self.shapes[name.partition(":")[0]], x.dim())
        result = {}
        for kind, places, names in (("positions", positions, "TSMN"), ("heads", heads, "HK")):
            if places is None:
                continue
            axis = next((axis for axis, letter in enumerate(letters) if letter in names), None)
            if axis is None:
                raise SpecError(name, f"its shape ({' '.join(letters)}) has no {kind}", f"leave out {kind}")
            rows = len(next(iter(self.inputs.arguments.values()))) if letters[axis] == "N" else 1
            size = x.shape[axis] // rows
            generates = kind == "positions" and self._end is not None
            chosen = _chosen(name, kind, places, len(self.inputs.tokens) if generates else size)
            if generates and isinstance(places, slice) and places.stop is None and (places.start or 0) >= 0:
                chosen = torch.arange(places.start or 0, self.model.spec.context_length, places.step or 1)
            if generates and self._end is not None:  # a pass has the end of what is read so far
                chosen = chosen - (self._end - size)
                chosen = chosen[(chosen >= 0) & (chosen < size)]
            result[axis] = (chosen + size * torch.arange(rows)[:, None]).flatten().to(x.device)
        return result


def _chosen(name: str, kind: str, places: int | Sequence[int] | slice, size: int) -> Tensor:
    """Places as numbers from 0 on.

    Raises:
        SpecError: there are no such places.
    """
    index = [places] if isinstance(places, int) else places if isinstance(places, slice) else list(places)
    try:
        return torch.arange(size)[index]
    except IndexError:
        raise SpecError(name, f"{kind} {places} are not among its {size}", f"use 0 to {size - 1}") from None


def _letters(shape: str, dims: int) -> list[str]:
    """The letters of a tensor of so many dimensions; the leading ones of vectors are rows and positions."""
    letters = shape.split()
    return [*["B", "T"][: dims - len(letters) + 1], *letters[1:]] if letters[0] == "..." else letters


def _replaced(name: str, x: Tensor, value: Tensor | float | Change, places: dict[int, Tensor]) -> Tensor:
    """The activation with a value in some of its places, which `places` has by axis."""
    try:
        index = tuple(
            places.get(axis, torch.arange(size, device=x.device)).view(-1, *[1] * (x.dim() - axis - 1))
            for axis, size in enumerate(x.shape)
        )
        selected = x[index] if places else _copy(x)
        new = value(selected) if callable(value) else value
        if not places and isinstance(new, Tensor) and (new.shape, new.dtype) == (x.shape, x.dtype):
            return new.to(x.device)
        y = _copy(x)
        y[index] = torch.as_tensor(new, device=x.device).to(x.dtype).expand(selected.shape)
    except RuntimeError as error:
        cause = f"of shape {tuple(x.shape)} does not take this value: {str(error).splitlines()[0]}"
        raise SpecError(name, cause, "give numbers that are broadcast to it") from None
    return y


def _copy(x: Tensor) -> Tensor:
    """A copy with the same strides: a product of other strides may differ in its last bits."""
    if 0 in x.stride():
        return x.clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _copied(cache: LayerState | None) -> LayerState | None:
    """The state of a layer before the pass, which then goes on in place."""
    if cache is None or isinstance(cache, CrossKVCache):
        return cache
    _, _, first = next(cache.tensors())
    return cache.select(torch.arange(len(first), device=first.device))
