"""What fits, and how long it takes: predictions from the counts alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype import cost, families
from archetype.cost.formula import symbol
from archetype.cost.registry import Complexity, MixerCost
from archetype.errors import SpecError
from archetype.estimate.fit import fits, largest, parse_size
from archetype.estimate.memory import MemoryCost
from archetype.estimate.roofline import chooses_experts, predict, time_table, too_large, weights_read
from archetype.machine.hardware import DEVICES, Device, device
from archetype.models.cost import model_cost
from tests.helpers.specs import ALL

GIB = 2**30


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_bisection_finds_the_last_that_holds(last: int, most: int) -> None:
    assert largest(lambda number: number <= last, most) == min(last, most)


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * GIB), ("80 GB", 80 * 10**9), ("0.5tib", 2**39), ("512MB", 512 * 10**6)]
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["24", "GiB", "24 apples", "-1GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not a size of memory"):
        parse_size(text)


def test_the_largest_batch_and_text_fit_and_one_more_does_not() -> None:
    preset, available = families.preset("llama-3.2-1b"), 24 * GIB
    inference, training, recomputed = fits(cost.cost_report(preset, 1, 2048), available)
    memory_cost, weights = MemoryCost(model_cost(preset), "bfloat16"), 2 * cost.total_parameters(preset)

    def decoding(rows: int, tokens: int) -> int:
        return weights + memory_cost.state(rows, tokens)

    def learning(rows: int, tokens: int) -> int:
        return memory_cost.memory(rows, tokens)["training_peak"]

    for fit, needed in ((inference, decoding), (training, learning)):
        assert needed(fit.batch, 2048) <= available < needed(fit.batch + 1, 2048)
        assert needed(1, fit.length) <= available < needed(1, fit.length + 1)
    assert recomputed.batch > training.batch and recomputed.length > training.length


def test_what_does_not_fit_at_all_fits_zero_times() -> None:
    sizes = fits(cost.cost_report(families.preset("llama-2-7b"), 1, 8), GIB)
    assert [(fit.batch, fit.length) for fit in sizes] == [(0, 0)] * 3


def test_a_constant_state_fits_a_text_of_any_length() -> None:
    assert fits(cost.cost_report(ALL["lstm"], 1, 8), GIB)[0].length is None
    assert fits(cost.cost_report(ALL["learned"], 1, 8), GIB)[0].length == ALL["learned"].context_length


MACHINE = Device("test", 100e9, {"float32": 1e12, "bfloat16": 4e12}, None, "made up")


def test_decoding_one_row_is_bound_by_memory_and_prefill_by_compute() -> None:
    report = cost.cost_report(families.preset("llama-2-7b"), 1, 4096)
    prefill, decode, train = predict(report, MACHINE)
    assert (prefill.bound, decode.bound, train.bound) == ("compute", "memory", "compute")
    assert prefill.seconds == report.allowed_flops["prefill"] / 4e12
    read = 6_738_415_616 - 32_000 * 4096  # all weights but the table that tokens are looked up in
    assert decode.traffic == 2 * read + report.state["bytes"]
    assert decode.seconds == decode.traffic / 100e9
    assert train.flops == 3 * report.allowed_flops["forward"]
    passes = 2 + 1 + 4 + 3  # forward and backward; the gradient; AdamW reads four numbers a weight and writes three
    out_and_back = report.memory["activations"] + report.memory["weight_copies"]
    assert train.traffic == 4 * passes * 6_738_415_616 + 2 * out_and_back
    assert decode.tokens_per_second == 1 / decode.seconds


def test_a_bound_counts_the_pairs_that_the_mask_allows() -> None:
    """Whatever the report counts: a kernel that skips the others is not faster than the bound."""
    model = families.preset("llama-3.2-1b")
    computed, allowed = (cost.cost_report(model, 1, 65_536, attention=pairs) for pairs in ("computed", "allowed"))
    assert computed.flops["prefill"] > 1.5 * allowed.flops["prefill"]
    for mine, least in zip(predict(computed, MACHINE), predict(allowed, MACHINE), strict=True):
        assert mine.flops == least.flops == allowed.flops[mine.phase]
        assert mine.seconds == least.seconds


def test_a_tied_head_reads_its_table() -> None:
    preset = families.preset("gpt2")
    _, decode, _ = predict(cost.cost_report(preset, 1, 8, "float32"), MACHINE)
    state_bytes = cost.cost_report(preset, 1, 8, "float32").state["bytes"]
    assert decode.traffic - state_bytes == 4 * (124_439_808 - 1024 * 768)


def test_few_tokens_read_few_experts() -> None:
    one, many = (cost.cost_report(ALL["experts"], batch, 8) for batch in (1, 100))
    read = [predict(report, MACHINE)[1].traffic - report.state["bytes"] for report in (one, many)]
    assert read[1] - read[0] == 2 * (6 - 2) * 3 * 16 * 44


@pytest.mark.parametrize("batch", [1, 2, 5, 40])
def test_a_batch_reads_the_experts_that_even_routing_expects(batch: int) -> None:
    """By drawing: the weights that are read on average, and never all that the tokens could reach but for one."""
    num_experts, chosen, tries = 6, 2, 4000
    draw = random.Random(batch).sample
    reached = sum(len({e for _ in range(batch) for e in draw(range(num_experts), chosen)}) for _ in range(tries))
    report = cost.cost_report(ALL["experts"], batch, 8)
    decode = predict(report, MACHINE)[1].traffic - report.state["bytes"]
    one = 2 * 3 * 16 * 44  # bytes of an expert
    others = weights_read(report, 10**6) - num_experts * one
    assert (decode - others) / one == pytest.approx(reached / tries, rel=0.02)
    most = min(num_experts, chosen * batch)
    assert (decode - others) / one == pytest.approx(most) if batch in (1, 40) else (decode - others) / one < 0.97 * most


def test_at_least_is_said_where_it_is_true() -> None:
    assert not chooses_experts(cost.cost_report(families.preset("llama-3-8b"), 4, 8))
    assert chooses_experts(cost.cost_report(families.preset("mixtral-8x7b"), 4, 8))


def test_what_does_not_fit_is_not_timed() -> None:
    report, h100 = cost.cost_report(families.preset("llama-2-7b"), 1, 4096), device("H100-SXM")
    assert [time.phase for time in predict(report, h100)] == ["prefill", "decode"]
    (step, again) = too_large(report, h100)
    assert (step.phase, step.memory, step.available) == ("train", report.memory["training_peak"], 80 * 10**9)
    assert again.memory == report.memory["training_peak_recomputed"] > 80 * 10**9
    assert "does not fit" in str(time_table(predict(report, h100), too_large(report, h100)))
    eight = predict(report, h100.times(8))
    assert [time.phase for time in eight] == ["prefill", "decode", "train"] and not too_large(report, h100.times(8))
    larger = cost.cost_report(families.preset("llama-3.1-405b"), 1, 128)
    assert predict(larger, h100) == [] and len(too_large(larger, h100)) == 4
    assert len(predict(larger, MACHINE)) == 3  # whose memory is not known


def test_a_step_that_fits_only_with_activation_checkpointing_is_timed_so() -> None:
    report = cost.cost_report(families.preset("gpt2"), 8, 1024)
    memory = report.memory
    between = (memory["training_peak"] + memory["training_peak_recomputed"]) // 2
    step = predict(report, MACHINE._replace(memory=between))[-1]
    assert (step.phase, step.flops) == ("train_recomputed", report.allowed_flops["train_recomputed"])
    assert step.traffic < predict(report, MACHINE)[-1].traffic


def test_what_programs_usually_reach_stands_beside_the_bound() -> None:
    report = cost.cost_report(families.preset("llama-2-7b"), 1, 4096)
    prefill, decode, train = predict(report, device("A100-80GB").times(8))
    assert prefill.usual_seconds is None
    assert decode.usual_seconds == pytest.approx(decode.seconds / 0.69)
    # which counted every pair
    assert train.usual_seconds == pytest.approx(report.flops["train"] / (8 * 312e12) / 0.58)
    many = predict(cost.cost_report(families.preset("llama-2-7b"), 4096, 64), device("A100-80GB").times(64))[1]
    assert many.bound == "compute" and many.usual_seconds is None  # nobody has published that


def test_an_encoder_has_a_forward_pass_and_no_decoding() -> None:
    assert [time.phase for time in predict(cost.cost_report(ALL["encoder"]), MACHINE)] == ["forward", "train"]


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_is_found_in_any_case_and_has_a_source(name: str) -> None:
    hardware = device(name.lower())
    assert hardware is DEVICES[name] and hardware.source
    assert all(0 < reached.share < 1 and len(reached.source) > 20 for reached in hardware.usual.values())
    assert set(hardware.usual) == ({"decode", "train"} if hardware.flops else {"decode"})
    if hardware.flops:
        halves, singles = hardware.peak("bfloat16"), hardware.peak("float32")
        assert halves == hardware.peak("float16") >= singles == hardware.peak("float64")


def test_a_device_without_a_published_peak_is_timed_in_decoding_alone() -> None:
    report, m4 = cost.cost_report(families.preset("llama-3-8b"), 1, 4096), device("m4-max")
    (decode,) = predict(report, m4)
    assert (decode.phase, decode.bound) == ("decode", "memory")
    assert decode.seconds == decode.memory_seconds == decode.traffic / 546e9
    assert [phase.phase for phase in too_large(report, m4)] == ["train", "train_recomputed"]
    with pytest.raises(SpecError, match="no peak FLOPs for M4-Max"):
        m4.peak("bfloat16")


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean H100-SXM"):
        device("h100")


@pytest.mark.parametrize(
    ("name", "text", "token", "remembered"),
    [
        ("attention", "O(T^2 D)", "O(T D)", "O(T D)"), ("window", "O(T W D)", "O(W D)", "O(W D)"),
        ("strided", "O(T (s + T / s) D)", "O(T D)", "O(T D)"), ("latent", "O(T^2 D)", "O(T H C)", "O(T C)"),
        ("lstm", "O(T D^2)", "O(D^2)", "O(D)"), ("mamba", "O(T D Z)", "O(D Z)", "O(D Z)"),
        ("additive", "O(T^2 D)", "O(T D)", "O(T D)"),
    ],
)  # fmt: skip
def test_each_mixer_grows_with_the_text_in_its_way(name: str, text: str, token: str, remembered: str) -> None:
    assert cost.cost_report(ALL[name]).complexity == {"blocks.0-1.mixer": Complexity(text, token, remembered)}


def test_a_letter_in_the_complexity_is_a_size_of_the_mixer_and_not_of_its_index() -> None:
    latent = model_cost(ALL["latent, index"]).stacks[0].groups[0].cost.mixer
    assert latent.symbols["H"].value == 4 != latent.part.index.num_heads
    pooled = next(block.mixer for block in ALL["compressed, index"].layers if block.mixer.index is not None)
    index = pooled.index.replace(num_heads=3, head_dim=5)
    symbols = MixerCost.of(pooled.replace(pooling=pooled.pooling.replace(index=index)), symbol("D", 16)).symbols
    assert (symbols["H"].value, symbols["P"].value) == (4, 6)
