"""Inference of n-gram tables: added to the token embeddings, or a memory before a layer."""

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.embedding import vocabulary
from archetype.convert.infer.tensors import GroupedTensors, Layer
from archetype.models.block.spec import Block, NoMixer, PreNorm
from archetype.parts.ngram.spec import NgramEmbedding, NgramMemory
from archetype.parts.norm.spec import NoNorm
from archetype.spec.base import MAX_LENGTH

# N-gram memories: the layers that follow one, counted from 1, and sizes.
MEMORY_LAYERS = "ple_layer_ids"
MEMORY_KEYS = {
    "ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base", "seed",
    "make_ngram_vocab_size_divisible_by", "split_ngram_parts",
}  # fmt: skip
# N-gram tables: ratio of their rows to the vocabulary size, longest n-gram, and tables per length.
NGRAM_KEYS = ("ngram_vocab_size_ratio", "emb_neighbor_num", "emb_split_num")


def read_ngrams(info: CheckpointInfo, tensors: GroupedTensors, d_model: int) -> list[Block]:
    """Return the block that adds n-gram embeddings to the token embeddings, if there is one (LongCat-Flash-Lite)."""
    if not tensors.ngrams:
        return []
    config, end = info.config, info.config.get("eos_token_id")
    if not isinstance(end, int):
        raise config.error("eos_token_id", f"n-grams end at a single token, but this is {end!r}", "fix the file")
    ratio, n, splits = (config.size(key) for key in NGRAM_KEYS)
    count, (vocab_size, extra_rows) = (n - 1) * splits, vocabulary(info, tensors)
    config.expect("vocab_size", vocab_size + extra_rows, "n-grams are hashed by the number of token vectors")
    if extra_rows:
        raise info.missing(config.place, "n-grams over tokens that the head does not predict")
    tables = [tensors.ngrams.get(("table", index), "") for index in range(count)]
    projections = [tensors.ngrams.get(("projections", index), "") for index in range(count)]
    width = info.sides(tables[0])[1] if tables[0] else 0
    part = NgramEmbedding(rows=ratio * vocab_size, row_width=max(width, 1), n=n, splits=splits, boundary=end)
    shapes = [info.shapes.get(name) for name in (*tables, *projections)]
    if shapes != [*((size, width) for size in part.table_sizes), *[(d_model, width)] * count]:
        raise info.missing(config.place, f"n-gram tables whose number differs from {', '.join(NGRAM_KEYS)}")
    wiring = PreNorm(norm=NoNorm())
    return [Block(wiring=wiring, mixer=NoMixer(), feedforward=part, residual_scale=1 / (count + 1))]


def read_memory(info: CheckpointInfo, layer: Layer) -> list[Block]:
    """Return a block with the layer's n-gram memory, which precedes the mixer's block, if there is one.

    Its table sizes follow from keys.
    """
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
