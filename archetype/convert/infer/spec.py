"""Inference of specification, weight rules and report for a decoder of an unregistered family.

The inputs are the keys of config.json and the names and shapes of tensors. Anything that they do not determine is
assumed and listed in the report. A model that needs an unsupported part is refused with an error that names the part.
"""

import re
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from archetype.convert.infer.block import read_feedforward, read_wiring
from archetype.convert.infer.checkpoint_info import CheckpointInfo, Shapes
from archetype.convert.infer.mixer import InferredMixer, ModelDims
from archetype.convert.infer.names import GATED_STREAMS
from archetype.convert.infer.quirks import QUIRKS, FamilyQuirks
from archetype.convert.infer.rules import inferred_rules, unpadded
from archetype.convert.infer.spellings import (
    CONTEXT,
    EMBEDDING_SCALE,
    HEAD_SCALE,
    INITIAL_STD,
    NEUTRAL,
    OF_ATTENTION,
    OF_EXPERTS,
)
from archetype.convert.infer.tensors import GroupedTensors, Layer, group_tensors
from archetype.convert.infer.uneven import BLOCKS, check_uneven_layers
from archetype.errors import CheckpointError, SpecError
from archetype.families.as_read import family_as_read
from archetype.families.class_keys import DERIVED, keys_read
from archetype.families.config import BOOKKEEPING, Config
from archetype.families.family import Family, InferenceReport
from archetype.models.block.spec import Block, NoMixer, OutputNorm, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import NormalInitialization
from archetype.models.stack.spec import EarlyExit
from archetype.parts.activation.spec import GELU, NoActivation
from archetype.parts.attention.spec import Attention
from archetype.parts.depth_attention.spec import DepthAttention
from archetype.parts.embedding.spec import Embedding, PerLayerEmbedding
from archetype.parts.gain.spec import Gain
from archetype.parts.head.spec import ClassHead, HeadTransform, LanguageModelHead
from archetype.parts.ngram_embedding.spec import NgramEmbedding
from archetype.parts.ngram_memory.spec import NgramMemory
from archetype.parts.norm.spec import Affine, NoNorm
from archetype.parts.normed_sum.spec import NormedSum
from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.parts.position.spec import Learned, NoPosition
from archetype.parts.scaled_sum.spec import ScaledSum
from archetype.parts.streams.spec import GatedStreams, Streams
from archetype.parts.together.spec import MixersTogether
from archetype.roles.checkpoint import MixerReader
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.position import EmbeddingPosition
from archetype.roles.residual import Residual, ResidualSum
from archetype.spec.base import MAX_LENGTH
from archetype.spec.errors import explain
from archetype.spec.registry import provided

USUAL_CONTEXT = 2048
# Of residual streams: number, largest write weight, epsilon, and normalizations of the matrix that mixes them.
STREAMS = ("hc_mult", "hc_magnitude", "hc_eps", "hc_sinkhorn_iters")
# Of n-gram memories: numbers of the layers before which there is one, counted from 1, and sizes.
MEMORY_LAYERS = "ple_layer_ids"
MEMORY_KEYS = {
    "ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base", "seed",
    "make_ngram_vocab_size_divisible_by", "split_ngram_parts",
}  # fmt: skip
# Of tables by n-grams: their rows over the vocabulary's, the longest n-gram, and tables of each length.
NGRAM_KEYS = ("ngram_vocab_size_ratio", "emb_neighbor_num", "emb_split_num")
CONTENTS = ("mixer", "feedforward")
PER_LAYER = {"feedforward.gate.weight", "feedforward.down.weight", "feedforward_norm.weight"}
SCALED_EMBEDDING = ("scale_embedding", "mup_enabled")  # whether token vectors are multiplied by sqrt(d_model)


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
    return family_as_read(info.type, values, model, rules, _report(info, tensors, model))


def _readable(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> set[str]:
    # keys that the class reads, and the length of the context, which a class without positions never reads
    length = [] if defaults.keys() & set(CONTEXT) else [key for key in CONTEXT if key in values][:1]
    return {*defaults, *BOOKKEEPING, *length}


def _checkpoint_info(values: dict[str, Any], shapes: Shapes, place: str, settings: Mapping[str, Any]) -> CheckpointInfo:
    # for a multimodal model, the keys of the text part
    text, outer = values.get("text_config"), values
    if isinstance(text, dict):
        # keys outside text_config belong to other parts, even if named like keys of text
        values = {key: value for key, value in values.items() if key in BOOKKEEPING} | text
        # of the outer keys, only this one is about the text part
        values |= {key: outer[key] for key in ("tie_word_embeddings",) if key in outer}
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{place}: model_type", f"{model_type!r} is not a model type", "fix the file")
    defaults = keys_read(outer, model_type)
    readable = values.keys() if defaults is None else _readable(values, defaults)
    unread = tuple(key for key in values if key not in readable)
    read = {key: value for key, value in (defaults or {}).items() if value not in (None, DERIVED)}
    # keys of the file replace the defaults of the class
    read |= {key: value for key, value in values.items() if key not in unread}
    outer_type = str(outer.get("model_type"))
    config = Config(read, place)
    if (derive := QUIRKS.get(model_type, FamilyQuirks()).derive) is not None:
        config.values.update(derive(config))
    return CheckpointInfo(config, shapes, model_type, outer_type, frozenset(values), defaults, unread, settings)


def _model(info: CheckpointInfo, tensors: GroupedTensors) -> tuple[Decoder, list[dict[str, str]]]:
    outer = tensors.outer
    (vocab_size, extra_rows), d_model = _vocabulary(info, tensors), tensors.d_model
    dims = ModelDims(d_model, _context(info, tensors), tensors.transposed)
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
    blocks = tuple(
        block
        for layer, first in zip(tensors.layers, firsts, strict=True)
        for block in (*_memory(info, layer), *_with_further(info, layer, first))
    )
    blocks = blocks if tensors.loop is None else tensors.loop.unrolled(blocks)
    blocks = (*_ngrams(info, tensors, d_model), *blocks)
    weightless = not any(norms or layer.streams for layer, (_, norms) in zip(tensors.layers, wirings, strict=True))
    model = Decoder(
        vocab_size=vocab_size,
        context_length=dims.context_length,
        d_model=d_model,
        embedding=_embedding(info, tensors, dims, extra_rows),
        layers=blocks,
        residual=_residual(info, tensors),
        final_norm=_final_norm(info, tensors, weightless),
        early_exit=_early_exit(info, tensors),
        head=_head(info, tensors, d_model),
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


def _ngrams(info: CheckpointInfo, tensors: GroupedTensors, d_model: int) -> list[Block]:
    # a first block, which adds vectors of n-grams to those of the tokens (LongCat-Flash-Lite)
    if not tensors.ngrams:
        return []
    config, end = info.config, info.config.get("eos_token_id")
    if not isinstance(end, int):
        raise config.error("eos_token_id", f"{end!r} is not one token, at which n-grams end", "fix the file")
    ratio, n, splits = (config.size(key) for key in NGRAM_KEYS)
    count, (vocab_size, extra_rows) = (n - 1) * splits, _vocabulary(info, tensors)
    config.expect("vocab_size", vocab_size + extra_rows, "n-grams are hashed by the number of token vectors")
    if extra_rows:
        raise info.missing(config.place, "n-grams of tokens that are never predicted")
    tables = [tensors.ngrams.get(("table", index), "") for index in range(count)]
    projections = [tensors.ngrams.get(("projections", index), "") for index in range(count)]
    width = info.sides(tables[0])[1] if tables[0] else 0
    part = NgramEmbedding(rows=ratio * vocab_size, row_width=max(width, 1), n=n, splits=splits, boundary=end)
    shapes = [info.shapes.get(name) for name in (*tables, *projections)]
    if shapes != [*((size, width) for size in part.table_sizes), *[(d_model, width)] * count]:
        raise info.missing(config.place, f"n-gram tables whose number differs from {', '.join(NGRAM_KEYS)}")
    wiring = PreNorm(norm=NoNorm())
    return [Block(wiring=wiring, mixer=NoMixer(), feedforward=part, residual_scale=1 / (count + 1))]


def _residual(info: CheckpointInfo, tensors: GroupedTensors) -> Residual:
    if info.quirks.scaled_residual:
        return ScaledSum()
    if tensors.layers[0].terms:
        return _normed_sum(info, tensors)
    if "residual_exit.query" in tensors.outer:
        return _depth_attention(info, tensors)
    if "residual_exit.norm_weight" in tensors.outer:
        return _gated_streams(info, tensors)
    config, is_mean = info.config, info.quirks.streams_mean and "residual_exit.weight" not in tensors.outer
    if "residual_exit.weight" not in tensors.outer and not is_mean:
        if tensors.layers[0].streams:
            raise info.missing(tensors.layers[0].prefix, "an unknown sum of the final residual streams")
        return ResidualSum()
    num_streams = config.size(STREAMS[0]) if is_mean else info.sides(tensors.outer["residual_exit.weight"])[0]
    config.expect(STREAMS[0], num_streams, "the weights of the streams have this number of rows")
    weights = [name for layer in tensors.layers for param, name in layer.residual.items() if param.endswith("s.weight")]
    rows, eps = {info.sides(name)[0] for name in weights}, config.positive(STREAMS[2])
    # of the read and write weights, and of the matrix (DeepSeek-V4)
    if rows == {(2 + num_streams) * num_streams} and config.get(STREAMS[3]) is not None:
        return Streams(
            num_streams=num_streams,
            sinkhorn_steps=config.size(STREAMS[3]),
            exit="mean" if is_mean else "weighted",
            eps=eps,
            norm_eps=info.norm(bias=False).eps,
        )
    if other := [name for name in weights if info.sides(name)[0] != 2 * num_streams]:
        raise info.missing(other[0], "mixing of residual streams")
    return Streams(
        num_streams=num_streams,
        sinkhorn_steps=0,
        write_scale=config.positive(STREAMS[1]),
        eps=eps,
        write_eps=eps,
        norm_eps=info.norm(bias=False).eps,
    )


def _normed_sum(info: CheckpointInfo, tensors: GroupedTensors) -> NormedSum:
    # learned factors of the stream, and of what is added to it (ZAYA1)
    terms = {param.partition("_residual.")[2] for param in tensors.layers[0].terms}
    for layer in tensors.layers:
        if layer.terms.keys() != {f"{content}_residual.{term}" for content in CONTENTS for term in terms}:
            raise info.missing(layer.prefix, "learned factors on the residual stream in only some layers")
    carried, added = (
        Affine(bias=f"{name}.bias" in terms) if f"{name}.weight" in terms else NoNorm() for name in ("carried", "added")
    )
    return NormedSum(carried=carried, added=added)


def _depth_attention(info: CheckpointInfo, tensors: GroupedTensors) -> DepthAttention:
    # Kimi K3, where the first sublayer has no query
    of_each = {f"{name}_residual.attend.{param}" for name in CONTENTS for param in ("norm_weight", "query")}
    for layer in tensors.layers:
        first = set() if layer.index else {name for name in of_each if name.startswith("mixer")}
        if layer.residual.keys() != of_each - first:
            raise info.missing(layer.prefix, "attention over depth in only some sublayers")
    size = info.config.size("attn_res_block_size")
    return DepthAttention(layers_per_block=size, norm_weight=True, norm_eps=info.norm(bias=False).eps)


def _memory(info: CheckpointInfo, layer: Layer) -> list[Block]:
    # an n-gram memory is a separate block before the mixer's; the sizes of its tables follow from keys
    config, ids = info.config, info.config.get(MEMORY_LAYERS)
    names_it = isinstance(ids, list) and layer.number + 1 in ids
    if names_it != bool(layer.memory):
        cause = "names layer {}, which has no memory" if names_it else "does not name layer {}, which has a memory"
        raise config.error(MEMORY_LAYERS, cause.format(layer.number), "fix the file")
    if ids == []:
        config.used |= MEMORY_KEYS
    if not isinstance(ids, list) or not layer.memory:
        return []
    n, heads, end = config.size("ngram_size"), config.size("heads_per_ngram"), config.get("eos_token_id")
    if (keys := layer.memory.get(("key.weight", 0))) is None:
        raise info.missing(layer.prefix, "an n-gram memory without keys")
    width = info.sides(keys)[1]
    memory = NgramMemory(
        rows=config.size("ngram_vocab_size_base", most=MAX_LENGTH),
        row_width=max(width // ((n - 1) * heads), 1),
        n=n,
        heads=heads,
        conv_kernel=config.size("ple_conv_kernel_size"),
        boundary=end[0] if isinstance(end, list) else end,
        table=sorted(set(ids)).index(layer.number + 1),
        seed=config.get("seed"),
        num_streams=config.size("hc_count"),
        multiple=config.size("make_ngram_vocab_size_divisible_by"),
        norm=info.norm(bias=False),
    )
    rows = sum(info.sides(name)[0] for (param, _), name in layer.memory.items() if param == "table")
    if rows != memory.total_rows or width != memory.width:
        raise info.missing(layer.prefix, f"an n-gram memory of {rows} rows and keys for {memory.total_rows}")
    config.used |= MEMORY_KEYS
    return [Block(wiring=PreNorm(norm=NoNorm()), mixer=NoMixer(), feedforward=memory)]


def _gated_streams(info: CheckpointInfo, tensors: GroupedTensors) -> GatedStreams:
    # Qwen4-Exp; what both sublayers of each layer and the stack's end have is the same
    of_each = {f"gates.{param}" for _, param in GATED_STREAMS} | {"write_weights.weight"}
    for layer in tensors.layers:
        if layer.residual.keys() != {f"{name}_residual.{param}" for name in CONTENTS for param in of_each}:
            raise info.missing(layer.prefix, "residual streams with unknown gates")
    rank, features = info.sides(tensors.outer["residual_exit.gate_down.weight"])
    norm = info.norm(bias=False)
    num_streams = info.config.size("hc_count")
    if num_streams * tensors.d_model != features or norm.kind != "rms":
        raise info.missing(tensors.outer["residual_exit.norm_weight"], f"streams with {features} features in total")
    info.config.expect("hc_lowrank", rank, "the gates of the streams have this number of rows")
    return GatedStreams(num_streams=num_streams, rank=rank, norm_eps=norm.eps, unit_offset=norm.unit_offset)


def _with_further(info: CheckpointInfo, layer: Layer, block: Block) -> list[Block]:
    # a layer's per-layer input is a separate block, whose output is the layer's
    blocks = [block]
    if layer.further:
        if layer.further.keys() != PER_LAYER:
            raise info.missing(layer.prefix, f"per-layer inputs with only {', '.join(sorted(layer.further))}")
        width = info.sides(layer.further["feedforward.gate.weight"])[0]
        network = PerLayerInput(features=width, activation=info.activation(gated=True))
        wiring = OutputNorm(norm=info.norm(bias=False))
        blocks.append(Block(wiring=wiring, mixer=NoMixer(), feedforward=network))
    blocks[-1] = blocks[-1].replace(output_scale=layer.output_scale is not None)
    return blocks


def _vocabulary(info: CheckpointInfo, tensors: GroupedTensors) -> tuple[int, int]:
    # ids that the head predicts, and the rows of the table beyond them, such as that of an image (Mllama)
    rows, outputs = _rows(info, tensors, "embedding.token"), _rows(info, tensors, "lm_head")
    assert rows is not None
    if outputs is None:
        return rows, 0
    outputs = unpadded(info, outputs)
    if outputs > rows:
        raise info.missing(tensors.outer["lm_head.weight"], f"a head with {outputs} outputs for {rows} ids")
    return outputs, rows - outputs


def _head(info: CheckpointInfo, tensors: GroupedTensors, d_model: int) -> LanguageModelHead | ClassHead:
    scale, softcap = _head_scale(info, d_model), info.config.optional_positive("final_logit_softcapping")
    if (head := info.class_head) is not None:
        if "classifier.weight" not in tensors.outer:
            raise info.missing(f"{info.config.place}: architectures", "a classification head with an unknown name")
        num_classes, _ = info.sides(tensors.outer["classifier.weight"])
        return head.replace(num_classes=num_classes, bias="classifier.bias" in tensors.outer)
    return LanguageModelHead(
        tied=_tied(info, tensors),
        bias="lm_head.bias" in tensors.outer,
        scale=scale,
        gain=_logit_gain(info) if "lm_head.gain.weight" in tensors.outer else None,
        softcap=softcap,
        transform=_transform(info, tensors),
    )


def _logit_gain(info: CheckpointInfo) -> Gain:
    return Gain(stored=info.positive(INITIAL_STD, 0.02))  # Dory


def _check_head_dims(info: CheckpointInfo, mixers: list[Mixer], d_model: int) -> None:
    # shapes only show the product of head width and number of heads, so all layers must have the same width
    sizes = [(layer, mixer.attention_sizes(d_model)) for layer, mixer in enumerate(mixers)]
    widths = {size.head_dim: layer for layer, size in reversed(sizes) if size is not None}
    if len(widths) > 1 and not info.quirks.overridden:
        (width, first), (other_width, second) = list(widths.items())[:2]
        part = f"heads of {width} features in layer {first} and of {other_width} in layer {second}"
        raise info.missing(info.config.place, f"{part}, or other numbers of heads")


def _norm(info: CheckpointInfo, tensors: GroupedTensors, param: str, assumed: bool = False) -> Norm:
    # without a tensor there is no such norm, unless the layers' norms have no weights either
    if f"{param}.weight" not in tensors.outer:
        return info.norm(bias=False, weight=False) if assumed else NoNorm()
    return info.norm(bias=f"{param}.bias" in tensors.outer)


def _final_norm(info: CheckpointInfo, tensors: GroupedTensors, assumed: bool) -> Norm:
    norm = _norm(info, tensors, "final_norm", assumed)
    return norm.replace(unit_offset=False) if info.quirks.plain_final_norm else norm


def _context(info: CheckpointInfo, tensors: GroupedTensors) -> int:
    num_positions, length = _rows(info, tensors, "embedding.position"), info.size(CONTEXT, most=MAX_LENGTH)
    why = "no file states whether the first position is 0 or the padding id + 1"
    if (
        num_positions is not None
        and (info.quirks.positions_after_padding or num_positions == length)
        and info.settle("positions_after_padding", (False, True), why)
    ):
        # RoBERTa's table has unused rows up to and including the padding id
        return num_positions - info.config.count("pad_token_id", 1) - 1
    if length is None and num_positions is None:
        info.assume("context_length", USUAL_CONTEXT, "no key names it")
    # a key and a table may differ: the shorter one is safe
    return min(length or num_positions or USUAL_CONTEXT, num_positions or length or USUAL_CONTEXT)


def _rows(info: CheckpointInfo, tensors: GroupedTensors, table: str) -> int | None:
    name = tensors.outer.get(f"{table}.weight")
    return None if name is None else info.sides(name)[0]


def _embedding(info: CheckpointInfo, tensors: GroupedTensors, dims: ModelDims, extra_rows: int) -> Embedding:
    scale, narrow = info.positive(EMBEDDING_SCALE, 1.0), "embedding.project.weight" in tensors.outer
    named = any(info.config.get(key) is not None for key in (*EMBEDDING_SCALE, *SCALED_EMBEDDING))
    why = "no file states whether token embeddings are multiplied by sqrt(d_model)"
    if any(info.config.get(key) for key in SCALED_EMBEDDING) or (
        (not named or info.quirks.scaled_embedding) and info.settle("scaled_embedding", (False, True), why)
    ):
        scale = dims.d_model**0.5
    if tensors.ngrams:  # the mean of the token's vector and those of all n-grams
        scale /= len(tensors.ngrams) / 2 + 1
    norm = _norm(info, tensors, "embedding.norm", assumed=info.quirks.embedding_norm)
    if info.quirks.embedding_factors:
        norm = Affine()
    position = _added(info, tensors, dims)
    norm_first = not (norm.is_absent or position.is_absent) and info.settle(
        "norm_first", (False, True), "no file says whether the embedding's norm precedes the positions"
    )
    return Embedding(
        position=position,
        scale=scale,
        round_scale=info.quirks.round_scale,
        num_token_types=_rows(info, tensors, "embedding.token_type") or 0,
        extra_rows=extra_rows,
        norm=norm,
        norm_first=norm_first,
        width=info.sides(tensors.outer["embedding.token.weight"])[1] if narrow else None,
        # a projection with a bias comes last (ALBERT, RemBERT)
        project_first=narrow and "embedding.project.bias" not in tensors.outer,
        per_layer=_per_layer(info, tensors),
    )


def _per_layer(info: CheckpointInfo, tensors: GroupedTensors) -> PerLayerEmbedding | None:
    # tables by layer, all in one tensor (Gemma 3n)
    if (name := tensors.outer.get("embedding.per_layer.token.weight")) is None:
        return None
    (rows, columns), layers = info.sides(name), len(tensors.layers)
    if rows != info.sides(tensors.outer["embedding.token.weight"])[0]:
        raise info.missing(name, "per-layer embeddings with a different vocabulary size")
    if columns % layers or not tensors.layers[0].further:
        raise info.missing(name, f"per-layer embeddings for other than {layers} layers")
    return PerLayerEmbedding(features=columns // layers, norm=_norm(info, tensors, "embedding.per_layer.norm"))


def _added(info: CheckpointInfo, tensors: GroupedTensors, dims: ModelDims) -> EmbeddingPosition:
    num_positions = _rows(info, tensors, "embedding.position")
    if num_positions is not None:
        # rows before the first position, such as RoBERTa's and OPT's
        return Learned(offset=num_positions - dims.context_length)
    added = info.quirks.added_position
    if added is not None and info.quirks.inclusive_waves:
        half = max(dims.d_model // 2, 2)
        # theta^(-p / (half - 1)) with exponents up to 1, written as theta'^(-p / half)
        return added.replace(theta=added.theta ** (half / (half - 1)))
    return added or NoPosition()


def _tied(info: CheckpointInfo, tensors: GroupedTensors) -> bool:
    # a file that claims an untied head but stores none is incomplete: not tied, so that the missing tensor is reported
    return "lm_head.weight" not in tensors.outer and info.config.get("tie_word_embeddings", True) is not False


def _transform(info: CheckpointInfo, tensors: GroupedTensors) -> HeadTransform | None:
    # the dense layer before the logits of BERT; RoBERTa's and ELECTRA's code fixes its activation
    name = tensors.outer.get("lm_head.dense.weight")
    if name is None:
        return None
    if name.endswith("project_out.weight"):
        return HeadTransform(activation=NoActivation(), width=info.sides(name)[0], bias=False)
    activation = GELU() if name.startswith(("lm_head.", "generator_predictions.")) else info.activation(gated=False)
    width = info.sides(name)[0]
    return HeadTransform(
        activation=activation,
        norm=_norm(info, tensors, "lm_head.norm"),
        width=None if width == tensors.d_model else width,
        bias="lm_head.dense.bias" in tensors.outer,
    )


def _head_scale(info: CheckpointInfo, d_model: int) -> float:
    if info.config.get("logits_scaling") is not None:
        scaling = info.config.positive("logits_scaling")
        why = "no file states whether logits_scaling divides or multiplies"
        return scaling if info.settle("logits_times_scaling", (False, True), why) else 1.0 / scaling
    if info.config.get("dim_model_base") is not None:
        # MiniCPM (muP): logits are divided by d_model / dim_model_base
        return info.config.positive("dim_model_base") / d_model
    scale = info.positive(HEAD_SCALE, 1.0)
    return 1.0 if QUIRKS.get(info.outer_type, FamilyQuirks()).unscaled_logits else scale


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
    if info.defaults is None:
        return unknown
    for key, value in unknown.items():
        if value != info.defaults[key]:
            cause = f"{value!r} is not supported, but the {info.type} class of transformers reads this key"
            raise config.error(key, cause, "remove it if it does not change the output")
    return {}


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
