"""One size solved so that two specifications cost the same."""

import pytest

from archetype import families, spec
from archetype.errors import SpecError
from archetype.estimate.match import MEASURES, amount, match, read_amount

LLAMA, GPT2 = families.preset("llama-tiny"), families.preset("gpt2-tiny")


@pytest.mark.parametrize("around", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_no_other_value_of_the_field_comes_nearer(around: int) -> None:
    for measure in MEASURES:
        for path in (None, "d_model", "num_layers"):
            result = match(LLAMA, GPT2, measure, path)
            assert result.spec == spec.assign(LLAMA, [f"{result.path}={result.after}"])
            length = min(LLAMA.context_length, GPT2.context_length)
            assert result.amount == amount(result.spec, measure, length)
            assert result.target == amount(GPT2, measure, length)
            for value in range(max(1, result.after - around), result.after + around + 1):
                try:
                    other = spec.assign(LLAMA, [f"{result.path}={value}"])
                except SpecError:
                    continue
                assert abs(amount(other, measure, length) - result.target) >= abs(result.amount - result.target)


def test_the_field_is_the_one_that_fits() -> None:
    assert match(LLAMA, GPT2, "flops").path == "layers[*].feedforward.d_ff"
    assert match(LLAMA, GPT2, "state")[1:4] == ("layers[*].mixer.num_kv_heads", 2, 4)
    assert match(families.preset("mamba-tiny"), GPT2, "parameters").path == "d_model"


def test_a_field_that_ends_short_of_the_target_is_refused() -> None:
    """By its largest or its smallest value, or because the measure does not follow it; within 1 % it is a match."""
    small, large = families.preset("llama-tiny"), families.preset("llama-3-8b")
    with pytest.raises(SpecError, match=r"^layers\[\*\].feedforward.d_ff: reaches .* parameters, but .* has .*; solve"):
        match(large, small, "parameters")
    with pytest.raises(SpecError, match=r"^num_layers: reaches .* to .* parameters"):
        match(small, large, "parameters", "num_layers")
    with pytest.raises(SpecError, match=r"^vocab_size: reaches [\d,]+ state, but gpt2-tiny has"):
        match(small, GPT2, "state", "vocab_size")
    assert match(small, small, "state", "vocab_size").amount == amount(small, "state", small.context_length)


def test_what_cannot_be_solved_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^match: there is no measure 'size'; use one of parameters, active, flops"):
        match(LLAMA, GPT2, "size")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^head.tied: False is not a whole number; name a size"):
        match(LLAMA, GPT2, "parameters", "head.tied")
    with pytest.raises(SpecError, match=r"^head.tiled: is not in this specification"):
        match(LLAMA, GPT2, "parameters", "head.tiled")


def test_a_budget_takes_the_place_of_a_model() -> None:
    result = match(LLAMA, 120_000, "parameters")
    assert result.target == 120_000 and result.path == "layers[*].feedforward.d_ff"
    assert result.spec == match(LLAMA, result.spec, "parameters").spec
    assert abs(result.amount - 120_000) <= 3 * 2 * 64 / 2  # d_ff of one more adds three rows of 64 to both layers
    with pytest.raises(SpecError, match=r"^layers\[\*\].feedforward.d_ff: reaches .*, but the budget is 10; solve"):
        match(LLAMA, 10, "parameters")


def test_the_state_of_latent_attention_follows_its_rank() -> None:
    result = match(families.preset("deepseek-v2-tiny"), 20_000, "state")
    assert result.path == "layers[*].mixer.kv_lora_rank" and abs(result.amount - 20_000) < 1_000


@pytest.mark.parametrize(
    ("text", "measure", "value"),
    [
        ("3M", "parameters", 3_000_000), ("1.5b", "active", 1_500_000_000), ("2_000_000", "flops", 2_000_000),
        ("2,000 k", "flops", 2_000_000), ("64MiB", "state", 2**26), ("7", "state", 7), ("llama-tiny", "state", None),
        ("3M.yaml", "parameters", None),
    ],
)  # fmt: skip
def test_amounts_are_read(text: str, measure: str, value: int | None) -> None:
    assert read_amount(text, measure) == value


@pytest.mark.parametrize(
    ("text", "measure"), [("3MiB", "parameters"), ("3M", "state"), ("3x", "active"), ("0", "flops")]
)
def test_amounts_of_another_unit_are_refused(text: str, measure: str) -> None:
    with pytest.raises(SpecError, match=rf"^--match: '{text}' is not an amount of {measure}; write it as "):
        read_amount(text, measure)
