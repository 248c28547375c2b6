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
    """Blocks shared by several layers. Their activations are named after the layer."""

    def __init__(self, model: Model) -> None:
        self.layers: dict[str, list[str]] = {}  # paths of layers, in order of computation, by path of the shared block
        for path, stack in stacks(model).items():
            blocks = join(path, "blocks")
            for index, block in enumerate(stack.blocks.order):
                self.layers.setdefault(f"{blocks}.{block}", []).append(f"{blocks}.{index}")
        self.layers = {block: paths for block, paths in self.layers.items() if len(paths) > 1}

    def names(self, name: str) -> list[str]:
        for block, paths in self.layers.items():
            if f"{name}.".startswith(f"{block}."):
                return [path + name.removeprefix(block) for path in paths]  # one name for each call in a pass
        return [name]

    def module_path(self, path: str) -> str:
        for block, paths in self.layers.items():
            for layer in paths:
                if f"{path}.".startswith(f"{layer}."):
                    return block + path.removeprefix(layer)
        return path


def module_at(model: Model, path: str) -> nn.Module:
    return model.get_submodule(SharedBlocks(model).module_path(path))


def activation_shapes(model: Model) -> dict[str, str]:
    shared = SharedBlocks(model)
    return {name: shape for module_name, shape in _module_shapes(model).items() for name in shared.names(module_name)}


def _module_shapes(model: Model) -> dict[str, str]:
    shapes: dict[str, str] = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) and path:
            shapes |= {f"{path}.in": VECTORS, f"{path}.out": VECTORS}
        shapes |= {join(path, name): shape for name, shape in getattr(module, "probes", {}).items()}
    return shapes


def default_names(model: Model) -> Iterator[str]:
    """Yield the activations recorded by default: probes, embeddings, inputs and outputs of layers, parts and norms."""
    shared = SharedBlocks(model)
    yield from (name for module_name in _default_module_names(model) for name in shared.names(module_name))
    yield from (f"{path}.{side}" for path in shown_parts(model) if path for side in ("in", "out"))


def _default_module_names(model: Model) -> Iterator[str]:
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
    return {path: module for path, module in model.named_modules() if isinstance(module, Stack)}


def layers(model: Model) -> dict[str, nn.Module]:
    return {
        f"{join(path, 'blocks')}.{index}": block
        for path, stack in stacks(model).items()
        for index, block in enumerate(stack.blocks)
    }


def shown_parts(model: Model) -> dict[str, Shown]:
    """Return what a model, its final norms and the parts of its layers expose for inspection, by path."""
    shown = {"": shown_by(model.spec)}
    for stack in model.spec.stacks:
        for index, block in enumerate(stack.layers):
            for name, content in block.contents.items():
                for path, part in content.named_parts():
                    shown[f"{stack.prefix}blocks.{index}.{name}.{path}".rstrip(".")] = shown_by(part)
        shown[f"{stack.prefix}final_norm"] = shown_by(stack.final_norm)
    return shown


def layer_path(model: Model, layer: int | str) -> str:
    """Return the path of a layer, given this path or a number in the decoder or only stack (negative from the end).

    Raises:
        SpecError: the layer does not exist.
    """
    paths = list(layers(model))
    main = next((name for name in ("decoder.", "global_model.") if any(path.startswith(name) for path in paths)), "")
    main_paths = [path for path in paths if path.startswith(main)]
    if isinstance(layer, int) or layer.removeprefix("-").isdigit():
        index = int(layer)
        if not -len(main_paths) <= index < len(main_paths):
            raise SpecError("layer", f"{index} is out of range", f"use 0 to {len(main_paths) - 1}")
        return main_paths[index]
    if layer not in paths:
        raise SpecError("layer", f"{layer} is not a layer", nearest(layer, paths))
    return layer


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name  # the model itself has an empty path
