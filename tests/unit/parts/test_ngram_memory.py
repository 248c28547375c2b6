"""The n-gram memory beside transformers' Qwen4-Exp; nothing with a zero table; and the same text in pieces."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer

import archetype
from archetype import spec
from archetype.convert.gguf.qwen4exp import seed_of
from archetype.cost import total_parameters
from archetype.estimate.report import cost_report
from archetype.models.causal import CausalModel
from archetype.nn.context import ForwardContext
from archetype.nn.parameter_roles import roles_of
from archetype.nn.place import Place
from archetype.parts.ngram.module import NgramMemory
from archetype.parts.ngram.spec import NgramMemory as NgramMemorySpec
from archetype.weights.quantized import QuantizedMatrix, dequantize, quantize, quantize_model
from tests.helpers.passes import forward_step
from tests.helpers.specs import block, decoder
from tests.helpers.weights import distance, randomize

D, T, V = 16, 19, 31
MEMORY: dict[str, Any] = {"kind": "ngram_memory", "rows": 17, "row_width": 3, "n": 3, "heads": 2, "boundary": 3}
SPLIT = {"key": "key_proj", "conv": "conv1d"}
TOKENS = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(0))
TOKENS[0, 7] = TOKENS[1, 4] = TOKENS[1, 5] = 3


def model(dtype: torch.dtype = torch.float64, **changes: Any) -> CausalModel:
    memory = {"wiring": {"kind": "pre_norm", "norm": {"kind": "none"}}, "mixer": {"kind": "none"}}
    layers = [memory | {"feedforward": MEMORY | changes}, block(), memory | {"feedforward": MEMORY | {"table": 1}}]
    built = archetype.build(decoder(layers=layers, d_model=D, vocab_size=V), dtype=dtype)
    assert isinstance(built, CausalModel)
    return randomize(built).requires_grad_(False).eval()


@pytest.mark.parametrize("change", [{}, {"n": 4, "heads": 1, "conv_kernel": 2}, {"table": 2, "seed": 5}])
@torch.no_grad()
def test_it_computes_what_transformers_computes(change: dict[str, Any]) -> None:
    part = NgramMemorySpec(**MEMORY | {"multiple": 8, "norm": {"kind": "rms", "eps": 1e-6}} | change)
    config = Qwen4ExpTextConfig(
        vocab_size=V, hidden_size=D, hc_count=2, ngram_size=part.n, heads_per_ngram=part.heads, seed=part.seed,
        ple_embed_dim=part.width, ngram_vocab_size_base=part.rows, make_ngram_vocab_size_divisible_by=part.multiple,
        ple_conv_kernel_size=part.conv_kernel, eos_token_id=part.boundary, num_hidden_layers=1,
        layer_types=["linear_attention"], rms_norm_eps=1e-6,
    )  # fmt: skip
    theirs = randomize(Qwen4ExpTextPLELayer(config, 0, part.table)).eval()
    ours = NgramMemory(part, Place(D, vocab_size=V)).eval()
    weights = dict(theirs.named_parameters())
    x = torch.randn(2, T, 2 * D, generator=torch.Generator().manual_seed(1))
    expected = theirs(x, TOKENS, None)
    # theirs adds to each of two streams, with keys, norms and a convolution of its own
    for stream in (slice(0, D), slice(D, 2 * D)):
        ours.load_state_dict(
            {"table": weights["ple_embedding.ngram_embedding.weight"], "value.weight": weights["value_proj.weight"]}
            | {f"{name}.weight": weights[f"{one}.weight"][stream] for name, one in SPLIT.items()}
            # theirs adds 1 to the weights of its norms
            | {f"{name}_norm.weight": 1 + weights[f"norm_{name}.weight"][stream] for name in ("key", "query", "conv")}
        )
        y = expected[..., stream]
        assert distance(ours(x[..., stream], ForwardContext.of(TOKENS)), y) < 1e-5
        # control: of other tokens, and of n-grams that cross a boundary
        assert distance(ours(x[..., stream], ForwardContext.of(TOKENS + 1)), y) > 1e-3
        other = NgramMemory(part.replace(boundary=30), Place(D, vocab_size=V)).eval()
        other.load_state_dict(ours.state_dict())
        assert distance(other(x[..., stream], ForwardContext.of(TOKENS)), y) > 1e-3


@torch.no_grad()
def test_a_zero_table_is_the_model_without_to_the_bit() -> None:
    built = model()
    plain = archetype.build(decoder(layers=[block()], d_model=D, vocab_size=V), dtype=torch.float64)
    state = {name.replace("blocks.1.", "blocks.0."): x for name, x in built.state_dict().items()}
    plain.load_state_dict({name: state[name] for name in plain.state_dict()} | {
        name: built.state_dict()[name.replace("blocks.0.", "blocks.1.")] for name in plain.state_dict()
    })  # fmt: skip
    assert distance(built(TOKENS).logits, plain(TOKENS).logits) > 1e-3
    for index in (0, 2):
        built.get_parameter(f"blocks.{index}.feedforward.table").zero_()
    assert torch.equal(built(TOKENS).logits, plain(TOKENS).logits)


@pytest.mark.parametrize("change", [{}, {"n": 4, "heads": 1}, {"n": 2, "heads": 3, "conv_kernel": 1}])
def test_a_text_in_pieces_is_the_whole_text_with_a_constant_state(change: dict[str, Any]) -> None:
    built = model(**change)
    whole, lengths = built(TOKENS).logits, torch.tensor([T, 11])
    assert distance(built(TOKENS, num_tokens=lengths).logits[1, :11], whole[1, :11]) < 1e-9
    for cuts in ([5, 6, 11], list(range(1, T))):
        state, pieces = built.new_state(2, T), []
        for start, end in pairwise([0, *cuts, T]):
            piece, state = forward_step(built, TOKENS[:, start:end], state)
            pieces.append(piece)
        assert distance(torch.cat(pieces, 1), whole) < 1e-9
    assert built.new_state(1, 8).layers[0].nbytes == built.new_state(1, T).layers[0].nbytes


@pytest.mark.parametrize("part", [
    MEMORY | {"row_width": 32}, {"kind": "ngram_embedding", "rows": 17, "row_width": 32, "n": 3, "splits": 2}
])  # fmt: skip
@torch.no_grad()
def test_tables_are_packed_and_their_parameters_have_roles(part: dict[str, Any]) -> None:
    """A packed table computes what the numbers that it stores compute."""
    first = {"wiring": {"kind": "pre_norm", "norm": {"kind": "none"}}, "mixer": {"kind": "none"}, "feedforward": part}
    built = archetype.build(decoder(layers=[first, block()], d_model=32, vocab_size=V))
    randomize(built).requires_grad_(False).eval()
    roles = {name.split("feedforward.")[1]: role for name, role in roles_of(built).items() if ".0.feed" in name}
    assert roles["table"] == "embedding"
    assert {role for name, role in roles.items() if "norm" not in name and name != "conv.weight"} == {
        "embedding", "hidden"
    }  # fmt: skip
    whole, table = built(TOKENS).logits, built.get_parameter("blocks.0.feedforward.table").clone()
    stored = dequantize(*quantize(table, 8), 8)
    built.get_parameter("blocks.0.feedforward.table").copy_(stored)
    expected = built(TOKENS).logits
    feedforward = built.get_submodule("blocks.0.feedforward")
    quantize_model(only := torch.nn.ModuleDict({"part": feedforward}), 8)
    assert isinstance(feedforward.table, QuantizedMatrix) and only["part"] is feedforward
    assert 1e-4 < distance(built(TOKENS).logits, whole) < 0.1
    if part["kind"] == "ngram_embedding":  # without other matrices that are packed
        assert distance(built(TOKENS).logits, expected) < 1e-6


def test_the_cost_is_that_of_the_module() -> None:
    built = model(torch.float32)
    assert total_parameters(built.spec) == sum(parameter.numel() for parameter in built.parameters())
    report = cost_report(built.spec, batch=2, length=T, dtype="float32")
    assert report.state["bytes"] == built.new_state(2, T).nbytes
    # a token reads a few rows of the table
    active = report.parameters["total"] - report.parameters["active"]
    tables = [layer.feedforward for layer in built.spec.layers if isinstance(layer.feedforward, NgramMemorySpec)]
    assert active == sum(one.total_rows * one.row_width - one.width for one in tables)


def test_the_sizes_of_the_tables_are_primes_and_none_is_used_twice() -> None:
    first, second = (NgramMemorySpec(**MEMORY | {"table": table}) for table in range(2))
    assert first.table_sizes == (17, 19, 23, 29) and second.table_sizes == (31, 37, 41, 43)
    assert first.multipliers(V) != second.multipliers(V) != NgramMemorySpec(**MEMORY | {"seed": 1}).multipliers(V)
    assert all(factor % 2 and factor * (V - 1) < 2**63 for factor in first.multipliers(V))


def row_of(memory: NgramMemory, tokens: list[int]) -> Tensor:
    return memory.row_ids(torch.tensor([tokens]))[0, -1]


def test_a_seed_is_found_by_its_multipliers() -> None:
    for seed, vocab_size in ((0, 61), (7, 61), (2**63 - 1, 1000), (1234, 151_936)):
        memory = NgramMemorySpec(rows=40, row_width=8, seed=seed)
        multipliers = memory.multipliers(vocab_size)
        assert seed_of(multipliers, vocab_size) == seed
        assert seed_of((*multipliers[:2], multipliers[2] + 2), vocab_size) is None
    assert seed_of((-3, 5, 7), 61) is None and seed_of((2, 5, 7), 61) is None


def test_the_hashes_depend_on_the_last_tokens_only() -> None:
    memory = NgramMemory(NgramMemorySpec(**MEMORY), Place(D, vocab_size=V))
    assert torch.equal(row_of(memory, [1, 2, 4, 5]), row_of(memory, [9, 2, 4, 5]))
    pair, triple = row_of(memory, [1, 2, 4, 5]).split(2)
    changed_pair, changed_triple = row_of(memory, [1, 7, 4, 5]).split(2)
    assert torch.equal(pair, changed_pair) and not torch.equal(triple, changed_triple)
    # behind a boundary, all tokens are the boundary
    assert torch.equal(row_of(memory, [1, 7, 3, 5]), row_of(memory, [1, 3, 3, 5]))
    assert spec.parse(model().spec.dump()) == model().spec
