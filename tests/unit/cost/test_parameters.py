"""Parameters: the counted ones are the built ones, module by module, and the published ones."""

import pytest
from hypothesis import given

from archetype import cost, families, spec
from archetype.checking.construction import layers_of, parameters_are_counted
from archetype.checking.subject import Subject
from archetype.models.stack.cost import label
from tests.helpers.cases import in_one_test
from tests.helpers.examples import examples
from tests.helpers.presets import PRESETS
from tests.helpers.specs import ALL, GATED, block, decoder, experts
from tests.helpers.strategies import decoders

# name: total, and where it is published
PUBLISHED = {
    "gpt2": (124_439_808, "openai-community/gpt2: model.safetensors, 497,759,232 bytes of float32 without buffers"),
    "gpt2-medium": (354_823_168, "openai-community/gpt2-medium: model.safetensors"),
    "gpt2-large": (774_030_080, "openai-community/gpt2-large: model.safetensors"),
    "gpt2-xl": (1_557_611_200, "openai-community/gpt2-xl: model.safetensors"),
    "llama-7b": (6_738_415_616, "Touvron 2023, table 2: 6.7B; transformers' llama of its params.json"),
    "llama-13b": (13_015_864_320, "Touvron 2023, table 2: 13.0B; likewise"),
    "llama-33b": (32_528_943_616, "Touvron 2023, table 2: 32.5B; likewise"),
    "llama-65b": (65_285_660_672, "Touvron 2023, table 2: 65.2B; likewise"),
    "llama-2-7b": (6_738_415_616, "meta-llama/Llama-2-7b-hf: safetensors metadata"),
    "llama-2-13b": (13_015_864_320, "meta-llama/Llama-2-13b-hf: safetensors metadata"),
    "llama-2-70b": (68_976_648_192, "meta-llama/Llama-2-70b-hf: safetensors metadata"),
    "llama-3-8b": (8_030_261_248, "meta-llama/Meta-Llama-3-8B: safetensors metadata"),
    "llama-3-70b": (70_553_706_496, "meta-llama/Meta-Llama-3-70B: safetensors metadata"),
    "llama-3.1-405b": (405_853_388_800, "meta-llama/Llama-3.1-405B: safetensors metadata"),
    "llama-3.2-1b": (1_235_814_400, "meta-llama/Llama-3.2-1B: safetensors metadata"),
    "llama-3.2-3b": (3_212_749_824, "meta-llama/Llama-3.2-3B: safetensors metadata"),
}


def agrees(counted: spec.ModelSpec) -> None:
    """Hold every counted module against the model built without storage."""
    parameters_are_counted(Subject(counted))


@in_one_test("name", PRESETS)
def test_every_preset_has_the_counted_parameters_in_every_module(name: str) -> None:
    agrees(families.preset(name))


@given(decoders())
@examples(12)
def test_every_specification_has_the_counted_parameters_in_every_module(drawn: spec.Decoder) -> None:
    agrees(drawn)


@pytest.mark.parametrize(("name", "total"), [(name, total) for name, (total, _) in PUBLISHED.items()])
def test_published_totals_are_met_exactly(name: str, total: int) -> None:
    assert cost.total_parameters(families.preset(name)) == total


@in_one_test("name", ALL)
def test_every_part_has_the_counted_parameters_in_every_module(name: str) -> None:
    agrees(ALL[name])


@given(decoders())
@examples(12)
def test_no_layer_is_lost_from_the_report(drawn: spec.Decoder) -> None:
    report = cost.cost_report(drawn)
    assert sum(row.parameters for row in report.rows) == cost.total_parameters(drawn)
    assert len({row.module for row in report.rows}) == len(report.rows)


def test_the_embedding_is_counted_apart() -> None:
    counts, tables = cost.cost_report(families.preset("gpt2")).parameters, 50_257 * 768 + 1024 * 768
    assert (counts["total"], counts["active"], counts["embedding"]) == (124_439_808, 124_439_808, tables)
    assert counts["non_embedding"] == counts["active_non_embedding"] == 124_439_808 - tables


def test_tying_saves_one_table() -> None:
    tied = families.preset("llama-3.2-1b")
    untied = spec.assign(tied, ["head.tied=false"])
    assert cost.total_parameters(untied) - cost.total_parameters(tied) == tied.vocab_size * tied.d_model


def standard_block_formula(vocab: int, layers: int, d: int) -> int:
    return vocab * d + layers * (12 * d**2 + 13 * d)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-13b", "gpt3-175b"])
def test_the_standard_formula_leaves_out_positions_and_the_final_norm(name: str) -> None:
    preset = families.preset(name)
    d = preset.d_model
    formula = standard_block_formula(preset.vocab_size, preset.num_layers, d)
    assert cost.total_parameters(preset) - formula == preset.context_length * d + 2 * d


def test_gpt2_has_so_many_more_than_the_formula() -> None:
    assert cost.total_parameters(families.preset("gpt2")) - standard_block_formula(50_257, 12, 768) == 787_968


def test_places_are_told_in_short() -> None:
    for told, told_places in (
        ("0-11", range(12)),
        ("3", [3]),
        ("0-1", [0, 1]),
        ("0,2..24", range(0, 26, 2)),
        ("0-4,6-10", [*range(5), *range(6, 11)]),
    ):
        assert label(list(told_places)) == told
        assert layers_of(told) == list(told_places)


def test_a_token_meets_the_router_its_experts_and_the_shared_one() -> None:
    part = experts(num_experts=6, experts_per_token=2, shared=GATED)
    counts = cost.cost_report(decoder(block(feedforward=part))).parameters
    one_expert = 3 * 16 * 44
    assert counts["total"] - counts["active"] == 4 * one_expert


def test_running_statistics_are_no_parameters() -> None:
    counts = {row.module: row.parameters for row in cost.cost_report(ALL["batch norm"]).rows}
    assert counts["blocks.0.mixer_norm"] == 2 * 16  # weight and bias


# a preset, its parameters, and those that one token meets, as its makers count them
PUBLISHED_SPARSE = {"mixtral-8x7b": (46_702_792_704, 12_879_925_248)}


@pytest.mark.parametrize("name", sorted(PUBLISHED_SPARSE))
def test_published_mixtures_are_met_exactly(name: str) -> None:
    counts = cost.cost_report(families.preset(name), length=64).parameters
    assert (counts["total"], counts["active"]) == PUBLISHED_SPARSE[name]
