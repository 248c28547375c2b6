"""Inference of specification, weight rules and report for a decoder of an unregistered family.

The inputs are the keys of config.json and the names and shapes of tensors. Anything that they do not determine is
assumed and listed in the report. A model that needs an unsupported part is refused with an error that names the part.
"""

import re
from collections.abc import Mapping
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from archetype.convert.infer.checkpoint_info import CheckpointInfo, Shapes
from archetype.convert.infer.embedding import context_length, outer_norm, read_embedding, vocabulary
from archetype.convert.infer.feedforward import read_feedforward
from archetype.convert.infer.head import read_head
from archetype.convert.infer.mixer import InferredMixer, ModelDims
from archetype.convert.infer.ngrams import read_memory, read_ngrams
from archetype.convert.infer.quirks import QUIRKS, FamilyQuirks
from archetype.convert.infer.residual import read_residual
from archetype.convert.infer.rules import inferred_rules
from archetype.convert.infer.spellings import CONTEXT, INITIAL_STD, NEUTRAL, OF_ATTENTION, OF_EXPERTS
from archetype.convert.infer.tensors import GroupedTensors, Layer, group_tensors
from archetype.convert.infer.uneven import BLOCKS, check_uneven_layers
from archetype.convert.infer.wiring import read_wiring
from archetype.errors import CheckpointError, SpecError
from archetype.families.as_read import family_as_read
from archetype.families.class_keys import DERIVED, is_class_of, keys_read
from archetype.families.config import BOOKKEEPING, Config
from archetype.families.family import Family, InferenceReport
from archetype.models.block.spec import Block, NoMixer, OutputNorm, PostNorm, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.models.stack.spec import EarlyExit
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import MLP
from archetype.parts.norm.spec import Affine, NoNorm
from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.parts.together.spec import MixersTogether
from archetype.roles.checkpoint import MixerReader
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.residual import Residual
from archetype.spec.errors import explain
from archetype.spec.registry import provided

ADAPTER = {f"{name}.{kind}" for name in ("feedforward.up", "feedforward.down", "feedforward_norm")
           for kind in ("weight", "bias")}  # fmt: skip
INPUT_SCALE = "feedforward.input_norm.weight"
PER_LAYER_OF_STREAMS = {f"feedforward.{name}.weight" for name in ("gate", "down", "added_norm")}
PER_LAYER = {"feedforward.gate.weight", "feedforward.down.weight", "feedforward_norm.weight"}


def read_unknown(
    values: dict[str, Any],
    shapes: Shapes,
    place: str = "config.json",
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Family:
    """Return a family for a single model, with a format that reads the model's folder.

    Args:
        shapes: shape of every tensor, by name.
        place: path of the file, for error messages.
        settings: layouts that neither keys nor tensors determine, as named in the report.

    Raises:
        CheckpointError: a tensor or key is unknown, or the model needs an unsupported part.
        SpecError: the model does not depend on a layout in `settings`.
    """
    info = _checkpoint_info(values, shapes, place, settings)
    info.check_supported()
    tensors = group_tensors(info)
    try:
        model, wirings = _model(info, tensors)
    except ValidationError as error:
        raise explain(error, every=False).at(place) from None
    # no reader asked for it, so it would silently change nothing
    if unasked := sorted(settings.keys() - info.asked):
        cause = f"does not affect this {info.type} model"
        raise SpecError(unasked[0], cause, f"remove it; these affect it: {', '.join(sorted(info.asked))}")
    rules = partial(inferred_rules, info, tensors, wirings)
    zeros = {name: [0.0] * prod(shapes[name]) for name in tensors.left_out if info.is_zero(name)}
    return family_as_read(info.type, values, model, rules, _report(info, tensors, model), partial(_constants, zeros))


def _constants(numbers: Mapping[str, list[float]], model: Any) -> Mapping[str, list[float]]:
    return numbers


def _readable(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> set[str]:
    # keys that the class reads, and the length of the context, which a class without positions never reads
    length = [] if defaults.keys() & set(CONTEXT) else [key for key in CONTEXT if key in values][:1]
    return {*defaults, *BOOKKEEPING, *length}


def _checkpoint_info(values: dict[str, Any], shapes: Shapes, place: str, settings: Mapping[str, Any]) -> CheckpointInfo:
    # for a multimodal model, the keys of the text part
    text, outer = values.get("text_config"), values
    if isinstance(text, dict):
        # keys outside text_config belong to other parts, even if named like keys of text
        values = {key: value for key, value in values.items() if key in BOOKKEEPING - {"model_type"}} | text
        # of the outer keys, only this one is about the text part
        values |= {key: outer[key] for key in ("tie_word_embeddings",) if key in outer}
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        section = "text_config." * isinstance(text, dict)
        raise CheckpointError(f"{place}: {section}model_type", f"{model_type!r} is not a model type", "fix the file")
    defaults = keys_read(outer, model_type)
    quirks = QUIRKS.get(model_type, FamilyQuirks())
    readable = set(values)
    if defaults is not None and is_class_of(outer):  # a class of an unknown outer type may read further keys
        readable = _readable(values, defaults).union(quirks.reads)
    unread = tuple(key for key in values if key not in readable)
    read = {key: value for key, value in (defaults or {}).items() if value not in (None, DERIVED)}
    # keys of the file replace the defaults of the class
    read |= {key: value for key, value in values.items() if key not in unread}
    outer_type = str(outer.get("model_type"))
    config = Config(read, place)
    if quirks.derive is not None:
        config.values.update(quirks.derive(config))
    return CheckpointInfo(config, shapes, model_type, outer_type, frozenset(values), defaults, unread, settings)


def _model(info: CheckpointInfo, tensors: GroupedTensors) -> tuple[Decoder, list[dict[str, str]]]:
    outer = tensors.outer
    (vocab_size, extra_rows), d_model = vocabulary(info, tensors), tensors.d_model
    dims = ModelDims(d_model, context_length(info, tensors), tensors.transposed)
    # whether a norm follows the last layer helps to tell the wirings apart
    final = "final_norm.weight" in outer
    wirings = [read_wiring(info, layer, final) for layer in tensors.layers]
    scale = _residual_scale(info, len(tensors.layers))
    apart = any(not layer.mixer for layer in tensors.layers) or info.config.get(BLOCKS) is not None
    firsts = [
        Block(
            wiring=wiring,
            mixer=_mixer(info, layer, dims),
            feedforward=read_feedforward(info, layer, tensors.transposed, apart),
            residual_scale=scale,
        )
        for layer, (wiring, _) in zip(tensors.layers, wirings, strict=True)
    ]
    _check_head_dims(info, [block.mixer for block in firsts], d_model)
    check_uneven_layers(info, tensors, firsts)
    residual = read_residual(info, tensors)
    blocks = tuple(
        block
        for layer, first in zip(tensors.layers, firsts, strict=True)
        for block in (*read_memory(info, layer), *_with_further(info, layer, first, residual))
    )
    blocks = blocks if tensors.loop is None else tensors.loop.unrolled(blocks)
    blocks = (*read_ngrams(info, tensors, d_model), *blocks)
    weightless = not any(norms or layer.streams for layer, (_, norms) in zip(tensors.layers, wirings, strict=True))
    model = Decoder(
        vocab_size=vocab_size,
        context_length=dims.context_length,
        d_model=d_model,
        embedding=read_embedding(info, tensors, dims, extra_rows),
        layers=blocks,
        residual=residual,
        final_norm=_final_norm(info, tensors, weightless),
        early_exit=_early_exit(info, tensors),
        head=read_head(info, tensors, d_model),
        initialization=NormalInitialization(std=info.positive(INITIAL_STD, 0.02)),
    )
    return model, [norms for _, norms in wirings]


def _early_exit(info: CheckpointInfo, tensors: GroupedTensors) -> EarlyExit | None:
    if "exit_gate.weight" not in tensors.outer:
        return None
    return EarlyExit(threshold=info.config.optional_positive("early_exit_threshold"))


def _mixer(info: CheckpointInfo, layer: Layer, dims: ModelDims) -> Mixer:
    if not layer.mixer:
        return NoMixer()
    mixer: Mixer = layer.reader.read(InferredMixer(info, layer, dims, layer.mixer))
    if not layer.beside:
        return mixer
    # Falcon-H1: attention and a state space, each with a factor on its input and one on its output
    reader: MixerReader | None = provided("infer", Attention)
    assert reader is not None
    attention: Mixer = reader.read(InferredMixer(info, layer, dims, layer.beside))
    inputs, outputs = (
        tuple(info.positive((f"{part}_{side}_multiplier",), 1.0) for part in ("attention", "ssm"))
        for side in ("in", "out")
    )
    return MixersTogether(
        parts=(attention, mixer),
        scales=None if outputs == (1, 1) else outputs,
        input_scales=None if inputs == (1, 1) else inputs,
    )


def _with_further(info: CheckpointInfo, layer: Layer, block: Block, residual: Residual) -> list[Block]:
    # a layer's per-layer input or adapter is a separate block, whose output is the layer's
    blocks = [block]
    if layer.further.keys() == ADAPTER:
        width, activation = info.sides(layer.further["feedforward.up.weight"])[0], info.activation(gated=False)
        network = MLP(d_ff=width, activation=activation, bias=True)
        blocks.append(Block(wiring=PostNorm(norm=info.norm(bias=True)), mixer=NoMixer(), feedforward=network))
    elif layer.further:
        of_streams, keys = "feedforward.added_norm.weight" in layer.further, layer.further.keys() - {INPUT_SCALE}
        if keys != (PER_LAYER_OF_STREAMS if of_streams else PER_LAYER):
            raise info.missing(layer.prefix, f"per-layer inputs with only {', '.join(sorted(layer.further))}")
        width, norm = info.sides(layer.further["feedforward.gate.weight"])[0], info.norm(bias=False)
        per_layer = PerLayerInput(features=width, activation=info.activation(gated=True))
        if of_streams:
            per_layer = per_layer.replace(
                num_streams=residual.streams,
                active=info.config.count("altup_active_idx", 0),
                input_norm=Affine(bias=False) if INPUT_SCALE in layer.further else NoNorm(),
                added_norm=norm,
            )
        wiring = PreNorm(norm=NoNorm()) if of_streams else OutputNorm(norm=norm)
        blocks.append(Block(wiring=wiring, mixer=NoMixer(), feedforward=per_layer))
    blocks[-1] = blocks[-1].replace(output_scale=layer.output_scale is not None)
    return blocks


def _check_head_dims(info: CheckpointInfo, mixers: list[Mixer], d_model: int) -> None:
    # shapes only show the product of head width and number of heads, so all layers must have the same width
    sizes = [(layer, mixer.attention_sizes(d_model)) for layer, mixer in enumerate(mixers)]
    widths = {size.head_dim: layer for layer, size in reversed(sizes) if size is not None}
    if len(widths) > 1 and not info.quirks.overridden:
        (width, first), (other_width, second) = list(widths.items())[:2]
        part = f"heads of {width} features in layer {first} and of {other_width} in layer {second}"
        raise info.missing(info.config.place, f"{part}, or other numbers of heads")


def _final_norm(info: CheckpointInfo, tensors: GroupedTensors, assumed: bool) -> Norm:
    norm = outer_norm(info, tensors, "final_norm", assumed)
    return norm.replace(unit_offset=False) if info.quirks.plain_final_norm else norm


def _residual_scale(info: CheckpointInfo, num_layers: int) -> float:
    if info.config.get("scale_depth") is not None:
        # MiniCPM: each branch is scaled by scale_depth / sqrt(L)
        return float(info.config.positive("scale_depth") / num_layers**0.5)
    return info.positive(("residual_multiplier",), 1.0)


def _unknown_keys(info: CheckpointInfo, tensors: GroupedTensors, model: Decoder) -> dict[str, Any]:
    # a key that the class reads may only have its default value
    attends = any(layer.beside for layer in tensors.layers)
    attends = attends or any(block.mixer.attention_sizes(model.d_model) is not None for block in model.layers)
    patterns = (
        *NEUTRAL,
        *(() if attends else (OF_ATTENTION,)),
        *(() if any(layer.sparse for layer in tensors.layers) else (OF_EXPERTS,)),
    )
    config, neutral = info.config, re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    unknown = {
        key: value
        for key, value in config.values.items()
        if key in info.stated - config.used - BOOKKEEPING and value is not None and not neutral.fullmatch(key)
    }
    defaults = info.defaults or {}
    for key, value in unknown.items():
        if key in defaults and value != defaults[key]:
            cause = f"{value!r} is not supported, but the {info.type} class of transformers reads this key"
            raise config.error(key, cause, "remove it if it does not change the output")
    return {key: value for key, value in unknown.items() if key not in defaults}


def _report(info: CheckpointInfo, tensors: GroupedTensors, model: Decoder) -> InferenceReport:
    config = info.config
    unknown = [f"{key}={repr(value)[:60]}" for key, value in _unknown_keys(info, tensors, model).items()]
    recognized = sorted(key for key in config.used & info.stated if config.values.get(key) is not None)
    placed = len(info.shapes) - len(tensors.left_out)
    return InferenceReport(
        tuple(recognized),
        placed,
        tuple(info.assumed),
        tuple(unknown),
        info.unread,
        tuple(tensors.left_out),
        info.alternatives,
    )
