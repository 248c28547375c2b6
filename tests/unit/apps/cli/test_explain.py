"""What `archetype explain` shows of a kind in a preset: its projections as they are built, its formulas, its state."""

import math
import re

import torch
from typer.testing import CliRunner

from archetype.apps.cli.explain import first_usage, modules_of
from archetype.apps.cli.main import app
from archetype.models.block.module import build_block
from archetype.models.stack.module import places_of
from archetype.spec import describe
from tests.helpers.cases import case

ROLES = ("mixer", "norm", "pattern", "mixer position", "feed forward", "wiring", "activation")


def shown(kind: str) -> str:
    return CliRunner().invoke(app, ["explain", kind], catch_exceptions=False).stdout


def test_every_part_of_a_block_has_an_example_whose_sizes_are_those_of_its_tensors() -> None:
    parts = {str(cls.model_fields["kind"].default) for role, cls in describe.kinds() if role in ROLES}
    examples = set()
    for kind in sorted(parts):
        usage = first_usage(kind, tuple(cls for _, cls in describe.classes_of(kind)[0]))
        if usage is None:
            continue
        with case(kind), torch.device("meta"):
            block = build_block(usage.stack.layers[usage.layer], places_of(usage.stack)[usage.layer])
        tensors = dict(block.named_parameters())
        modules = modules_of(usage)
        owners = {
            name: max((m.name for m in modules if f"{name}.".startswith(f"{m.name}.")), default="", key=len)
            for name in tensors
        }
        for module in modules:
            with case(kind, module.name):
                shapes = [tensors[name].shape for name, owner in owners.items() if owner == module.name]
                assert sum(map(math.prod, shapes)) == module.parameters.value
                if module.sizes is not None:
                    inputs, outputs = (size.value for size in module.sizes)
                    assert (outputs, inputs) in [tuple(shape[-2:]) for shape in shapes]
                examples.add(kind)
    # without tensors, or in no preset
    assert parts - examples == {
        "gated_rms", "interpolated", "l2", "ngram_embedding", "ngram_memory", "none", "plain", "poly_norm",
        "relative_logits", "xielu",
    }  # fmt: skip


def test_a_kind_is_shown_as_it_is_written_with_formulas_and_state() -> None:
    text = shown("gqa")
    assert text.startswith("gqa is written here as kind: attention\n\nattention (mixer)\n\n")
    assert "In llama-3-8b, at layers[0].mixer:\n\nmixer:\n  kind: attention\n  num_heads: 32\n" in text
    assert "mixer.k 4,096 to 1,024 K P D = 4,194,304 2 B K P D = 8,388,608\n" in re.sub(" +", " ", text)
    assert "\nK = 8: key/value heads\n" in text
    assert text.endswith("of 8,192 tokens: 32.00 MiB in bfloat16, plus 4.00 KiB per token.\n")
    assert re.search(r"State of a sequence of [0-9,]+ tokens: [0-9.]+ [KM]iB in bfloat16[.]\n$", shown("mamba2"))
    assert ", at " not in shown("decoder")


def test_a_part_or_a_field_lists_its_kinds() -> None:
    assert [line.split()[0] for line in shown("pattern").splitlines()[1:9]] == [
        "full", "window", "chunked", "block_causal", "strided", "fixed", "global_window", "bigbird",
    ]  # fmt: skip
    assert shown("feedforward").startswith("kinds of feed forward:\n  channel_mixing ")
    headings = [line for line in shown("position").splitlines() if line.startswith("kinds of")]
    assert headings == ["kinds of embedding position:", "kinds of mixer position:"]
    assert "yarn" in shown("scaling") and "sigmoid" in shown("router")
