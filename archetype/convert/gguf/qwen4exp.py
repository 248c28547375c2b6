"""Qwen4-Exp in GGUF: gated residual streams, a pool index, and an n-gram memory before one layer."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from archetype.convert.gguf import changes
from archetype.convert.gguf.finish import with_index
from archetype.convert.gguf.keys import INDEX_HEADS, FileKeys, Keys, Wide, unsupported, written_fields
from archetype.convert.gguf.mixers import DELTA_NET
from archetype.convert.gguf.names import APART_RATES, DELTA, EXPERTS, GATED
from archetype.convert.gguf.plain import plain
from archetype.families.keys import expect_kind
from archetype.families.rules import Rule, rule, weight_rules
from archetype.families.standard_block import changed
from archetype.models.block.spec import Block, NoMixer, PreNorm
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.ngram.spec import MASK, STEP, NgramMemory, bound_of, mixed
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.pool_index.spec import PoolIndex
from archetype.parts.streams.spec import GatedStreams

INDEX, MEMORY, TABLE = "attention.indexer", "ple", "per_layer_token_embd.weight"
STREAMS = {"hyper_connection.count": "num_streams", "hyper_connection.low_rank": "rank"}
MEMORY_SIZES = {
    "embedding_length_per_layer_input": "row_width",
    f"{MEMORY}.ngram_size": "n",
    f"{MEMORY}.heads_per_ngram": "heads",
    f"{MEMORY}.conv_kernel": "conv_kernel",
}
AT_ONCE = 2**18  # numbers tried in one batch
MOST_HASHES = 64  # of a position, a constant of llama.cpp
WITHOUT = PreNorm(norm=NoNorm())  # the streams are normalized when they are read
DELTA_SIGMOID = replace(DELTA_NET, read=lambda layer, eps: DELTA_NET.read(layer, eps).replace(gate="sigmoid"))
# norms of a memory have different names
AROUND_ONE = replace(changes.AROUND_ONE, tensors=r"(?!.*ssm_norm)(.*norm|.*ple_norm_[a-z]+)\.weight")
OUTER = """
    token_embd                                   embedding.token
    output                                       lm_head
    output_hc_norm.weight                      = residual_exit.norm_weight
    output_hc_{down,up}                          residual_exit.gate_{down,up}
"""
OF_LAYER = (
    EXPERTS
    + """
    blk.{i}.hc_{attn,ffn}_norm.weight          = blocks.{i}.{mixer,feedforward}_residual.gates.norm_weight
    blk.{i}.hc_{attn,ffn}_{down,up}              blocks.{i}.{mixer,feedforward}_residual.gates.gate_{down,up}
    blk.{i}.hc_{attn,ffn}_inject                 blocks.{i}.{mixer,feedforward}_residual.write_weights
    blk.{i}.indexer.{q,k}_proj                   blocks.{i}.mixer.index.{q,k}
    blk.{i}.indexer.{q,k}_norm                   blocks.{i}.mixer.index.{q,k}_norm
"""
)
OF_MEMORY = """
    blk.{i}.ple_{key,value}                      blocks.{i}.feedforward.{key,value}
    blk.{i}.ple_conv1d                           blocks.{i}.feedforward.conv
"""


def rules(model: Any) -> tuple[Rule, ...]:
    """Return the rules. A memory is a separate block of the model, but part of the next layer in a file."""
    rows, layer = list(weight_rules(OUTER)), 0
    for index, block in enumerate(model.layers):
        mixer, network = block.mixer, block.feedforward
        heads = getattr(mixer, "key_heads", getattr(mixer, "num_heads", 1))
        if isinstance(network, NgramMemory):
            tables = [(OF_MEMORY, 1)]
            rows.append(rule(TABLE, f"blocks.{index}.feedforward.table"))
            for name in ("key", "query", "conv"):
                norms = (f"blocks.{index}.feedforward.{name}_norm.{i}.weight" for i in range(network.num_streams))
                rows.append(rule(f"blk.{layer}.ple_norm_{name}.weight", *norms))
        elif isinstance(mixer, GatedDeltaNet):
            tables = [(OF_LAYER + DELTA, 1), (APART_RATES, heads)]
        else:
            tables = [(OF_LAYER + GATED, 1), ("blk.{i}.attn_q  blocks.{i}.mixer.{q,gate}", heads)]
        for table, groups in tables:
            table = table.replace("blk.{i}", f"blk.{layer}").replace("blocks.{i}", f"blocks.{index}")
            rows += weight_rules(table, heads=groups)
        layer += not isinstance(network, NgramMemory)
    return tuple(rows)


def without_memory(model: Any) -> Any:
    """Return the model without the block of a memory, which files do not count as a layer."""
    return model.replace(layers=tuple(b for b in model.layers if not isinstance(b.feedforward, NgramMemory)))


def computed(model: Any) -> Any:
    """Return the model with the table sizes of its memory, as a file stores them, instead of the minimum sizes."""

    def network(part: Any) -> Any:
        if not isinstance(part, NgramMemory):
            return part
        total = part.total_rows
        return part.replace(rows=part.table_sizes[0], multiple=1 if total == sum(part.table_sizes) else total)

    return plain(changed(model, feedforward=network))


def with_streams(keys: FileKeys, model: Any) -> Any:
    """Add gated streams instead of all norms, an index in attention layers, and the memory."""
    eps, num_layers = model.final_norm.eps, model.num_layers
    norm, top_k = RMSNorm(eps=eps, unit_offset=True), keys.size(f"{INDEX}.top_k")
    rates = keys.get("attention.compress_ratios", [])
    has_index = [not isinstance(block.mixer, GatedDeltaNet) for block in model.layers]
    pool = max((rate for rate in rates if isinstance(rate, int)), default=0) if isinstance(rates, list) else 0
    if not pool or top_k % pool or rates[:num_layers] != [pool * there for there in has_index]:
        raise keys.error("attention.compress_ratios", f"{rates!r:.80} is not supported", "fix the file")
    index = PoolIndex(pool=pool, top_pools=top_k // pool, norm=norm, **keys.fields(INDEX_HEADS))
    streams = GatedStreams(**keys.fields(STREAMS), norm_eps=eps, unit_offset=True)
    model = with_index(keys, model, index)
    layers = [block.replace(wiring=WITHOUT) for block in model.layers]
    if places := keys.get(f"{MEMORY}.layers", []):
        place = places[0] if isinstance(places, list) and len(places) == 1 else None
        if not isinstance(place, int) or not 0 <= place < num_layers or has_index[place]:
            raise keys.error(
                f"{MEMORY}.layers", f"{places!r:.80} is not a single layer with a delta network", "fix the file"
            )
        memory = _memory(keys, model.vocab_size, streams.num_streams, norm)
        layers.insert(place, Block(wiring=WITHOUT, mixer=NoMixer(), feedforward=memory))
    return model.replace(layers=tuple(layers), residual=streams, final_norm=NoNorm())


def _memory(keys: FileKeys, vocab_size: int, num_streams: int, norm: RMSNorm) -> NgramMemory:
    multipliers, sizes, offsets = (
        _numbers(keys, name) for name in ("layer_multipliers", "head_vocab_sizes", "head_offsets")
    )
    keys.used.add(f"{MEMORY}.image_token_id")  # placeholder of images
    total = keys.shapes.get(TABLE, (0,))[0]
    if (seed := seed_of(multipliers, vocab_size)) is None:
        cause = f"{multipliers!r:.80} do not come from a seed of transformers"
        raise keys.error(f"{MEMORY}.layer_multipliers", cause, "this model is not supported")
    if sum(sizes) > total or min(sizes) < 2:
        raise keys.error(f"{MEMORY}.head_vocab_sizes", f"{sizes!r:.80} do not fit {total} rows", "fix the file")
    memory = NgramMemory(
        rows=sizes[0],
        **keys.fields(MEMORY_SIZES),
        boundary=keys.count(f"{MEMORY}.eos_token_id", 0),
        seed=seed,
        num_streams=num_streams,
        multiple=1 if sum(sizes) == total else total,
        norm=norm,
    )
    if (sizes, offsets) != _tables(memory):
        cause = f"{offsets!r:.40} are not where tables of the next primes begin: {sizes!r:.40}"
        raise keys.error(f"{MEMORY}.head_offsets", cause, "this model is not supported")
    return memory


def _numbers(keys: FileKeys, name: str) -> list[int]:
    numbers = keys.get(f"{MEMORY}.{name}")
    if not isinstance(numbers, list) or not numbers or not all(isinstance(number, int) for number in numbers):
        raise keys.error(f"{MEMORY}.{name}", f"{numbers!r:.80} is not a list of integers", "fix the file")
    return numbers


def seed_of(multipliers: Sequence[int], vocab_size: int) -> int | None:
    """Return the seed that produces these multipliers of a memory; None if there is none.

    A multiplier is known but for a multiple of the bound, about 4 x `vocab_size` of which are below 2 ** 64.
    """
    bound = bound_of(vocab_size)
    rests = [number // 2 for number in multipliers]
    if not all(number % 2 and 0 < number < 2 * bound for number in multipliers):
        return None
    count = (MASK - rests[0]) // bound + 1
    for start in range(0, count, AT_ONCE):
        numbers = np.arange(start, min(count, start + AT_ONCE), dtype=np.uint64) * np.uint64(bound) + np.uint64(
            rests[0]
        )
        seeds = _unmixed(numbers) - np.uint64(STEP)
        for index, rest in enumerate(rests[1:], 2):
            seeds = seeds[mixed(seeds + np.uint64(STEP * index & MASK)) % np.uint64(bound) == rest]
        if len(seeds):
            return int(seeds[0]) if seeds[0] < 2**63 else None
    return None


def _unmixed(values: Any) -> Any:
    # the numbers of which `mixed` makes these: shifts are undone by repeating them, products by the inverse factor
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        values = values ^ (values >> np.uint64(shift)) ^ (values >> np.uint64(2 * shift))
        values = values * np.uint64(pow(factor, -1, 2**64))
    return values - np.uint64(STEP)


def _tables(memory: NgramMemory) -> tuple[Wide, Wide]:
    sizes = memory.table_sizes
    return Wide(sizes), Wide(accumulate(sizes[:-1], initial=0))


def streams_keys(model: Any) -> Keys:
    streams = expect_kind(GatedStreams, model.residual, "residual")
    layers = without_memory(model).layers
    index = next((index for block in layers if (index := getattr(block.mixer, "index", None)) is not None), None)
    if not isinstance(index, PoolIndex):
        raise unsupported("layers[*].mixer.index", "attention without an index in qwen4exp")
    rates = [0 if isinstance(block.mixer, GatedDeltaNet) else index.pool for block in layers]
    keys: Keys = {
        "attention.layer_norm_rms_epsilon": streams.norm_eps,
        "attention.compress_ratios": rates,
        **written_fields(index, INDEX_HEADS),
        f"{INDEX}.top_k": index.top_pools * index.pool,
        **written_fields(streams, STREAMS),
    }
    places = [place for place, block in enumerate(model.layers) if isinstance(block.feedforward, NgramMemory)]
    if not places:
        return keys
    if len(places) > 1 or places[0] >= len(layers) or rates[places[0]]:
        raise unsupported("layers[*].feedforward", "anything but one memory before a delta network")
    memory: NgramMemory = model.layers[places[0]].feedforward
    if memory.width != model.d_model or memory.num_rows > MOST_HASHES:
        cause = f"{memory.num_rows} rows of {memory.row_width}, only d_model {model.d_model} in at most {MOST_HASHES}"
        raise unsupported("layers[*].feedforward.row_width", cause)
    sizes, offsets = _tables(memory)
    return keys | {
        f"{MEMORY}.layers": places,
        **written_fields(memory, MEMORY_SIZES),
        f"{MEMORY}.eos_token_id": memory.boundary,
        f"{MEMORY}.layer_multipliers": Wide(memory.multipliers(model.vocab_size)),
        f"{MEMORY}.head_offsets": offsets,
        f"{MEMORY}.head_vocab_sizes": sizes,
    }
