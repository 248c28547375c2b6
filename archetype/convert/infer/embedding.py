"""Inference of the embedding: vocabulary, positions, scale, norm and per-layer tables."""

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.mixer import ModelDims
from archetype.convert.infer.rules import unpadded
from archetype.convert.infer.spellings import CONTEXT, EMBEDDING_SCALE
from archetype.convert.infer.tensors import GroupedTensors
from archetype.parts.embedding.spec import Embedding, PerLayerEmbedding
from archetype.parts.norm.spec import Affine, NoNorm
from archetype.parts.position.spec import Learned, NoPosition
from archetype.roles.norm import Norm
from archetype.roles.position import EmbeddingPosition
from archetype.spec.base import MAX_LENGTH

SCALED_EMBEDDING = ("scale_embedding", "mup_enabled")  # whether token vectors are multiplied by sqrt(d_model)
USUAL_CONTEXT = 2048


def vocabulary(info: CheckpointInfo, tensors: GroupedTensors) -> tuple[int, int]:
    """Return the vocabulary size of the head and the number of additional embedding rows (an image token in Mllama)."""
    rows, outputs = table_rows(info, tensors, "embedding.token"), table_rows(info, tensors, "lm_head")
    assert rows is not None
    if outputs is None:
        return rows, 0
    outputs = unpadded(info, outputs)
    if outputs > rows:
        raise info.missing(tensors.outer["lm_head.weight"], f"a head with {outputs} outputs for {rows} ids")
    return outputs, rows - outputs


def context_length(info: CheckpointInfo, tensors: GroupedTensors) -> int:
    """Return the context length from a key or the table of learned positions."""
    num_positions, length = table_rows(info, tensors, "embedding.position"), info.size(CONTEXT, most=MAX_LENGTH)
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


def read_embedding(info: CheckpointInfo, tensors: GroupedTensors, dims: ModelDims, extra_rows: int) -> Embedding:
    """Return the embedding; `extra_rows` counts rows for ids that the head does not predict."""
    scale, narrow = info.positive(EMBEDDING_SCALE, 1.0), "embedding.project.weight" in tensors.outer
    named = any(info.config.get(key) is not None for key in (*EMBEDDING_SCALE, *SCALED_EMBEDDING))
    why = "no file states whether token embeddings are multiplied by sqrt(d_model)"
    if any(info.config.get(key) for key in SCALED_EMBEDDING) or (
        (not named or info.quirks.scaled_embedding) and info.settle("scaled_embedding", (False, True), why)
    ):
        scale = dims.d_model**0.5
    if tensors.ngrams:  # mean of the token embedding and all n-gram embeddings
        scale /= len(tensors.ngrams) / 2 + 1
    norm = outer_norm(info, tensors, "embedding.norm", assumed=info.quirks.embedding_norm)
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
        num_token_types=table_rows(info, tensors, "embedding.token_type") or 0,
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
    own = rows != info.sides(tensors.outer["embedding.token.weight"])[0]
    if own and not info.quirks.rows_of_layers:
        raise info.missing(name, "per-layer embeddings with a different vocabulary size")
    if columns % layers or not tensors.layers[0].further:
        raise info.missing(name, f"per-layer embeddings for other than {layers} layers")
    norm = outer_norm(info, tensors, "embedding.per_layer.norm")
    return PerLayerEmbedding(features=columns // layers, norm=norm, rows=rows if own else None)


def _added(info: CheckpointInfo, tensors: GroupedTensors, dims: ModelDims) -> EmbeddingPosition:
    num_positions = table_rows(info, tensors, "embedding.position")
    if num_positions is not None:
        # rows before the first position, such as RoBERTa's and OPT's
        return Learned(offset=num_positions - dims.context_length)
    added = info.quirks.added_position
    if added is not None and info.quirks.inclusive_waves:
        half = max(dims.d_model // 2, 2)
        # theta^(-p / (half - 1)) with exponents up to 1, written as theta'^(-p / half)
        return added.replace(theta=added.theta ** (half / (half - 1)))
    return added or NoPosition()


def table_rows(info: CheckpointInfo, tensors: GroupedTensors, table: str) -> int | None:
    """Return the number of rows of a table outside the layers, or None without the table."""
    name = tensors.outer.get(f"{table}.weight")
    return None if name is None else info.sides(name)[0]


def outer_norm(info: CheckpointInfo, tensors: GroupedTensors, param: str, assumed: bool = False) -> Norm:
    """Return a norm outside the layers.

    Without a tensor there is no such norm, unless it is `assumed`: the norms of the layers have no weights either.
    """
    if f"{param}.weight" not in tensors.outer:
        return info.norm(bias=False, weight=False) if assumed else NoNorm()
    return info.norm(bias=f"{param}.bias" in tensors.outer)
