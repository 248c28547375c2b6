"""Weight rules: one list, read in both directions."""

from pathlib import Path

import pytest
import torch

from archetype.convert.apply import export_sizes, export_tensors, load_tensors, shapes_of
from archetype.errors import CheckpointError
from archetype.families import FAMILIES, preset, published
from archetype.families.rules import Rule, check_all_used, for_model, rule
from archetype.io.tensors import Tensors, save
from archetype.models.build import Model, build_on_meta
from archetype.spec import EncoderDecoder, ModelSpec
from tests.helpers.cases import case


def parameters(model: Model) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


def rules_of(model: Model, family: str) -> list[Rule]:
    return for_model(FAMILIES[family].format.rules_for(model.spec), model.spec.num_layers, shapes_of(model))


def shortened(model: ModelSpec) -> ModelSpec:
    """With two layers in each stack."""
    if isinstance(model, EncoderDecoder):
        sides = {side: getattr(model, side) for side in ("encoder", "decoder")}
        return model.replace(**{side: stack.replace(layers=stack.layers[:2]) for side, stack in sides.items()})
    return model.replace(layers=model.layers[:2])  # type: ignore[union-attr]


def test_every_parameter_of_a_preset_has_one_place_of_the_right_size() -> None:
    for family, name in [(known, name) for known in published() for name in published()[known].presets]:
        with case(family, name):
            spec = preset(name)
            model = build_on_meta(shortened(spec))
            rules = rules_of(model, family)
            assert sorted({name for r in rules for name in r.params}) == sorted(parameters(model))
            written = dict(export_tensors(model, rules))
            assert {name: tensor.nbytes for name, tensor in written.items()} == export_sizes(model, rules)
            assert sum(t.numel() for t in written.values()) == sum(p.numel() for p in parameters(model).values())


def test_rules_read_both_ways_are_inverse(models: dict[str, Model], name: str, tmp_path: Path) -> None:
    model = models[name]
    rules = rules_of(model, name.split()[0])
    save(tmp_path / "file", dict(export_tensors(model, rules)))
    read = build_on_meta(model.spec)
    load_tensors(read, Tensors.single(tmp_path / "file"), rules)
    assert all(torch.equal(parameters(read)[key], value) for key, value in parameters(model).items())


def test_gpt2_keeps_its_matrices_as_inputs_by_outputs_and_q_k_v_as_one(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    written = dict(export_tensors(model, rules_of(model, "gpt2")))
    mixer = model.blocks[1].mixer
    assert torch.equal(written["transformer.h.1.attn.c_attn.weight"][:, 8:16], mixer.k.weight.t())
    assert torch.equal(written["transformer.h.1.attn.c_attn.bias"][16:], mixer.v.bias)
    assert torch.equal(written["transformer.h.1.mlp.c_fc.weight"], model.blocks[1].feedforward.up.weight.t())


def test_layers_are_filled_in_on_both_sides() -> None:
    assert rule("h.{i}.w", "blocks.{i}.a", "blocks.{i}.b", transposed=True).for_layer(3) == Rule(
        "h.3.w", ("blocks.3.a", "blocks.3.b"), True
    )


def test_a_stack_of_experts_has_a_tensor_for_each_in_the_file() -> None:
    rules = for_model([rule("h.{i}.{e}.w", "blocks.{i}.up")], 2, {"blocks.0.up": (2, 3, 4), "blocks.1.up": (1, 3, 4)})
    assert [(r.hf, r.params, r.expert) for r in rules] == [
        ("h.0.0.w", ("blocks.0.up",), 0),
        ("h.0.1.w", ("blocks.0.up",), 1),
        ("h.1.0.w", ("blocks.1.up",), 0),
    ]


def test_what_the_model_lacks_is_left_out() -> None:
    assert [r.hf for r in for_model([rule("a", "x"), rule("b", "y")], 0, {"y": (1,)})] == ["b"]


def test_a_parameter_without_a_rule_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"^z: the family's format does not have this parameter; use another"):
        for_model([rule("a", "x")], 0, {"x": (1,), "z": (1,)})


def test_half_of_a_joined_tensor_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"^k: the family's format does not have this parameter"):
        for_model([rule("qk", "q", "k")], 0, {"q": (1,)})


def test_two_rules_for_one_parameter_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"^x: two weight rules claim this parameter"):
        for_model([rule("a", "x"), rule("b", "x")], 0, {"x": (1,)})


def test_missing_and_superfluous_tensors_are_counted_and_the_first_are_named() -> None:
    rules = [rule(name, name) for name in "abcdef"]
    check_all_used(rules, "fedcba", ())
    with pytest.raises(CheckpointError, match=r"^a: this tensor is missing \(and 4 more: b, c, d, \.\.\.\); is the"):
        check_all_used(rules, ["f"], ())
    with pytest.raises(CheckpointError, match=r"^y: the model does not have this tensor \(and 1 more: z\); does"):
        check_all_used(rules, "abcdefzy", ())


def test_what_old_files_hold_besides_weights_is_ignored_by_its_whole_name() -> None:
    check_all_used([rule("a", "a")], ["a", "h.0.bias"], [r"h\.\d+\.bias"])
    with pytest.raises(CheckpointError, match=r"^h\.0\.biases: the model does not have this tensor"):
        check_all_used([rule("a", "a")], ["a", "h.0.biases"], [r"h\.\d+\.bias"])
