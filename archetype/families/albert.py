"""ALBERT (Lan 2019): BERT with shared layers and narrow embeddings. Format: transformers' `albert`."""

from typing import Any

from archetype.families.bert import BODY_KEYS, HeadRow, bert
from archetype.families.config import Config
from archetype.families.encoder_format import Names, encoder_format
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Converted, Key, Row, Values, ignored, with_defaults
from archetype.models.block.spec import Block
from archetype.models.encoder.spec import Encoder


def albert(
    *,
    num_layers: int,
    width: int = 128,
    num_groups: int = 1,
    layers_per_group: int = 1,
    vocab_size: int = 30_000,
    **design: Any,
) -> Encoder:
    """Build an ALBERT encoder. `design` takes the arguments of `bert`.

    Args:
        num_layers: number of layer groups that a forward pass runs through.
        width: width of the embedding tables.
        num_groups: number of layer groups with different weights.
    """
    encoder = bert(num_layers=num_layers * layers_per_group, vocab_size=vocab_size, **design)
    # layer `index` shares the weights of the first pass of its group
    passes, layers = num_layers // num_groups, list[Block]()
    for index, block in enumerate(encoder.layers):
        group, position = divmod(index, passes * layers_per_group)
        source = group * passes * layers_per_group + position % layers_per_group
        layers.append(block if index == source else block.replace(weights_of=source))
    head = encoder.head.replace(width=width) if encoder.head.predicts_masked else encoder.head
    return encoder.replace(layers=tuple(layers), embedding=encoder.embedding.replace(width=width), head=head)


def _own_layers(model: Encoder) -> list[int]:
    return [index for index, block in enumerate(model.layers) if block.weights_of is None]


def _layers_per_group(model: Encoder) -> int:
    # layers before the first that shares weights; 1 if none does
    return next((index for index, block in enumerate(model.layers) if block.weights_of is not None), 1)


def _read_groups(config: Config, values: Values) -> Values:
    groups, layers = config.size("num_hidden_groups", 1), config.size("inner_group_num", 1)
    if values["num_layers"] % groups:
        cause = f"{groups} does not divide {values['num_layers']} layers"
        raise config.error("num_hidden_groups", cause, "fix the file")
    if values["num_layers"] == groups and layers > 1:
        raise config.error("inner_group_num", "groups without repetition must be single layers", "use 1")
    return {"num_groups": groups, "layers_per_group": layers}


def _write_groups(model: Encoder) -> dict[str, Any]:
    layers = _layers_per_group(model)
    sizes = {"num_hidden_groups": len(_own_layers(model)) // layers, "inner_group_num": layers}
    return {"num_hidden_layers": len(model.layers) // layers} | sizes


KEYS: tuple[Row, ...] = (
    *with_defaults(BODY_KEYS, vocab_size=30_000, hidden_size=4096, num_attention_heads=64, intermediate_size=16_384,
        hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    Key("embedding_size", "width", 128, path="embedding.width"),
    # leftovers of the authors' TensorFlow program
    ignored("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor", "eos_token_ids"),
    Converted(_read_groups, _write_groups),
    HeadRow("classifier_dropout_prob"),
)


def _body(model: Encoder) -> str:
    # the file has one set of tensors per group and position, the model one per layer that owns its weights
    lines = """
        BASE.embeddings.{word,position,token_type}_embeddings   embedding.{token,position,token_type}
        BASE.embeddings.LayerNorm                       embedding.norm
        BASE.encoder.embedding_hidden_mapping_in        embedding.project
    """
    for index, layer_index in enumerate(_own_layers(model)):
        group, layer = divmod(index, _layers_per_group(model))
        prefix = f"BASE.encoder.albert_layer_groups.{group}.albert_layers.{layer}"
        lines += f"""
            {prefix}.attention.{{query,key,value,dense}}     blocks.{layer_index}.mixer.{{q,k,v,o}}
            {prefix}.attention.LayerNorm                     blocks.{layer_index}.mixer_norm
            {prefix}.{{ffn,ffn_output}}                      blocks.{layer_index}.feedforward.{{up,down}}
            {prefix}.full_layer_layer_norm                   blocks.{layer_index}.feedforward_norm
        """
    return lines


NAMES = Names(_body, "predictions.{dense,LayerNorm}", "predictions.decoder", "predictions.bias", "BASE.pooler",
    "BASE.pooler")
FAMILY = Family("albert", {
    **presets("Lan 2019, table 1; albert/albert-*-v2 config.json", albert, {
        # the v2 configurations have `hidden_act: gelu_new`, the paper GELU; and no dropout
        "albert-base": dict(num_layers=12, d_model=768, num_heads=12, activation="gelu_tanh"),
        "albert-large": dict(num_layers=24, d_model=1024, num_heads=16, activation="gelu_tanh"),
        "albert-xlarge": dict(num_layers=24, d_model=2048, num_heads=16, activation="gelu_tanh"),
        "albert-xxlarge": dict(num_layers=12, d_model=4096, num_heads=64, activation="gelu_tanh"),
    }),
    **tiny(albert, {"albert-tiny": dict(num_layers=2, num_heads=4, width=32, vocab_size=257, activation="gelu_tanh")}),
}, encoder_format("albert", "Albert", "albert", albert, KEYS, NAMES,
    ignored=(r"sop_classifier\..*", r"albert\.sop_classifier\..*")))
