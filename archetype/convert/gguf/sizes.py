"""Predict the size of a model's weights in a GGUF file."""

from collections.abc import Mapping

from archetype.convert.apply import shapes_of, shares
from archetype.convert.gguf.choice import gguf_family, gguf_of, keys_of
from archetype.convert.gguf.encoders import as_mean
from archetype.convert.gguf.keys import Gguf
from archetype.convert.gguf.tensors import constants, file_shapes
from archetype.convert.gguf.types import Facts, tensor_bytes, tensor_types
from archetype.dtypes import WeightTypes
from archetype.families.rules import for_model
from archetype.models.build import build_on_meta
from archetype.models.spec import ModelSpec


def gguf_weights(model: ModelSpec, type: str) -> WeightTypes:
    """Return the bits per weight in a GGUF file of this type. They add up to the size of the file's tensors.

    Raises:
        CheckpointError: llama.cpp does not support the model.
    """
    model = as_mean(model)
    target = gguf_of(gguf_family(model).name, model)
    shapes, keys = file_shapes(model, target), keys_of(target, model)
    types = tensor_types(shapes, type, Facts.of(target.architecture, keys))
    return types_of_file(type, model, target, {name: tensor_bytes(shapes[name], types[name]) for name in types})


def types_of_file(name: str, model: ModelSpec, target: Gguf, sizes: Mapping[str, int]) -> WeightTypes:
    """Return the dtypes of a model's weights in a file.

    Args:
        name: label for the result, such as the file type.
        sizes: size in bytes of each tensor of the file.
    """

    def size(tensor: str) -> int:
        change = target.change(tensor)
        return sum(sizes[part] for part in ([tensor] if change is None else change.names(tensor)))

    shapes = shapes_of(build_on_meta(model))
    parameters = shares(for_model(target.rules_of(model), model.num_layers, shapes), shapes, size)
    return WeightTypes.mixed(name, parameters, sum(sizes.get(vector, 0) for vector in constants(model, target)))
