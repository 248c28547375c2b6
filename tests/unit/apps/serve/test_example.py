"""The example of `archetype serve`: small, loaded when it is asked, and it writes what it learned."""

import json

import pytest
import torch

import archetype
from archetype.apps.serve.catalog import facts_of
from archetype.apps.serve.example import FOLDER, PROMPT, example
from tests.helpers.serving import serving


@pytest.fixture(autouse=True)
def no_network() -> None:
    """The server is on this machine."""


def test_the_example_is_small_and_a_folder_of_transformers() -> None:
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    assert sum(files.values()) < 2_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert json.loads((FOLDER / "config.json").read_text())["model_type"] == "llama"


def test_the_example_predicts_the_documentation_better_than_chance() -> None:
    lm = archetype.load(FOLDER)
    assert lm.tokenizer is not None
    text = "Parameters, FLOPs, state (KV cache or recurrent state), memory and time, by module and as formulas."
    ids = torch.tensor([lm.tokenizer.encode(text)])
    with torch.no_grad():
        logits = lm.model(ids).logits[0, :-1].float()  # type: ignore[union-attr, operator]
    loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    assert loss < 0.6 * torch.tensor(float(lm.spec.vocab_size)).log()  # type: ignore[union-attr]
    texts = [lm.generate(PROMPT, max_new_tokens=16, temperature=0.7, seed=1) for _ in range(2)]
    assert texts[0] == texts[1] and texts[0].isascii() and texts[0].count(" ") > 3


def test_the_example_is_loaded_by_the_first_request() -> None:
    with serving({str(FOLDER): archetype.load(FOLDER, device="cpu")}, sources=[example()]) as served:
        models = served.app.models
        row = facts_of(models, example())
        assert (row["loaded"], row["kind"], row["prompt"], models.loaded) == (False, "decoder", PROMPT, [])
        answer = served.call("/v1/completions", {"model": "example", "prompt": PROMPT, "max_tokens": 4}).json
        assert answer["usage"]["completion_tokens"] == 4
        assert len(models.loaded) == 1 and facts_of(models, example())["loaded"]
        assert len(served.call("/api/inspect", {"model": "example", "text": PROMPT}).json["tokens"]) > 1
