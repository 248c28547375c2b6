"""Specifications as files: nothing is lost, and what cannot be read is refused at its place."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype import families, spec
from archetype.errors import SpecError
from archetype.io import files, yaml
from tests.helpers.cases import case
from tests.helpers.examples import every, examples
from tests.helpers.strategies import models

PRESETS = sorted(families.presets())


@pytest.mark.parametrize("ending", every(2, [".yaml", ".yml", ".json"]))
def test_every_preset_survives_a_file(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"spec{ending}"
    for name in PRESETS:
        with case(name):
            preset = families.preset(name)
            file.write_text(spec.to_json(preset) if ending == ".json" else spec.to_yaml(preset), encoding="utf-8")
            assert spec.read(file) == preset


@given(models(wild=True))
@examples(12)
def test_every_specification_survives_yaml_and_json_which_say_the_same(drawn: spec.ModelSpec) -> None:
    from_yaml, from_json = yaml.yaml_value(spec.to_yaml(drawn), ""), json.loads(spec.to_json(drawn))
    assert from_yaml == from_json
    assert spec.parse(from_yaml) == spec.parse(from_json) == drawn


def test_a_mapping_takes_the_keys_of_those_that_it_merges() -> None:
    text = "a: &a {p: 1, q: 2}\nb:\n  <<: *a\n  q: 3\nc: {<<: [*a, {q: 4, r: 5}]}\nd: ['<<']\n"
    own = {"p": 1, "q": 2}
    expected = {"a": own, "b": own | {"q": 3}, "c": own | {"r": 5}, "d": ["<<"]}
    assert yaml.yaml_value(text, "text") == expected
    with pytest.raises(SpecError, match="text:1:4: is not YAML: << must be a mapping"):
        yaml.yaml_value("b: {<<: 3}", "text")


@pytest.mark.parametrize("text", ["\r", "\x85 a", "a\u2028", "\u2029", "\n \t", "\x00\x1b"])
def test_a_name_of_odd_characters_survives_a_file(text: str) -> None:
    assert yaml.yaml_value(yaml.mapping_to_yaml({"name": text}), "text") == {"name": text}


def test_a_file_leaves_out_what_equals_its_default() -> None:
    dumped = families.preset("llama-tiny").dump()
    assert dumped["layers"][0]["block"]["mixer"] == {
        "kind": "attention", "num_heads": 4, "num_kv_heads": 2, "position": {"kind": "rotary"},
    }  # fmt: skip


def test_a_full_dump_leaves_out_nothing() -> None:
    """Not a default anywhere: every field of every part, and it reads back the same."""
    preset = families.preset("llama-tiny")
    dumped = preset.dump(full=True)
    assert set(dumped) == set(spec.Decoder.model_fields)
    assert set(dumped["layers"][0]["block"]["mixer"]) == set(spec.Attention.model_fields)
    assert set(dumped["layers"][0]["block"]["mixer"]["position"]) == set(spec.Rotary.model_fields)
    assert spec.parse(dumped) == preset


@given(models(wild=True))
@examples(10)
def test_every_full_dump_reads_back_the_same(drawn: spec.ModelSpec) -> None:
    assert spec.parse(json.loads(json.dumps(drawn.dump(full=True)))) == drawn


def test_biases_that_agree_are_one_word() -> None:
    even = spec.Attention(num_heads=1, bias=spec.ProjectionBiases(q=True, k=True, v=True, o=True))
    assert even.dump()["bias"] is True
    uneven = spec.Attention(num_heads=1, bias=spec.ProjectionBiases(q=True))
    assert uneven.dump()["bias"] == {"q": True}
    assert spec.Attention.parse(uneven.dump()) == uneven


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", b"d_model: [1",
         "{file}:2:1: is not YAML: did not find expected ',' or ']'; fix that line"),
        ("a.json", b'{"d_model": }', "{file}:1:13: is not JSON: Expecting value; fix that line"),
        ("a.yaml", b"- 1", "{file}: is not a mapping; write key: value lines"),
        ("a.json", b"[]", "{file}: is not a mapping; write key: value lines"),
        ("a.yaml", b"", "{file}: is not a mapping; write key: value lines"),
        ("a.yaml", b"name: \xff", "{file}: is not UTF-8 at byte 6; save it as UTF-8"),
        ("a.yaml", b"kind: encodr", "{file}: kind: 'encodr' is not a kind of model (decoder, encoder, "
         "encoder_decoder, megabyte, ngram, vision_encoder); did you mean encoder?"),
        ("a.yaml", b"a: 1\na: 2", "{file}:2:1: is not YAML: found duplicate key 'a'; fix that line"),
        ("a.yaml", b"a: !!python/object:os.system {}", "{file}:1:4: is not YAML: "
         "unknown tag 'tag:yaml.org,2002:python/object:os.system'; fix that line"),
        ("a.yaml", b"[" * 500, "{file}:1:101: is not YAML: it is nested deeper than 100 levels; fix that line"),
        ("a.yaml", b"a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n" + b"".join(
            b"%c: &%c [" % (name, name) + b", ".join([b"*%c" % (name - 1)] * 10) + b"]\n" for name in b"cdefg"),
         "{file}:6:12: is not YAML: it has more than 200,000 items; fix that line"),
        ("a.yaml", b"- 1\n" * 300_000, "{file}:200000:3: is not YAML: it has more than 200,000 items; fix that line"),
        ("a.yaml", b"&a [*a]", "{file}:1:5: is not YAML: found undefined alias 'a'; fix that line"),
        ("a.yaml", b"a: 1\n---\nb: 2", "{file}: is not YAML: it has several documents; check the file"),
        ("a.json", b"[" * 100_000, "{file}: is not JSON: maximum recursion depth exceeded while decoding a JSON array "
         "from a unicode string; is it the right file?"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        spec.read(file)
    assert str(caught.value) == message.format(file=file)


def test_endless_nesting_is_refused_by_whichever_limit_is_met_first(tmp_path: Path) -> None:
    """Ours of 100 levels, or libyaml's of 1,000, which reads ahead (PyYAML 6.0.4)."""
    file = tmp_path / "a.yaml"
    file.write_bytes(b"[" * 2_000_000)
    with pytest.raises(SpecError, match=r"a\.yaml:1:(101|1001): is not YAML: .*nest.*; fix that line$"):
        spec.read(file)


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", "yes"), ("1e-5", 1e-5), ("1_000", 1000), ("0x1F", 31), ("0o17", 15), ("017", 17), ("1:30", "1:30"),
     ("2020-01-01", "2020-01-01"), ("~", None), ("-.inf", -math.inf), ("'1'", "1"), ("'null'", "null"), ("", None),
     ("{a: [1, .5, true], b: &x [1], c: *x}", {"a": [1, 0.5, True], "b": [1], "c": [1]})],
)  # fmt: skip
def test_values_are_those_of_the_core_schema(text: str, value: object) -> None:
    assert yaml.yaml_value(text, "") == value
    assert yaml.yaml_value(yaml.mapping_to_yaml({"key": value, "text": text}), "") == {"key": value, "text": text}


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        spec.read(tmp_path / "absent.yaml")
    assert str(caught.value) == f"{tmp_path / 'absent.yaml'}: there is no such file; check the path"


def test_a_file_of_another_kind_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "weights.yaml"
    file.write_bytes(b" " * (files.MAX_CONFIG_BYTES + 1))
    with pytest.raises(SpecError, match="is larger than 4 MiB; is it the right file"):
        spec.read(file)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
@examples(50)
def test_a_damaged_specification_is_read_or_refused_at_the_damage(data: st.DataObject) -> None:
    """Any value of any field replaced by anything: never another error, never another place."""
    whole = families.preset(data.draw(st.sampled_from(["gpt2-tiny", "llama-3.2-1b"]))).dump()
    whole["layers"] = [whole["layers"][0]["block"]]
    branch, keys = whole, []
    while True:
        key = data.draw(st.sampled_from(sorted(branch) if isinstance(branch, dict) else range(len(branch))))
        keys.append(key)
        if not isinstance(branch[key], dict | list) or data.draw(st.booleans()):
            break
        branch = branch[key]
    branch[key] = data.draw(JSON_VALUES)
    try:
        spec.parse(whole)
    except SpecError as error:
        shared = set(error.place.replace("[", ".").replace("]", "").split(".")) & {str(key) for key in keys}
        assert shared or not error.place, (error.place, keys)


def test_parts_that_occur_again_are_written_once() -> None:
    layer = {"mixer": {"kind": "mamba"}}
    data = {"first": layer, "rest": [layer, {"kind": "none"}, layer], "equal": {"mixer": {"kind": "mamba"}}}
    text = yaml.mapping_to_yaml(data, {"mamba": layer, "once": data["rest"]})
    assert yaml.yaml_value(text, "") == data
    assert text.count("&mamba") == 1 and text.count("*mamba") == 2 and "once" not in text
    assert "&" not in yaml.mapping_to_yaml(data)
