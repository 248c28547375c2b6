"""Bytes: what is counted is what is allocated."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from archetype import cost, families, spec
from archetype.cost.formula import symbol
from archetype.dtypes import NUMBERS, bytes_of, weight_bytes
from archetype.errors import SpecError
from archetype.estimate.memory import MemoryCost
from archetype.models.build import build, build_on_meta
from archetype.models.cost import model_cost
from archetype.parts.attention.cost import AttentionCost
from archetype.parts.latent_attention.cost import LatentAttentionCost
from archetype.weights.quantized import quantize
from tests.helpers.cases import case, in_one_test
from tests.helpers.examples import examples
from tests.helpers.specs import ALL
from tests.helpers.strategies import CONTEXT, decoders

DTYPES = {name: getattr(torch, name) for name, bits in NUMBERS.items() if bits >= 16}


@pytest.mark.parametrize("name", DTYPES)
def test_a_type_has_its_size(name: str) -> None:
    assert bytes_of(name) == DTYPES[name].itemsize


@given(decoders(), st.integers(1, 4), st.integers(1, CONTEXT), st.sampled_from(sorted(DTYPES)))
@examples(15)
def test_a_state_takes_what_is_counted(drawn: spec.Decoder, batch: int, length: int, dtype: str) -> None:
    state = build(drawn).new_state(batch, length, DTYPES[dtype])
    assert state.nbytes == cost.cost_report(drawn, batch, length, dtype).state["bytes"]
    held = [tensor for layer in state.layers for _, _, tensor in layer.tensors()]
    assert state.nbytes == sum(tensor.untyped_storage().nbytes() for tensor in held)


@given(decoders(), st.integers(1, CONTEXT - 1))
@examples(10)
def test_one_more_token_takes_the_bytes_per_token(drawn: spec.Decoder, length: int) -> None:
    """On average over the tokens of a pooled key."""
    model, period = build(drawn), model_cost(drawn).state_period
    assume(length + period <= CONTEXT)
    more = model.new_state(1, length + period).nbytes - model.new_state(1, length).nbytes
    assert cost.cost_report(drawn, 3, length, "float32").state["bytes_per_token"] == -(-more // period)


WRITERS = {name: model for name, model in ALL.items() if not isinstance(model, spec.Encoder | spec.VisionEncoder)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@in_one_test("name", WRITERS)
def test_every_part_keeps_what_is_counted(name: str, dtype: str) -> None:
    drawn = WRITERS[name]
    model = build(drawn, dtype=DTYPES[dtype])
    for length in (3, 20):
        if isinstance(drawn, spec.EncoderDecoder):
            source = torch.zeros(2, length, dtype=torch.long)
            state = model.new_state(source, capacity=length)
        else:
            state = model.new_state(2, length)
        assert state.nbytes == cost.cost_report(drawn, 2, length, dtype).state["bytes"], length


@pytest.mark.parametrize("name", ["encoder", "picture"])
def test_what_reads_a_whole_text_keeps_nothing(name: str) -> None:
    assert cost.cost_report(ALL[name]).state == {"bytes_per_token": 0, "bytes": 0}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("attention", 2 * 2 * 2 * 4), ("latent", 2 * (8 + 4)), ("lstm", 0), ("mamba", 0), ("window", 0), ("megabyte", 4)],
)
def test_a_further_token_takes_so_many_numbers(name: str, numbers: int) -> None:
    """Of a long text: what is constant or a full window grows no more; a patch's keys and values are shared by it."""
    assert cost.cost_report(ALL[name], 3, 20, "float32").state["bytes_per_token"] == 4 * numbers


@in_one_test("name", WRITERS)
def test_bytes_per_token_are_the_slope_over_many_tokens(name: str) -> None:
    """A pooled key or a patch stands for several tokens: the growth by the next token alone says nothing."""
    memory = MemoryCost(model_cost(WRITERS[name]), "float32")
    growth = memory.state(1, 8192) - memory.state(1, 4096)
    assert [memory.state_per_token(4096 + more) for more in (0, 1, 2, 3)] == [math.ceil(growth / 4096)] * 4


def test_deepseek_v4_flash_keeps_6880_bytes_for_a_token() -> None:
    """21 layers keep a key of 512 and one of 128 features for 4 tokens, 20 layers a key of 512 for 128 tokens."""
    expected = (21 * (512 + 128) // 4 + 20 * 512 // 128) * 2
    assert cost.cost_report(families.preset("deepseek-v4-flash"), 1, 8192).state["bytes_per_token"] == expected


def test_latent_attention_keeps_its_latents_only() -> None:
    """DeepSeek-V2's latents: 512 + 64 numbers for each layer and token, against 2 x 128 heads of 128 features."""
    part = spec.LatentAttention(
        num_heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    assert LatentAttentionCost(part, symbol("D", 5120)).state(1000) == 576_000
    assert AttentionCost(spec.Attention(num_heads=128, head_dim=128), symbol("D", 5120)).state(1000) == 32_768_000


def test_llama_2_70b_keeps_320_kib_for_a_token() -> None:
    """80 layers of 8 heads of 128 features, keys and values, two bytes each."""
    assert cost.cost_report(families.preset("llama-2-70b")).state["bytes_per_token"] == 80 * 8 * 128 * 2 * 2


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-tiny", "llama-3.1-405b"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_weights_take_what_the_built_model_takes(name: str, dtype: str) -> None:
    preset = families.preset(name)
    allocated = sum(parameter.nbytes for parameter in build_on_meta(preset).to(DTYPES[dtype]).parameters())
    assert cost.cost_report(preset, dtype=dtype).memory["weights"] == allocated


def test_training_takes_sixteen_bytes_a_parameter() -> None:
    preset = families.preset("gpt2")
    held, total = cost.cost_report(preset).memory, 124_439_808
    assert (held["gradients"], held["optimizer"], held["training_state"]) == (4 * total, 8 * total, 16 * total)
    fixed = 12 * total + held["weight_copies"]  # where backward begins there are no gradients
    assert held["training_peak"] == fixed + held["activations"]
    assert held["training_peak_recomputed"] == fixed + held["activations_recomputed"] < held["training_peak"]
    few = cost.cost_report(families.preset("gpt2"), length=8).memory  # then the optimizer's step holds the most
    assert few["training_peak"] == 16 * total


def test_an_unknown_type_is_refused() -> None:
    gpt2 = families.preset("gpt2")
    words = "dtype: 'float8' is not known; use one of float64, float32, bfloat16, float16, fp8"
    with pytest.raises(SpecError) as caught:
        cost.cost_report(gpt2, dtype="float8")
    further = "a type of GGUF files such as q4_k_m, or published"
    assert str(caught.value) == f"{words}, lossless, int8, int4, mxfp4, nvfp4; {further}"
    with pytest.raises(SpecError) as caught:
        cost.cost_report(gpt2, state_dtype="float8")
    assert str(caught.value) == f"state_{words}, int8"
    with pytest.raises(SpecError, match="'int4' is not known"):
        cost.cost_report(gpt2, state_dtype="int4")


def test_few_bits_take_their_scales_too() -> None:
    """int8 and int4 as they are packed, 4 bits as their formats say: OCP's MX and NVIDIA's of blocks of 16."""
    preset = families.preset("gpt2")
    whole = cost.cost_report(preset, dtype="bfloat16")
    for dtype, bits in (("int8", 8.5), ("int4", 4.5), ("mxfp4", 4.25), ("nvfp4", 4.5), ("fp8", 8 + 1 / 512)):
        with case(dtype):
            report = cost.cost_report(preset, dtype=dtype)
            assert report.memory["weights"] == math.ceil(124_439_808 * bits / 8)
            assert report.state == whole.state and report.memory["training_peak"] == whole.memory["training_peak"]
    for dtype, bits in (("int8", 8), ("int4", 4)):
        quants, scales = quantize(torch.randn(64, 96), bits)
        assert weight_bytes(64 * 96, dtype) == quants.nbytes + scales.nbytes


def test_the_state_has_a_type_of_its_own() -> None:
    llama = families.preset("llama-2-70b")
    by_type = {
        (weights, state): cost.cost_report(llama, 2, 100, weights, state_dtype=state)
        for weights, state in (("bfloat16", None), ("int4", None), ("int4", "fp8"), ("bfloat16", "float32"))
    }
    per_token = {types: report.state["bytes_per_token"] for types, report in by_type.items()}
    half = 80 * 8 * 128 * 2
    assert list(per_token.values()) == [2 * half, 2 * half, half, 4 * half]
    assert by_type["int4", "fp8"].memory == by_type["int4", None].memory
    assert "in fp8" in by_type["int4", "fp8"].table() and "in bfloat16" in by_type["int4", None].table()


def test_a_source_has_a_length_of_its_own() -> None:
    drawn, source, target = families.preset("t5-tiny"), 7, 12
    model = build(drawn)
    report = cost.cost_report(drawn, 2, target, "float32", source_length=source)
    state = model.new_state(torch.zeros(2, source, dtype=torch.long), capacity=target)
    assert state.nbytes == report.state["bytes"]
    alike = cost.cost_report(drawn, 2, target, "float32", source_length=target)
    assert alike.flops == cost.cost_report(drawn, 2, target, "float32").flops
    assert alike.memory == cost.cost_report(drawn, 2, target, "float32").memory
    assert report.memory["activations"] < alike.memory["activations"]
    with pytest.raises(SpecError, match="source_length: gpt2 reads no source"):
        cost.cost_report(families.preset("gpt2"), source_length=5)
    limited = spec.assign(families.preset("transformer-tiny"), ["embedding.position=learned"])
    with pytest.raises(SpecError, match="source_length: 9,999 tokens are more than"):
        cost.cost_report(limited, source_length=9_999)


def test_a_length_without_positions_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        cost.cost_report(families.preset("gpt2"), length=1025)
    message = "length: 1,025 tokens are more than the 1,024 positions that gpt2 has; use at most 1,024"
    assert str(caught.value) == message
    assert cost.cost_report(families.preset("llama-2-7b"), length=100_000).length == 100_000  # rotary: no table


def test_the_report_is_its_table_and_its_records() -> None:
    report = cost.cost_report(families.preset("gpt2"), length=64)
    assert report.table() == str(report) and "training peak" in report.table()
    records = report.records()
    assert records == report.to_json()["modules"]
    assert sum(record["parameters"] for record in records) == 124_439_808
    assert records[0]["formulas"]["parameters"] == "V D"


def test_the_report_is_plain_data() -> None:
    report = cost.cost_report(families.preset("gpt2"), batch=2, length=8, dtype="float16").to_json()
    assert {key: report[key] for key in ("name", "batch", "length", "dtype")} == {
        "name": "gpt2", "batch": 2, "length": 8, "dtype": "float16",
    }  # fmt: skip
    assert [row["module"] for row in report["modules"]] == [
        "embedding.token", "embedding.position", "blocks.0-11.mixer_norm", "blocks.0-11.mixer.q",
        "blocks.0-11.mixer.k", "blocks.0-11.mixer.v", "blocks.0-11.mixer.o", "blocks.0-11.mixer.scores",
        "blocks.0-11.mixer.mixture", "blocks.0-11.feedforward_norm", "blocks.0-11.feedforward.up",
        "blocks.0-11.feedforward.down", "final_norm", "lm_head",
    ]  # fmt: skip


def test_without_a_length_it_is_the_context_length() -> None:
    assert cost.cost_report(families.preset("gpt2")).length == 1024
