"""Path of one token through a model: activations at each box of its diagram for one position of a traced pass."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from archetype.diagram.architecture import draw
from archetype.diagram.scene import Box, Scene
from archetype.errors import SpecError
from archetype.estimate.report import cost_report
from archetype.inspection.attention import attention_paths, attention_steps
from archetype.inspection.inputs import Inputs
from archetype.inspection.names import activation_shapes, shown_parts, stacks
from archetype.inspection.recurrent import recurrent_paths, states
from archetype.inspection.trace import Trace, Tracer
from archetype.models.build import Model
from archetype.models.megabyte.module import MegaByte
from archetype.models.stack.cost import labelled

IN_BLOCK = re.compile(r"(.*?blocks)\.(\*|[\d,.-]*\d)\.(.+)")  # (path of blocks, layers, rest of the path)
MOST_NUMBERS = 2**16  # a larger state is reduced to norms along its last axis


class Station(NamedTuple):
    """Activation of a box at one position.

    Attributes:
        box: id of a box in the diagram, or of a container for the joint result of the boxes inside.
        layer: index of the layer in its stack; None outside layers.
        name: name of the activation, or `PATH.weights`, or `PATH.state.NAME`.
        values: activation at the position. Attention weights (H, S) are NaN for masked pairs.
    """

    box: str
    layer: int | None
    name: str
    values: Tensor


class StackPosition(NamedTuple):
    """Position in a stack: row, offset in the row, index over all rows, and row length."""

    row: int
    offset: int
    flat: int
    length: int | None


@torch.no_grad()
def way(model: Model, inputs: Inputs, position: int, source: int = 0) -> Iterator[Station]:
    """Trace a forward pass, and yield a token's stations from input to output, layer by layer.

    Args:
        source: position of the token in the source, if the model reads a source.

    Raises:
        SpecError: the position does not exist.
    """
    for name, index, tokens in (("position", position, inputs.tokens), ("source", source, inputs.source_tokens)):
        if (tokens or name == "position") and not 0 <= index < len(tokens):
            raise SpecError(name, f"{index} is out of range", f"use 0 to {len(tokens) - 1}")
    scene = draw(cost_report(model.spec))
    names = (box.gives or f"{box.id}.out" for box in scene.boxes if box.id != "lm_head")
    outputs = {re.sub(IN_BLOCK, r"\1.*.\3", name) for name in names}  # of all layers, as the diagram folds them
    shapes = activation_shapes(model)
    known = {re.sub(r"blocks\.\d+\.", "blocks.*.", name) for name in shapes}
    trace = Tracer(model, inputs).record(*(outputs & known)).run()
    finder = _Finder(trace, scene, shapes, position, source)
    for box, layer in _ordered(scene, trace):
        yield from finder.stations(box, layer)


def _ordered(scene: Scene, trace: Trace) -> Iterator[tuple[str, int | None]]:
    ids = [box.id for box in scene.boxes if box.kind not in ("tap", "layer")]
    contents = {container.id for container in scene.containers if container.kind in ("mixer", "cross", "feedforward")}
    # in the order of computation: a content, whose values no single box shows, follows its boxes
    for index, id in reversed([*enumerate(ids)]):  # from the end, so that the first hit is its last box
        content = next((content_id for content_id in contents if id.startswith(f"{content_id}.")), None)
        if content is not None:
            ids.insert(index + 1, content)
            contents.remove(content)
    done = set[str]()
    for id in ids:
        match = IN_BLOCK.fullmatch(id)
        if match is None:
            yield id, None
        elif match[1] not in done:
            done.add(match[1])
            inside = [(box, block) for box in ids if (block := IN_BLOCK.fullmatch(box)) and block[1] == match[1]]
            count = len(stacks(trace.model)[match[1].rpartition("blocks")[0].rstrip(".")].blocks)
            for layer in range(count):
                yield from ((box, layer) for box, block in inside if block[2] == "*" or layer in labelled(block[2]))


class _Finder:
    def __init__(self, trace: Trace, scene: Scene, shapes: dict[str, str], position: int, source: int) -> None:
        self.trace, self.shapes = trace, shapes
        self.boxes = {box.id: box for box in scene.boxes}
        self.following = _following(scene)
        self.readers = {wire.target for wire in scene.wires if wire.kind == "source"}
        self.shown = shown_parts(trace.model)
        self.attending, self.remembering = {*attention_paths(trace)}, {*recurrent_paths(trace)}
        self.seen = set[str]()  # names of activations already yielded
        self.position, self.source = position, source

    def stations(self, id: str, layer: int | None) -> Iterator[Station]:
        if (box := self.boxes.get(id)) is None:
            path = _at_layer(id, layer)
            yield from self._of_content(id, path, layer)
        elif (result := self._result(box, layer)) is not None:
            self.seen.add(result[0])
            yield Station(id, layer, *result)

    def _of_content(self, id: str, path: str, layer: int | None) -> Iterator[Station]:
        inside = [name for name in self.shown if name == path or name.startswith(f"{path}.")]
        for part in inside:
            if part in self.attending and f"{part}.weights" not in self.seen:
                yield Station(id, layer, f"{part}.weights", self._weights(part))
            if part in self.remembering:
                where = self._stack_position(part)
                after = next((state for t, state in enumerate(states(self.trace, part)) if t == where.offset), {})
                for name, tensor in after.items():
                    values = tensor[where.row].float()
                    while values.numel() > MOST_NUMBERS:
                        values = values.norm(dim=-1)
                    yield Station(id, layer, f"{part}.state.{name}", values.clone())
        result = None if f"{path}.out" in self.seen else self._values(f"{path}.out", id)
        if result is not None:
            yield Station(id, layer, *result)

    def _result(self, box: Box, layer: int | None) -> tuple[str, Tensor] | None:
        path = _at_layer(box.id, layer)
        name, trace = _at_layer(box.gives, layer), self.trace
        part, _, last = name.rpartition(".")
        if last == "weights" and part in self.attending:
            return name, self._weights(part)
        if name == "logits":
            return None if trace.logits is None else (name, self._logits(trace.logits))
        if box.kind == "add":
            return self._sum(self.following.get(box.id), path, layer)
        shown = self.shown.get(part)
        if name and name not in trace and shown is not None and shown.inside is not None:
            values = shown.inside(trace.part(part)).get(last)
            where = self._stack_position(part)
            return None if values is None else (name, values[where.row, where.offset].float())
        names = (name,) if name else (f"{path}.out:2", f"{path}.out", path)
        return next((result for candidate in names if (result := self._values(candidate, box.id))), None)

    def _sum(self, after: Box | None, path: str, layer: int | None) -> tuple[str, Tensor] | None:
        block, next_block = IN_BLOCK.fullmatch(path), None if after is None else IN_BLOCK.fullmatch(after.id)
        # the sum is its layer's output, the first layer's input, or the input of the norm that follows
        if block is not None and (next_block is None or next_block[3] in ("in", "out") or next_block[1] != block[1]):
            return self._values(f"{block[1]}.{block[2]}.out", path)
        if block is None and next_block is not None:
            return self._values(f"{next_block[1]}.0.in", path)
        is_norm = after is not None and after.kind == "norm"
        return self._values(f"{_at_layer(after.id, layer)}.in", path) if after is not None and is_norm else None

    def _values(self, name: str, box: str) -> tuple[str, Tensor] | None:
        if name not in self.trace:
            return None
        shape = self.shapes[name.partition(":")[0]].split()
        values = _at(self.trace[name], shape, self._stack_position(name, from_source=box in self.readers))
        return None if values is None else (name, values.float().clone())

    def _weights(self, path: str) -> Tensor:
        steps, where = attention_steps(self.trace, path), self._stack_position(path)
        weights, masked = (x[where.row, :, where.offset].float() for x in (steps.weights, steps.masked))  # (H, S)
        return weights.masked_fill(masked.isneginf(), torch.nan)

    def _logits(self, logits: Tensor) -> Tensor:
        return (logits[0, self.position] if logits.dim() == 3 else logits[0]).float().clone()

    def _stack_position(self, name: str, from_source: bool = False) -> StackPosition:
        position, length = self.position, len(self.trace.inputs.tokens)
        is_first_of_two = f"{name}:2" in self.trace  # a module called by both sides
        if from_source or name.startswith(("encoder.", "source_embedding")) or is_first_of_two:
            position = self.source if self.trace.inputs.source_tokens else position
            length = len(self.trace.inputs.source_tokens or self.trace.inputs.tokens)
        if isinstance(self.trace.model, MegaByte):  # the prediction for a position is at the next slot
            patch, index = divmod(position + 1, self.trace.model.spec.patch_size)
            if name.startswith("local_"):
                return StackPosition(patch, index, position + 1, self.trace.model.spec.patch_size)
            return StackPosition(0, patch - name.startswith("global_embedding"), patch, None)
        return StackPosition(0, position, position, length)


def _following(scene: Scene) -> dict[str, Box]:
    boxes = (box for box in scene.boxes if box.kind != "tap")
    return {box.id: after for box, after in pairwise(boxes) if box.kind == "add"}


def _at_layer(id: str, layer: int | None) -> str:
    match = IN_BLOCK.fullmatch(id)
    return id if match is None or layer is None else f"{match[1]}.{layer}.{match[3]}"


def _at(x: Tensor, shape: list[str], where: StackPosition) -> Tensor | None:
    letters = [*"BT"[-(x.dim() - 1) :], *shape[1:]] if shape[0] == "..." else shape
    if x.dim() > 3 and shape[0] == "..." and where.row:  # bytes of each patch of each row
        x, letters = x.flatten(0, -3), ["B", "T", *shape[1:]]
    index: list[int | slice] = [slice(None)] * x.dim()
    if len(letters) != x.dim():
        return None
    for axis, letter in enumerate(letters):
        if letter == "N":
            index[axis] = where.flat
        elif letter in ("T", "S", "M"):
            # an axis of another length counts something else, such as patches or the source
            if where.length not in (None, x.shape[axis]) or not 0 <= where.offset < x.shape[axis]:
                return None
            index[axis] = where.offset
        elif letter in ("B", "b"):
            index[axis] = where.row if where.row < len(x) else 0
    return x[tuple(index)]
