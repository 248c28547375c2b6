"""One small model of each family, with weights in which nothing is hidden."""

from pathlib import Path

import pytest

from archetype.checkpoint.hf import write_model
from archetype.families import FAMILIES
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.model import Model, build
from tests.weights import randomize

SPECS = {
    "gpt2": gpt2(num_layers=2, d_model=8, num_heads=2, vocab_size=13, context_length=16),
    "gpt2 untied": gpt2(num_layers=1, d_model=8, num_heads=2, vocab_size=13, context_length=16, tied=False),
    "llama": llama(num_layers=2, d_model=8, num_heads=4, num_kv_heads=2, d_ff=12, vocab_size=13, context_length=16),
    "llama tied": llama(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=13, context_length=16, tied=True),
    "llama with biases": llama(
        num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=13, attention_bias=True, mlp_bias=True
    ),
}


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    """A model of each specification."""
    return {name: randomize(build(spec)) for name, spec in SPECS.items()}


@pytest.fixture(params=SPECS)
def name(request: pytest.FixtureRequest) -> str:
    """Each model in turn."""
    return request.param


@pytest.fixture
def folder(models: dict[str, Model], tmp_path: Path, name: str) -> Path:
    """The model `name` as a Hugging Face folder, which a test may spoil."""
    made = tmp_path / "model"
    made.mkdir()
    write_model(models[name], FAMILIES[name.split()[0]], made)
    return made
