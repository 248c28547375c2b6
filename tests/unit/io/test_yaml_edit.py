"""Edits of YAML files: the values are the changed ones, and all other lines stay, with their comments."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from archetype.families.registry import preset, presets
from archetype.io.yaml import yaml_value
from archetype.io.yaml_edit import edited
from archetype.models.file import edited as edited_file
from archetype.models.file import parse
from archetype.spec.edit import assign
from archetype.spec.serialize import to_yaml
from tests.helpers.examples import every

WORDS = st.sampled_from(["a", "rms", "no", "1e3", "# x", "a: b", "é", "", " b ", "null", "[", "it's", "two\nlines"])
SCALARS = WORDS | st.integers(-9, 9) | st.booleans() | st.none() | st.floats(-2, 2)
VALUES: Any = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=12
)


def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value with some of its items replaced, or itself."""
    if not draw(st.booleans()):
        return value
    if isinstance(value, dict) and value and draw(st.booleans()):
        return {key: changed(draw, inner) for key, inner in value.items()}
    if isinstance(value, list) and value and draw(st.booleans()):
        return [changed(draw, inner) for inner in value]
    return draw(VALUES)


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any, Any]:
    """A text, its value, and the value that it shall have."""
    flow_style = draw(st.sampled_from([True, False, None]))
    options: dict[str, Any] = {
        "default_flow_style": flow_style,
        "sort_keys": False,
        "width": draw(st.sampled_from([20, 200])),
    }
    text = yaml.safe_dump(draw(st.dictionaries(WORDS, VALUES, min_size=1, max_size=4)), **options)
    before = yaml_value(text, "")
    return text, before, {key: changed(draw, inner) for key, inner in before.items()}


@example(("{1e3: a}\n", {1000.0: "a"}, {1000.0: []}))
@example(("' b ': null\n? ''\n: - a\n", {" b ": None, "": ["a"]}, {" b ": None, "": "a"}))
@example(("{a: a}\n", {"a": "a"}, {"a": {"a": [f"a long value {number}" for number in range(9)]}}))
@given(changes())
def test_any_value_becomes_any_other(change: tuple[str, Any, Any]) -> None:
    text, before, after = change
    assert yaml_value(edited(text, before, after, after), "") == after
    assert edited(text, before, before, before) == text


def commented(text: str) -> str:
    """Every line with a comment behind it, and one before it."""
    return "".join(f"# above {number}\n{line}  # behind {number}\n" for number, line in enumerate(text.splitlines()))


@pytest.mark.parametrize("name", every(9, presets()))
def test_a_size_of_a_preset_changes_one_line(name: str) -> None:
    spec = preset(name)
    other = assign(spec, ["name=changed"])
    text = commented(to_yaml(spec))
    result = edited_file(text, spec, other)
    assert result is not None and parse(yaml_value(result, "")) == other
    before, after = text.splitlines(), result.splitlines()
    assert len(before) == len(after) and sum(a != b for a, b in zip(before, after, strict=True)) == 1


FILE = """\
# My model
vocab_size: 1000  # few
context_length: 128
d_model: 64
embedding: {position: none}
final_norm: rms   # as Llama
layers:
  # all alike
  - repeat: 2
    block:
      wiring: {kind: pre_norm, norm: rms}
      mixer:
        kind: attention
        num_heads: 4   # heads
        position: rotary

      # and then
      feedforward: {kind: gated, d_ff: 128, activation: silu}  # small
"""


@pytest.mark.parametrize(("assignment", "changed_lines"), [
    ("d_model=128", {"d_model: 64": "d_model: 128"}),
    ("num_layers=6", {"  - repeat: 2": "  - repeat: 6"}),
    ("final_norm=layer", {"final_norm: rms   # as Llama": "final_norm: layer   # as Llama"}),
    ("layers[*].mixer.num_heads=8", {"        num_heads: 4   # heads": "        num_heads: 8   # heads"}),
    ("layers[*].mixer.bias=true", {"        position: rotary": "        position: rotary\n        bias: true"}),
    ("layers[*].mixer.position.theta=500000.0", {
        "        position: rotary": "        position: {kind: rotary, theta: 500000.0}"}),
    ("embedding.scale=2.0", {"embedding: {position: none}": "embedding: {position: none, scale: 2.0}"}),
    ("layers[*].feedforward.d_ff=96", {
        "      feedforward: {kind: gated, d_ff: 128, activation: silu}  # small":
        "      feedforward: {kind: gated, d_ff: 96, activation: silu}  # small"}),
    ("layers[*].wiring.norm=layer", {
        "      wiring: {kind: pre_norm, norm: rms}": "      wiring: {kind: pre_norm, norm: layer}"}),
    ("name=mine", {"      feedforward: {kind: gated, d_ff: 128, activation: silu}  # small":
        "      feedforward: {kind: gated, d_ff: 128, activation: silu}  # small\nname: mine"}),
])  # fmt: skip
def test_only_the_lines_that_were_asked_for_change(assignment: str, changed_lines: dict[str, str]) -> None:
    spec = parse(yaml_value(FILE, ""))
    expected = "".join(changed_lines.get(line, line) + "\n" for line in FILE.splitlines())
    assert edited_file(FILE, spec, assign(spec, [assignment])) == expected


def test_keys_are_added_to_an_empty_mapping() -> None:
    text = FILE.replace("mixer:\n", "dropout: 0.0\n      mixer:\n").replace("{position: none}", "{}  # as usual")
    spec = parse(yaml_value(text, ""))
    result = edited_file(text, spec, assign(spec, ["embedding.scale=2.0", "embedding.norm=rms"]))
    assert result is not None
    changed_lines = set(result.splitlines()) - set(text.splitlines())
    assert changed_lines == {"embedding: {scale: 2.0, norm: {kind: rms}}  # as usual"}


def test_what_needs_other_keys_is_not_edited() -> None:
    """A table of anchors, whose alias would change with it."""
    anchored = FILE.replace("final_norm: rms ", "final_norm: &norm {kind: rms}").replace("norm: rms}", "norm: *norm}")
    spec = parse(yaml_value(anchored, ""))
    assert edited_file(anchored, spec, assign(spec, ["final_norm.eps=0.001"])) is None
    both = assign(spec, ["final_norm.eps=0.001", "layers[*].wiring.norm.eps=0.001"])
    result = edited_file(anchored, spec, both)
    assert result is not None and result.count("eps") == 1
