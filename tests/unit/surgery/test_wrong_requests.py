"""Requests that cannot be fulfilled: one line with place, cause and remedy, exit status 2, and nothing is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.api.language_model import LanguageModel
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.tokenizer import Tokenizer
from tests.helpers.cases import case
from tests.helpers.options import call
from tests.helpers.specs import attending, encoder, pair
from tests.helpers.weights import randomize

BYTES = train_tokenizer("bytes", [], None)
KEYS = "layers[*].mixer.num_kv_heads=1"
TRANSPLANTS = {
    f"donor {KEYS} --to exists": "exists: already exists; choose another folder or remove it",
    "donor --spec bert-tiny": "kind: the donor is of kind decoder, but the new model of kind encoder; use a spec",
    "donor layers[*].mixer.num_kv_heads=3": "layers[0].mixer.num_kv_heads: 3 does not divide num_heads 4; use 1, 2 or",
    "donor d_model=33": "layers[0].mixer.num_heads: 4 does not divide d_model 33; use 1, 3, 11 or set head_dim",
    "donor num_layers=0": "num_layers: 0 is not a valid number of layers; use a whole number from 1 to 10000",
    "donor context_length=1": "context_length: leaves no token to predict; use at least 2",
    "donor vocab_size=1": "text: has fewer than two tokens that both models have, and nothing to predict; use another",
    f"donor {KEYS} --text short.txt": "text: has fewer than two tokens that both models have, and nothing to predict",
    f"donor {KEYS} --text missing.txt": "missing.txt: there is no such file; check the path",
    f"masked {KEYS} --text long.txt": "text: a model of kind encoder that continues no text is not compared on one",
    f"nameless {KEYS} --text long.txt": "text: the donor has no tokenizer; leave the text out; random tokens are compa",
    f"nameless {KEYS} --tokenizer donor/tokenizer": "--tokenizer: the donor has no tokenizer whose tokens could be ta",
    f"donor {KEYS} --tokenizer missing": "missing: there is no such folder or file; name the folder that contains",
    f"nan {KEYS}": "donor: blocks.0.mixer.q.weight: has entries that are not numbers (NaN); use another checkpoint",
    f"infinite {KEYS}": "logits: the first NaN or infinite number is computed by blocks.0.mixer.q; check the weights",
    f"half {KEYS}": "half: has no weights yet; train it further with `archetype train --resume`",
    f"torn {KEYS}": "torn/model.safetensors: is not a complete safetensors file: ",
    f"bad.gguf {KEYS}": "bad.gguf: ",
    f"adapter {KEYS}": "adapter/adapter_config.json: ",
    f"llama-tiny {KEYS}": "llama-tiny: is a preset, which has no weights; train it: archetype train TEXT --spec",
    f"owner/name@revision {KEYS}": "owner/name@revision: is not a local folder, and huggingface.co cannot be reached",
    "donor num_layers=1 --layers 5": "--layers: the donor has layers 0 to 1; use these numbers",
    "pair decoder.num_layers=1 --layers 0": "--layers: the model has 2 stacks of layers, and this names those of one",
    "masked num_layers=1 --layers influence": "--layers influence: this model continues no text; name the layers, suc",
    f"donor {KEYS} --with heads=mean --with heads=first": "--with heads: is both mean and first; choose one",
    f"donor {KEYS} --with latent=plain": "--with latent: these changes need no such choice; use heads",
}
TRAININGS = {
    "--from donor --teacher other": "teacher.model: ./other has a vocabulary of 300 tokens, and the model one of 256;",
    "--from donor --teacher masked": "teacher.model: ./masked does not predict next tokens; use a causal model",
    "--from donor --teacher nan": "teacher.model: ./nan: blocks.0.mixer.q.weight: has entries that are not numbers",
    "--from donor --teacher missing": "missing: there is no such folder; pass a run directory, a Hugging Face folder",
    "--from nan": "nan: blocks.0.mixer.q.weight: has entries that are not numbers (NaN); use another checkpoint",
    "--from donor --spec bert-tiny": "kind: the donor is of kind decoder, but the new model of kind encoder; use",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("requests")

    def save(
        name: str, spec: ModelSpec, tokenizer: Tokenizer | None = BYTES, spoil: Callable[[Any], None] | None = None
    ) -> None:
        model: Any = randomize(build(spec))
        if spoil is not None:
            with torch.no_grad():
                spoil(model.blocks[0].mixer.q.weight)
        LanguageModel(spec, model, tokenizer, special={}).save(folder / name)

    spec = attending().replace(vocab_size=256, context_length=32)
    save("donor", spec)
    save("nan", spec, spoil=lambda weight: weight[2].fill_(float("nan")))
    save("infinite", spec, spoil=lambda weight: weight[2].fill_(float("inf")))
    save("other", spec.replace(vocab_size=300), train_tokenizer("byte_bpe", ["the cat sat on the mat " * 30], 290))
    save("masked", encoder().replace(vocab_size=256))
    save("pair", pair().replace(vocab_size=256))
    save("nameless", attending(), None)
    for name in ("half", "torn"):
        shutil.copytree(folder / "donor", folder / name)
    weights = folder / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    (folder / "half" / "model.safetensors").unlink()
    (folder / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    (folder / "short.txt").write_text("a")
    (folder / "long.txt").write_text("the cat sat on the mat. " * 200)
    (folder / "exists").mkdir()
    (folder / "exists" / "file").touch()
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "nowhere", "r": 2})
    )
    return folder


def test_wrong_requests_are_refused_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    requests = {f"transplant {words}": said for words, said in TRANSPLANTS.items()}
    requests |= {f"train --text long.txt --steps 1 {words}": said for words, said in TRAININGS.items()}
    before = sorted(folder.rglob("*"))
    for request, said in requests.items():
        with case(request):
            done = call([*request.split(), *([] if "--to " in request else ["--to", "new"])], folder)
            assert (done.status, done.output) == (2, "")
            assert done.error.count("\n") == 1 and done.error.startswith(f"archetype: {said}")
            assert sorted(folder.rglob("*")) == before
