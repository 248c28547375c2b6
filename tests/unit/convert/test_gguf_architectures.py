"""Every architecture that llama.cpp and the library `gguf` know is written and read, or refused for a reason."""

import gguf
import pytest

from archetype.convert.gguf.architectures import GGUF, families_of
from archetype.convert.gguf.choice import _reason
from archetype.convert.gguf.refused import REFUSED
from archetype.errors import CheckpointError
from archetype.families import preset
from archetype.spec.edit import assign
from benchmarks.gguf import PAGE, page, written
from tests.helpers.cases import case
from tests.helpers.gguf_specs import SPECS

NOT_MODELS = {"mmproj"}  # for the part of a file that reads images


def test_every_architecture_is_written_or_refused() -> None:
    known = set(gguf.MODEL_ARCH_NAMES.values()) - NOT_MODELS
    ours = {target.architecture for target in GGUF.values()}
    assert known - ours - {*REFUSED} == set()
    assert not ours & {*REFUSED}


def test_the_page_lists_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert set(written()) == {target.architecture for target in GGUF.values()}


def test_a_refused_architecture_says_what_is_missing() -> None:
    with pytest.raises(CheckpointError, match=r"'rwkv6' is not supported: the RWKV-6 recurrence"):
        families_of("rwkv6", "file.gguf")
    with pytest.raises(CheckpointError, match=r"'new' is not supported; use one of"):
        families_of("new", "file.gguf")


def test_a_layer_of_another_kind_fits_or_is_refused() -> None:
    parts = "[{kind: gated, d_ff: 8, activation: silu}, {kind: mlp, d_ff: 8, activation: relu}]"
    changes = (f"feedforward={{kind: together, parts: {parts}}}", "feedforward={kind: none}", "mixer={kind: none}")
    models = [assign(preset("llama-tiny"), [f"layers[{layer}].{change}"]) for layer in (0, 1) for change in changes]
    for model in (*models, SPECS["qwen4_exp_text memory"]):
        for name, target in GGUF.items():
            with case(model, name):
                _reason(target, model)  # which is None, or one of our errors
