"""One size solved so that two specifications cost the same."""

import pytest

from archetype import families, spec
from archetype.errors import SpecError
from archetype.estimate.match import MEASURES, amount, match

LLAMA, GPT2 = families.preset("llama-tiny"), families.preset("gpt2-tiny")


def test_no_other_value_of_the_field_comes_nearer() -> None:
    for measure in MEASURES:
        for path in (None, "d_model", "num_layers"):
            result = match(LLAMA, GPT2, measure, path)
            assert result.spec == spec.assign(LLAMA, [f"{result.path}={result.after}"])
            length = min(LLAMA.context_length, GPT2.context_length)
            assert result.amount == amount(result.spec, measure, length)
            assert result.target == amount(GPT2, measure, length)
            for value in range(max(1, result.after - 5), result.after + 6):
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
    with pytest.raises(
        SpecError, match=r"^layers\[\*\].feedforward.d_ff: gives .* of parameters, and .* has .*; solve"
    ):
        match(large, small, "parameters")
    with pytest.raises(SpecError, match=r"^num_layers: gives .* to .* of parameters"):
        match(small, large, "parameters", "num_layers")
    with pytest.raises(SpecError, match=r"^vocab_size: gives [\d,]+ of state, and gpt2-tiny has"):
        match(small, GPT2, "state", "vocab_size")
    assert match(small, small, "state", "vocab_size").amount == amount(small, "state", small.context_length)


def test_what_cannot_be_solved_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^match: there is no measure 'size'; use one of parameters, active, flops"):
        match(LLAMA, GPT2, "size")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^head.tied: False is not a whole number; name a size"):
        match(LLAMA, GPT2, "parameters", "head.tied")
    with pytest.raises(SpecError, match=r"^head.tiled: is not in this specification"):
        match(LLAMA, GPT2, "parameters", "head.tiled")
