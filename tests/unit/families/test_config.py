"""Published configurations: read whole or refused, written back without loss."""

import copy
import inspect
from typing import Any

import pytest

from archetype import families, spec
from archetype.errors import CheckpointError, SpecError, UnreadKeys
from archetype.families import FAMILIES
from archetype.families.class_keys import keys_read
from archetype.families.format import TRAINING_ONLY
from archetype.families.keys import ConfigTable, Key
from archetype.models.build import build_on_meta
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.presets import presets_of
from tests.helpers.published_configs import GPT2, LLAMA_2_7B, LLAMA_32_1B, PUBLISHED
from tests.unit.cost.test_parameters import PUBLISHED as PUBLISHED_COUNTS
from tests.unit.families.test_published_counts import COUNTS

PRESETS = sorted(name for family in families.published().values() for name in family.presets)


def read(config: dict[str, Any]) -> spec.ModelSpec:
    family = families.family_of(config)
    assert family is not None
    return family.format.spec_from(config)


def of_architecture(differences: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
    return [change for change in differences if not set(change[0].split(".")) & set(TRAINING_ONLY)]


def test_a_published_configuration_is_the_preset_of_its_name() -> None:
    for name in PUBLISHED:
        with case(name):
            assert of_architecture(spec.differences(read(PUBLISHED[name]), families.preset(name))) == []


def test_a_published_configuration_makes_as_many_parameters_as_are_published() -> None:
    """On the meta device, where numbers take no room."""
    for name in PUBLISHED:
        with case(name):
            totals = [(changes, total) for counted, changes, total, _ in COUNTS if counted == name]
            for changes, total in totals or [([], PUBLISHED_COUNTS[name][0])]:
                model_spec = spec.assign(read(PUBLISHED[name]), changes)
                assert sum(parameter.numel() for parameter in build_on_meta(model_spec).parameters()) == total


def test_every_family_with_a_format_has_a_published_configuration() -> None:
    """But for types that are spellings of another family, and have no presets."""
    presets = {name for name, family in families.published().items() if family.presets}
    assert {config["model_type"] for config in PUBLISHED.values()} == presets


def test_a_published_configuration_keeps_its_dropout() -> None:
    gpt2 = read(GPT2)
    assert (gpt2.embedding.dropout, gpt2.layers[0].dropout, gpt2.layers[0].mixer.dropout) == (0.1, 0.1, 0.1)


@pytest.mark.parametrize("name", every(4, presets_of(families.published().values())))
def test_what_is_written_reads_back_the_same(name: str) -> None:
    preset = families.preset(name)
    family = families.presets()[name][0]
    # what Phi-3 computes is what Mistral does, and LLaDA what EuroBERT does; only the file is another
    assert families.family_for(preset) is family or family.name in ("phi3", "llada")
    config = family.format.config_for(preset)
    assert config["model_type"] == family.name
    # how training begins is no more than a hint, for which some formats have no word
    assert read(config).replace(name=name, initialization=preset.initialization) == preset


def test_a_key_that_no_class_reads_is_named_and_passed() -> None:
    for name in PUBLISHED:
        if keys_read(PUBLISHED[name]) is None:  # whose classes are not in transformers
            continue
        with case(name), pytest.warns(UnreadKeys) as told:
            changed = read(PUBLISHED[name] | {"num_towers": 4})
            assert str(told[0].message) == f"config.json: no {PUBLISHED[name]['model_type']} class reads num_towers"
            assert changed == read(PUBLISHED[name])


# Keys that the class reads, and one of a file of a later version.
UNKNOWN: list[dict[str, Any]] = [
    {"quantization_config": {"quant_method": "gptq"}}, {"per_layer_config": {"0": {}}},
    {"num_towers": 4, "transformers_version": "99.0.1"},
]  # fmt: skip


def test_an_unknown_key_that_a_class_may_read_is_refused_by_name() -> None:
    for name in ("llama-2-7b", "gpt2", "qwen3-8b"):
        for change in UNKNOWN:
            with case(name, change):
                with pytest.raises(CheckpointError) as caught:
                    read(PUBLISHED[name] | change)
                remedy = "is not supported for this family; remove it if it does not change the output"
                assert str(caught.value) == f"config.json: {next(iter(change))}: {remedy}"


def test_a_class_that_is_another_is_refused_by_name() -> None:
    for name, own in (("llama-2-7b", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel")):
        with case(name), pytest.raises(CheckpointError) as caught:
            read(PUBLISHED[name] | {"architectures": ["BitNet"]})
        model_type = PUBLISHED[name]["model_type"]
        cause = f"'BitNet' is not supported in the {model_type} format"
        assert str(caught.value) == f"config.json: architectures: {cause}; use one of {own}"


WRONG = [
    (GPT2, {"scale_attn_by_inverse_layer_idx": True},
     "config.json: scale_attn_by_inverse_layer_idx: True is not supported (attention scaled by layer); "
     "only False is"),
    (GPT2, {"add_cross_attention": True},
     "config.json: add_cross_attention: True is not supported (cross-attention); only False is"),
    (GPT2, {"activation_function": "mish"}, "config.json: activation_function: unknown activation 'mish'; "
     "use one of relu, gelu, gelu_new, gelu_pytorch_tanh, silu, swish, tanh, sigmoid, relu2, quick_gelu, xielu"),
    (GPT2, {"n_embd": "768"}, "config.json: n_embd: '768' is not a positive whole number; fix the file"),
    (GPT2, {"n_layer": 0}, "config.json: n_layer: 0 is not a positive whole number; fix the file"),
    (LLAMA_2_7B, {"attention_bias": "no"},
     "config.json: attention_bias: 'no' is neither true nor false; fix the file"),
    (LLAMA_2_7B, {"rope_scaling": [1]}, "config.json: rope_scaling: [1] is not a mapping; fix the file"),
    (LLAMA_2_7B, {"rope_scaling": {"type": "linear"}},
     "config.json: rope_scaling: factor: is missing; add it"),
    (LLAMA_2_7B, {"rope_scaling": {"type": "ntk", "factor": 2.0}},
     "config.json: rope_scaling: rope_type: unknown scaling 'ntk'; "
     "use one of linear, dynamic, yarn, llama3, longrope, proportional"),
    (LLAMA_2_7B, {"rope_scaling": {"type": "longrope", "factor": 2.0}},
     "config.json: rope_scaling: short_factor: None is not a list of numbers; fix the file"),
    (LLAMA_2_7B, {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1e6}},
     "config.json: rope_scaling: contradicts rope_parameters; remove one of them"),
    (LLAMA_2_7B, {"rope_scaling": {"type": "linear", "factor": 2.0, "factr": 1}},
     "config.json: rope_scaling: factr: is not supported for this family; remove it if it does not change the output"),
    (LLAMA_2_7B, {"partial_rotary_factor": 0.5},
     "config.json: partial_rotary_factor: this format rotates whole heads; remove it"),
    (LLAMA_2_7B, {"num_key_value_heads": 5},
     "config.json: num_kv_heads: 5 does not divide num_heads 32; use 1, 2, 4, 8, 16 or 32"),
]  # fmt: skip


def test_what_is_wrong_is_named() -> None:
    for config, change, message in WRONG:
        with case(config, change):
            with pytest.raises((CheckpointError, SpecError)) as caught:
                read(config | change)
            assert str(caught.value) == message


def test_a_huge_size_is_refused_before_anything_is_made() -> None:
    for key in ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"):
        with case(key), pytest.raises((CheckpointError, SpecError), match="is too large"):
            read(LLAMA_2_7B | {key: 10**12})


def test_a_file_that_names_no_family_is_refused() -> None:
    for model_type in (None, 3, ["gpt2"]):
        with case(model_type):
            with pytest.raises(CheckpointError) as caught:
                read(GPT2 | {"model_type": model_type})
            remedy = "`archetype list` shows the registered families"
            expected = f"config.json: model_type: {model_type!r} is not a model type; {remedy}"
            assert str(caught.value) == expected


INEXPRESSIBLE = [
    ("gpt2-tiny", "gpt2", "layers[*].mixer.position={kind: rotary}", "layers[*].mixer.position.kind"),
    ("gpt2-tiny", "gpt2", "layers[*].mixer.num_kv_heads=2", "layers[*].mixer.num_kv_heads"),
    ("gpt2-tiny", "gpt2", "layers[*].mixer.scale=0.5", "layers[*].mixer.scale"),
    ("gpt2-tiny", "gpt2", "embedding.scale=2.0", "embedding.scale"),
    ("gpt2-tiny", "gpt2", "head.bias=true", "head.bias"),
    ("gpt2-tiny", "gpt2", "layers[0].feedforward.d_ff=100", "layers[1].feedforward.d_ff"),
    ("gpt2-tiny", "gpt2", "final_norm.eps=0.1", "final_norm.eps"),
    ("llama-tiny", "llama", "layers[*].mixer.position.interleaved=true", "layers[*].mixer.position.interleaved"),
    ("llama-tiny", "llama", "layers[*].mixer.position.dim=8", "layers[0].mixer.position.dim"),
    ("llama-tiny", "llama", "layers[*].mixer.bias={q: true}", "layers[*].mixer.bias"),
    ("llama-tiny", "llama", "layers[*].feedforward.activation={kind: swish, beta: 2.0}", "activation"),
    ("llama-tiny", "llama", "layers[*].wiring.kind=post_norm", "layers[*].wiring.kind"),
    ("llama-tiny", "llama", "layers[1].wiring.kind=post_norm", "layers[1].wiring.kind"),
    ("llama-tiny", "llama", "layers[1].mixer={kind: lstm}", "layers[1].mixer.kind"),
    ("llama-tiny", "llama", "layers[*].mixer.qk_norm={kind: rms}", "layers[*].mixer.qk_norm.kind"),
    ("llama-tiny", "gpt2", "d_model=64", "layers[0].wiring.norm"),
    ("gpt2-tiny", "llama", "d_model=64", "final_norm"),
]


def test_what_a_format_cannot_say_is_refused_by_field() -> None:
    for name, family, change, place in INEXPRESSIBLE:
        with case(name, family):
            changed = spec.assign(families.preset(name), [change])
            with pytest.raises(CheckpointError) as caught:
                FAMILIES[family].format.config_for(changed)
            assert caught.value.place == place


# Of each kind of model and of part that no format has: the nearest format, and the first field that it lacks.
FOREIGN = {
    "ngram-tiny": "no published format supports models of kind ngram",
    "lstm-tiny": "no family can express it; the closest is bloom: layers[0].mixer: only kind attention can be "
        "written, not lstm",
    "seq2seq-lstm-tiny": "no family can express it; the closest is t5: encoder.final_norm: only kind rms can be "
        "written, not none",
    "transformer-tiny": "no family can express it; the closest is marian: embedding.position.interleaved: the "
        "marian format cannot express True here (it would be read as False)",
    "gpt3-tiny": "no family can express it; the closest is gpt2: layers[1].mixer.pattern.kind: the gpt2 format cannot "
        "express 'window' here (it would be read as 'full')",
    "megabyte-tiny": "no published format supports models of kind megabyte",
}  # fmt: skip


def test_the_nearest_format_was_compared_whole() -> None:
    """Others stop at the first layer of another kind, with one error each, which is not the fewest differences."""
    hybrid = spec.assign(families.preset("llama-tiny"), ["layers[1::2].mixer=mamba"])
    with pytest.raises(CheckpointError, match=r"closest is llama: layers\[1\].mixer.kind: .* express 'mamba' here"):
        families.family_for(hybrid)


def test_what_no_format_has_is_refused_in_one_line_that_names_the_nearest() -> None:
    for name, message in FOREIGN.items():
        with case(name):
            with pytest.raises(CheckpointError) as caught:
                families.family_for(families.preset(name))
            remedy = "--format archetype-hf writes any model for transformers"
            assert str(caught.value) == f"{name}: {message}; {remedy}"
            assert len(str(caught.value)) <= 300


def test_a_hybrid_of_any_family_is_refused_in_words() -> None:
    """Half of the layers of each decoder have another mixer; no format fails in another way than by its refusal."""
    number = 0
    for name in PRESETS:
        preset = families.preset(name)
        if not name.endswith("-tiny") or not isinstance(preset, spec.Decoder):
            continue
        for mixer in ("mamba", "lstm", "{kind: attention, num_heads: 1}"):
            try:
                hybrid = spec.assign(preset, [f"layers[1::2].mixer={mixer}"])
            except SpecError:
                continue
            with case(name, mixer):
                if mixer == "lstm":
                    with pytest.raises(CheckpointError, match="no family can express it"):
                        families.family_for(hybrid)
                for family in families.published().values():
                    assert all(isinstance(error, CheckpointError) for error in family.format.lacking(hybrid))
            number += 1
    assert number >= 30


def test_a_refusal_names_the_kind_that_could_be_written() -> None:
    with pytest.raises(CheckpointError) as caught:
        FAMILIES["llama"].format.config_for(families.preset("mixtral-tiny"))
    assert str(caught.value) == (
        "layers[0].feedforward: only kind gated can be written, not experts; "
        "change the specification or export to another family"
    )


def test_a_family_without_a_format_is_no_way_out() -> None:
    with pytest.raises(
        CheckpointError, match=r"^ngram: this family has no published format; export to another family$"
    ):
        FAMILIES["ngram"].format.config_for(families.preset("ngram-tiny"))


def test_every_key_stands_in_one_row_and_gives_an_argument_of_the_constructor() -> None:
    for name, family in families.published().items():
        table = family.format.keys
        assert isinstance(table, ConfigTable)
        keys = [row for row in table.rows if isinstance(row, Key)]
        spellings = [spelling for row in keys for spelling in row.spellings]
        assert len(set(spellings)) == len(spellings), name
        arguments = [row.argument for row in keys]
        assert len(set(arguments)) == len(arguments), name
        parameters = inspect.signature(table.build).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            assert set(arguments) <= set(parameters), name


def test_reading_changes_nothing_in_the_configuration() -> None:
    before = copy.deepcopy(LLAMA_32_1B)
    read(LLAMA_32_1B)
    assert before == LLAMA_32_1B


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError) as caught:
        families.preset("llama-2-8b")
    assert str(caught.value).startswith("llama-2-8b: there is no preset, file or folder of this name; did you mean ")
