"""Other libraries that take a model of transformers, with one that no class of theirs has: TRL, and lm-eval."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import archetype
import archetype.hf  # registers the type
from tests.clients.test_clients import ENVIRONMENTS, HERE
from tests.integration.test_hf import hybrid

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid that has learned a little, as `export --format archetype-hf` writes it."""
    place = tmp_path_factory.mktemp("hybrid")
    text = HERE.parent.parent / "README.md"
    model = hybrid(vocab_size=512)
    archetype.train(
        place / "run", text, spec=model, tokenizer="bpe", vocab_size=512, steps=20, batch_size=4, device="cpu"
    )
    archetype.export(archetype.load(place / "run"), place / "folder", format="archetype-hf")
    return place / "folder"


def with_trl() -> Path:
    """The Python of an environment that has TRL beside the packages of this one."""
    place = ENVIRONMENTS / "trl"
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        packages = place / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        (packages / "beside.pth").write_text(sysconfig.get_path("purelib"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "trl>=1"], check=True)
    return python


def test_trl_tunes_a_hybrid_by_examples_and_by_preferences(folder: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(HERE.parent.parent), "HF_HUB_OFFLINE": "1"}
    command = [with_trl(), HERE / "with_trl.py", folder, tmp_path]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    losses = json.loads(result.stdout.splitlines()[-1])
    assert losses["sft"][-1] < losses["sft"][0] - 0.1
    assert losses["dpo"][0] == pytest.approx(0.6931, abs=1e-3) and losses["dpo"][-1] < 0.69


def test_lm_eval_scores_a_hybrid_as_archetype_does(folder: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    """Log-likelihoods of continuations by its class `hf`, which wants a tokenizer that ends texts."""
    questions = [("The model", " has layers"), ("archetype", " cost"), ("a", " b c d")]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(0)
    model: Any = HFLM(pretrained=str(folder), tokenizer=tokenizer, device="cpu", batch_size=2, dtype="float32")
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(questions)]
    theirs = [logprob for logprob, _ in model.loglikelihood(requests, disable_tqdm=True)]
    lm = archetype.load(folder)
    assert lm.tokenizer is not None
    for (context, continuation), logprob in zip(questions, theirs, strict=True):
        before, whole = lm.tokenizer.encode(context), lm.tokenizer.encode(context + continuation)
        logprobs = lm.model(torch.tensor([whole])).logits[0].log_softmax(-1).detach()
        ours = sum(float(logprobs[place - 1, whole[place]]) for place in range(len(before), len(whole)))
        assert logprob == pytest.approx(ours, abs=1e-4)
