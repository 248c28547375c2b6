"""What `archetype explain` shows of a kind in a preset: its tensors as they are built, its formulas, its state."""

import ast
import math
import re

from typer.testing import CliRunner

from archetype.apps.cli.explain import first_usage, modules_of
from archetype.apps.cli.main import app
from archetype.spec import describe
from tests.helpers.cases import case

ROLES = ("mixer", "norm", "pattern", "mixer position", "feed forward", "wiring", "activation")


def shown(kind: str) -> str:
    return CliRunner().invoke(app, ["explain", kind], catch_exceptions=False).stdout


def test_every_part_of_a_block_has_an_example_whose_tensors_are_its_parameters() -> None:
    parts = {str(cls.model_fields["kind"].default) for role, cls in describe.kinds() if role in ROLES}
    examples = set()
    for kind in sorted(parts):
        with case(kind):
            usage = first_usage(kind, tuple(cls for _, cls in describe.classes_of(kind)[0]))
            for module in modules_of(usage) if usage else ():
                shapes = map(ast.literal_eval, re.findall(r"[(][^)]+[)]", module.shapes))
                assert sum(map(math.prod, shapes)) == module.parameters.value, module.name
                examples.add(kind)
    assert parts - examples == {
        "none",
        "per_layer_input",
        "plain",
        "together",
    }  # which have no tensors, or stand in no preset


def test_a_kind_is_shown_as_it_is_written_with_formulas_and_state() -> None:
    text = shown("gqa")
    assert text.startswith("gqa is written here as kind: attention\n\nattention (mixer)\n\n")
    assert "In llama-3-8b, at layers[0].mixer:\n\nmixer:\n  kind: attention\n  num_heads: 32\n" in text
    assert "mixer.k weight (1024, 4096) K P D = 4,194,304 2 B K P D = 8,388,608\n" in re.sub(" +", " ", text)
    assert "\nK = 8: key/value heads\n" in text
    assert text.endswith("of 8,192 tokens: 32.00 MiB in bfloat16, plus 4.00 KiB per token.\n")
    assert re.search(r"State of a sequence of [0-9,]+ tokens: [0-9.]+ [KM]iB in bfloat16[.]\n$", shown("mamba2"))
    assert ", at " not in shown("decoder")


def test_a_part_or_a_field_lists_its_kinds() -> None:
    assert [line.split()[0] for line in shown("pattern").splitlines()[1:8]] == [
        "full", "window", "chunked", "strided", "fixed", "global_window", "bigbird",
    ]  # fmt: skip
    assert shown("feedforward").startswith("kinds of feed forward:\n  experts ")
    headings = [line for line in shown("position").splitlines() if line.startswith("kinds of")]
    assert headings == ["kinds of embedding position:", "kinds of mixer position:"]
    assert "yarn" in shown("scaling") and "sigmoid" in shown("router")
