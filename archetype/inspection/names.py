"""Names of a model's activations and layers."""

from collections.abc import Iterator

from torch import nn

from archetype.errors import SpecError, nearest
from archetype.models.block.module import Block
from archetype.models.build import Model
from archetype.models.ngram.module import NGram
from archetype.models.stack.module import Stack
from archetype.nn.inspect import Shown, shown_by

VECTORS = "... D"


class SharedBlocks:
    """Blocks shared by several layers: their activations are named by layer."""

    def __init__(self, model: Model) -> None:
        self.layers: dict[str, list[str]] = {}  # paths of layers by path of the shared block, in the order of the pass
        for path, stack in stacks(model).items():
            blocks = join(path, "blocks")
            for index, own in enumerate(stack.blocks.order):
                self.layers.setdefault(f"{blocks}.{own}", []).append(f"{blocks}.{index}")
        self.layers = {own: paths for own, paths in self.layers.items() if len(paths) > 1}

    def names(self, name: str) -> list[str]:
        """Return the names of a module's activation, one for each call in a pass."""
        for own, paths in self.layers.items():
            if f"{name}.".startswith(f"{own}."):
                return [path + name.removeprefix(own) for path in paths]
        return [name]

    def module_path(self, path: str) -> str:
        """Return the path of the module that computes a layer or a part of it."""
        for own, paths in self.layers.items():
            for layer in paths:
                if f"{path}.".startswith(f"{layer}."):
                    return own + path.removeprefix(layer)
        return path


def module_at(model: Model, path: str) -> nn.Module:
    """Return the module that computes a layer or part; a shared one if the layer has no weights of its own."""
    return model.get_submodule(SharedBlocks(model).module_path(path))


def activation_shapes(model: Model) -> dict[str, str]:
    """Return the name of every activation with its shape in letters."""
    shared = SharedBlocks(model)
    return {name: shape for own, shape in _own_shapes(model).items() for name in shared.names(own)}


def _own_shapes(model: Model) -> dict[str, str]:
    shapes: dict[str, str] = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) and path:
            shapes |= {f"{path}.in": VECTORS, f"{path}.out": VECTORS}
        shapes |= {join(path, name): shape for name, shape in getattr(module, "probes", {}).items()}
    return shapes


def default_names(model: Model) -> Iterator[str]:
    """Yield the activations recorded by default: inputs and outputs of layers, contents, norms, embeddings; probes."""
    shared = SharedBlocks(model)
    yield from (name for own in _own_default_names(model) for name in shared.names(own))
    yield from (f"{path}.{side}" for path in shown_parts(model) if path for side in ("in", "out"))


def _own_default_names(model: Model) -> Iterator[str]:
    for path, module in model.named_modules():
        yield from (join(path, name) for name in getattr(module, "probes", {}))
        if isinstance(module, Block):
            parts = (path, *(f"{path}.{name}" for name, _ in module.named_children() if name != "dropout"))
            yield from (f"{part}.{side}" for part in parts for side in ("in", "out"))
        elif isinstance(module, Stack):
            yield from (join(path, f"final_norm.{side}") for side in ("in", "out"))
            yield from (
                f"{join(path, 'blocks')}.{n}.{side}" for n in range(len(module.blocks)) for side in ("in", "out")
            )
    yield from (f"{name}.out" for name, _ in model.named_children() if name.endswith("embedding"))
    if isinstance(model, NGram):
        yield from (f"hidden.{n}.{side}" for n in range(len(model.hidden)) for side in ("in", "out"))


def stacks(model: Model) -> dict[str, Stack]:
    """Return a model's stacks by path: one, or two for an encoder-decoder or MegaByte."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Stack)}


def layers(model: Model) -> dict[str, nn.Module]:
    """Return the layers of all stacks by path."""
    return {
        f"{join(path, 'blocks')}.{index}": block
        for path, stack in stacks(model).items()
        for index, block in enumerate(stack.blocks)
    }


def shown_parts(model: Model) -> dict[str, Shown]:
    """Return what a model, its final norms and the contents of its layers show, by module path."""
    shown = {"": shown_by(model.spec)}
    for stack in model.spec.stacks:
        for index, block in enumerate(stack.layers):
            for name, content in block.contents.items():
                for path, part in content.named_parts():
                    shown[f"{stack.prefix}blocks.{index}.{name}.{path}".rstrip(".")] = shown_by(part)
        shown[f"{stack.prefix}final_norm"] = shown_by(stack.final_norm)
    return shown


def layer_path(model: Model, layer: int | str) -> str:
    """Return a layer's path, given the path itself or a number in the decoder or only stack (negative from the end).

    Raises:
        SpecError: there is no such layer.
    """
    paths = list(layers(model))
    main = next((name for name in ("decoder.", "global_model.") if any(path.startswith(name) for path in paths)), "")
    of_main = [path for path in paths if path.startswith(main)]
    if isinstance(layer, int) or layer.removeprefix("-").isdigit():
        number = int(layer)
        if not -len(of_main) <= number < len(of_main):
            raise SpecError("layer", f"{number} is none of {len(of_main)}", f"use 0 to {len(of_main) - 1}")
        return of_main[number]
    if layer not in paths:
        raise SpecError("layer", f"there is no {layer}", nearest(layer, paths))
    return layer


def join(path: str, name: str) -> str:
    """Join a module's path and an activation's name; the model itself has an empty path."""
    return f"{path}.{name}" if path else name
