"""Names of the activations and layers of a model."""

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
    """The layers of blocks that several layers share: what such a block computes is named by its layer.

    Args:
        model: whose blocks they are.
    """

    def __init__(self, model: Model) -> None:
        self.layers: dict[str, list[str]] = {}  # by the path of the block, in the order of the forward pass
        for path, stack in stacks(model).items():
            blocks = join(path, "blocks")
            for index, own in enumerate(stack.blocks.order):
                self.layers.setdefault(f"{blocks}.{own}", []).append(f"{blocks}.{index}")
        self.layers = {own: paths for own, paths in self.layers.items() if len(paths) > 1}

    def names(self, name: str) -> list[str]:
        """The names of what a module computes, one for each time that a pass calls it."""
        for own, paths in self.layers.items():
            if f"{name}.".startswith(f"{own}."):
                return [path + name.removeprefix(own) for path in paths]
        return [name]

    def module_path(self, path: str) -> str:
        """The path of the module that computes a layer or a part of it."""
        for own, paths in self.layers.items():
            for layer in paths:
                if f"{path}.".startswith(f"{layer}."):
                    return own + path.removeprefix(layer)
        return path


def module_at(model: Model, path: str) -> nn.Module:
    """The module that computes a layer or a part of it; that of another layer, where it has no weights of its own."""
    return model.get_submodule(SharedBlocks(model).module_path(path))


def activation_shapes(model: Model) -> dict[str, str]:
    """The name of every activation, with its shape in letters of the legend."""
    shared = SharedBlocks(model)
    return {name: shape for own, shape in _own_shapes(model).items() for name in shared.names(own)}


def _own_shapes(model: Model) -> dict[str, str]:
    """The same by the paths of modules."""
    shapes: dict[str, str] = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) and path:
            shapes |= {f"{path}.in": VECTORS, f"{path}.out": VECTORS}
        shapes |= {join(path, name): shape for name, shape in getattr(module, "probes", {}).items()}
    return shapes


def default_names(model: Model) -> Iterator[str]:
    """Inputs and outputs of layers, of their contents and norms, and of embeddings; and all probes."""
    shared = SharedBlocks(model)
    yield from (name for own in _own_default_names(model) for name in shared.names(own))
    yield from (f"{path}.{side}" for path in shown_parts(model) if path for side in ("in", "out"))


def _own_default_names(model: Model) -> Iterator[str]:
    """The same by the paths of modules."""
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
    """The stacks of a model by path: one, or the two sides of an encoder-decoder or of MegaByte."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Stack)}


def layers(model: Model) -> dict[str, nn.Module]:
    """The layers of all stacks, by path."""
    return {
        f"{join(path, 'blocks')}.{index}": block
        for path, stack in stacks(model).items()
        for index, block in enumerate(stack.blocks)
    }


def shown_parts(model: Model) -> dict[str, Shown]:
    """What a model, its last norms and the contents of its layers show, by the paths of their modules."""
    shown = {"": shown_by(model.spec)}
    for stack in model.spec.stacks:
        for index, block in enumerate(stack.layers):
            for name, content in block.contents.items():
                for path, part in content.named_parts():
                    shown[f"{stack.prefix}blocks.{index}.{name}.{path}".rstrip(".")] = shown_by(part)
        shown[f"{stack.prefix}final_norm"] = shown_by(stack.final_norm)
    return shown


def layer_path(model: Model, layer: int | str) -> str:
    """The path of a layer: by its number, from the end where negative, in the decoder or the only stack; or itself.

    Raises:
        SpecError: there is none.
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
    """The name of an activation of a module; that of the model itself has no path."""
    return f"{path}.{name}" if path else name
