"""Per-layer keys, compared with the tensors of each layer."""

from collections.abc import Sequence
from typing import Any

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.tensors import GroupedTensors, Layer
from archetype.errors import CheckpointError
from archetype.families.config import ACTIVATIONS, Config
from archetype.models.block.spec import Block

BLOCKS = "block_configs"  # of DeciLM (Nemotron-NAS)
KV_HEADS = "num_key_value_heads_per_layer"  # of the first DeciLM
ROUNDED_TO = 256  # the width of a network that a multiple of D gives


def check_uneven_layers(info: CheckpointInfo, tensors: GroupedTensors, blocks: Sequence[Block]) -> None:
    """Compare keys with a value for each layer with the layers that the tensors show.

    Raises:
        CheckpointError: a layer differs from its keys, or needs an unsupported part.
    """
    _check_overrides(info, tensors, blocks)
    for number, stated in enumerate(_one_per_layer(info, KV_HEADS, len(blocks))):
        if (sizes := blocks[number].mixer.attention_sizes(tensors.d_model)) is not None:
            _compare(f"{info.config.place}: {KV_HEADS}[{number}]", stated, sizes.num_kv_heads)
    for number, values in enumerate(_one_per_layer(info, BLOCKS, len(blocks))):
        place = f"{info.config.place}: {BLOCKS}[{number}]"
        if not isinstance(values, dict):
            raise CheckpointError(place, f"{values!r} is not a mapping", "fix the file")
        _check_attention(info, Config(values, place), blocks[number], tensors.d_model)
        _check_network(info, Config(values, place), blocks[number], tensors.layers[number])


def _check_overrides(info: CheckpointInfo, tensors: GroupedTensors, blocks: Sequence[Block]) -> None:
    for number, block in enumerate(blocks):
        heads = info.overrides(number).get("num_key_value_heads")
        if heads is not None and (sizes := block.mixer.attention_sizes(tensors.d_model)) is not None:
            _compare(f"{info.config.place}: num_key_value_heads of layer {number}", heads, sizes.num_kv_heads)


def _one_per_layer(info: CheckpointInfo, key: str, count: int) -> list[Any]:
    values = info.config.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or len(values) != count:
        raise info.config.error(key, f"has no value for each of the {count} layers", "fix the file")
    return values


def _check_attention(info: CheckpointInfo, keys: Config, block: Block, d_model: int) -> None:
    if (attention := keys.section("attention")) is None:
        return
    _compare(f"{attention.place}: no_op", attention.flag("no_op", False), block.mixer.is_absent)
    in_group = attention.optional_size("n_heads_in_group")
    if (sizes := block.mixer.attention_sizes(d_model)) is not None:
        _compare(f"{attention.place}: n_heads_in_group", in_group, sizes.num_heads // sizes.num_kv_heads)
    _refuse_others(info, attention, "attention")


def _check_network(info: CheckpointInfo, keys: Config, block: Block, layer: Layer) -> None:
    if (network := keys.section("ffn")) is None:
        return
    _compare(f"{network.place}: no_op", network.flag("no_op", False), block.feedforward.is_absent)
    multiple, stated = network.optional_positive("ffn_mult"), network.optional_size("intermediate_size")
    name = network.get("hidden_act")
    if (down := layer.network.get("down.weight")) is not None:
        outputs, inputs = info.sides(down)
        width = inputs if outputs == layer.d_model else outputs  # of a matrix in either layout
        if multiple is not None:
            rounded = -(-int(2 * multiple * layer.d_model / 3) // ROUNDED_TO) * ROUNDED_TO
            _compare(f"{network.place}: ffn_mult", rounded, width)
        if stated is not None:
            _compare(f"{network.place}: intermediate_size", stated, width)
        if name is not None and ACTIVATIONS.get(str(name)) != info.activation("gate.weight" in layer.network):
            raise info.missing(f"{network.place}: hidden_act", "different activations in some layers")
    _refuse_others(info, network, "a network")


def _compare(place: str, stated: Any, actual: Any) -> None:
    if stated != actual:
        raise CheckpointError(place, f"says {stated}, where the layer's tensors show {actual}", "is the file complete?")


def _refuse_others(info: CheckpointInfo, keys: Config, content: str) -> None:
    # windows, sinks, sparsity and further parts of some layers
    for key, value in keys.values.items():
        if key not in keys.used and value not in (None, False):
            raise info.missing(f"{keys.place}: {key}", f"{content} with {key} in some layers")
