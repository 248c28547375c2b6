"""Programs of torch.export and ONNX: every tiny preset, for any number of rows and any length, as the model itself."""

import json
import re
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import build_untrained
from archetype.convert.program import files, onnx, trace
from archetype.distribution import install_command
from archetype.errors import CheckpointError
from archetype.models.build import build
from tests.helpers.examples import first_of_each
from tests.helpers.weights import distance, randomize
from tests.integration.test_hf import hybrid, model_of

EXACT, WRONG = 1e-5, 1e-3
TINY = [name for name in archetype.presets() if name.endswith("-tiny")]
SIZES = ((1, 9, 3), (4, 1, 1), (2, 70, 20))  # rows, length, the source's length; of the trace they are 3, 7 and 11


def preset(name: str, seed: int = 0) -> LanguageModel:
    """A preset whose every tensor is random."""
    lm = build_untrained(name)
    randomize(lm.model, seed)
    return lm


def run_torch(folder: Path, inputs: dict[str, Tensor]) -> Tensor:
    result: Tensor = torch.export.load(folder / "model.pt2").module()(**inputs)
    return result


def run_onnx(folder: Path, inputs: dict[str, Tensor]) -> Tensor:
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return torch.from_numpy(result)


@torch.no_grad()
def check(name: str, format: str, folder: Path) -> None:
    """The program gives what `forward` gives, and its signature says what it reads."""
    lm = preset(name)
    export(lm, folder, format=format)  # type: ignore[arg-type]
    signature = json.loads((folder / "signature.json").read_text())
    for seed, sizes in enumerate(SIZES, 1):
        inputs = trace.example_inputs(lm.model, *sizes, seed)
        output = lm.model(**inputs)
        expected = output.hidden if output.logits is None else output.logits
        result = (run_torch if format == "torch-export" else run_onnx)(folder, inputs)
        assert result.shape == expected.shape
        if "num_tokens" in inputs and expected.dim() == 3:  # padding that sees no token through a window means nothing
            is_token = torch.arange(expected.shape[1]) < inputs["num_tokens"][:, None]
            result, expected = result[is_token][None], expected[is_token][None]
        assert distance(result, expected) < EXACT
        assert [one["name"] for one in signature["inputs"]] == list(inputs)
        (said,) = signature["outputs"]
        assert [size for size in said["shape"] if isinstance(size, int)] == list(expected.shape)[-1:]
        assert len(said["shape"]) == expected.dim()


def test_example_inputs_have_the_sizes_that_are_asked_for_up_to_the_context() -> None:
    for name, tokens in (("llama-tiny", "tokens"), ("t5-tiny", "target")):
        model = preset(name).model
        for length, source in ((5, 9), (500, 700)):
            inputs = trace.example_inputs(model, 3, length, source)
            assert inputs[tokens].shape == (3, min(length, model.spec.context_length))
            if "source" in inputs:
                assert inputs["source"].shape == (3, min(source, model.spec.context_length))


def test_a_program_reads_no_lengths_where_the_pattern_of_a_batch_has_one() -> None:
    for name, reads_them in (("bigbird-tiny", False), ("longformer-tiny", True)):
        assert ("num_tokens" in trace.example_inputs(preset(name).model, 3, 7, 11)) == reads_them


@pytest.mark.parametrize("name", first_of_each(lambda name: {name} & {"bigram-tiny", "gpt2-tiny"}, TINY))
def test_every_preset_is_a_program_of_torch(name: str, tmp_path: Path) -> None:
    check(name, "torch-export", tmp_path / "program")


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("bert-tiny", "torch-export"),
        pytest.param("llama-tiny", "torch-export", marks=pytest.mark.slow),
        pytest.param("bert-tiny", "onnx", marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_a_program_of_a_sentence_encoder_gives_the_vectors_of_texts(name: str, format: str, tmp_path: Path) -> None:
    model = randomize(build(archetype.load_spec(name).with_sentence_head())).eval()
    export(LanguageModel(model.spec, model), tmp_path / "program", format=format)  # type: ignore[arg-type]
    inputs = trace.example_inputs(model, 4, 12, 0, 1)
    vectors = model(**inputs).text_vectors
    assert "num_tokens" in inputs and vectors is not None and vectors.shape == (4, 64)
    result = (run_torch if format == "torch-export" else run_onnx)(tmp_path / "program", inputs)
    assert distance(result, vectors) < EXACT
    signature = json.loads((tmp_path / "program" / "signature.json").read_text())
    assert [one["name"] for one in signature["outputs"]] == ["vectors"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_preset_is_a_program_of_onnx(name: str, tmp_path: Path) -> None:
    check(name, "onnx", tmp_path / "program")


def test_the_hybrid_writes_the_same_text_in_onnxruntime(tmp_path: Path) -> None:
    model = model_of(hybrid())
    model.save_pretrained(tmp_path / "folder")
    archetype.export(archetype.load(tmp_path / "folder"), tmp_path / "program", format="onnx")
    tokens = torch.randint(1, 256, (1, 5))
    expected = model.generate(tokens, max_new_tokens=12, do_sample=False, eos_token_id=None)
    session = onnxruntime.InferenceSession(tmp_path / "program" / "model.onnx")
    for _ in range(12):
        (logits,) = session.run(None, {"tokens": tokens.numpy()})
        tokens = torch.cat((tokens, torch.from_numpy(logits)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(tokens, expected)
    assert len(set(tokens[0].tolist())) > 3  # and is no single token again and again


def test_another_program_is_noticed_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = preset("bigram-tiny")
    other = trace.trace(preset("bigram-tiny", seed=1).model)
    monkeypatch.setattr(files, "trace", lambda model: other)
    with pytest.raises(CheckpointError, match=r"^model.pt2: has different outputs than the model for 1 sequences of 1"):
        export(lm, tmp_path / "program", format="torch-export")
    assert not (tmp_path / "program").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"family": "llama"}, "family: cannot be combined with format onnx; remove one of them"),
        ({"shard_bytes": 2**20}, "shard_bytes: a program of onnx is one file; remove it"),
        ({"type": "q8_0"}, "--type: applies to GGUF files only; add --format gguf, or use --dtype"),
    ],
)
def test_options_of_other_formats_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        export(build_untrained("bigram-tiny"), tmp_path / "program", format="onnx", **options)
    assert str(caught.value) == message


def test_what_onnx_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halved = build_untrained("bigram-tiny", 0, torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"^--format onnx: onnxruntime does not support bfloat16; add --dtype"):
        export(halved, tmp_path / "program", format="onnx")
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(CheckpointError, match=re.escape(f"--format onnx: needs onnxscript; {install_command('onnx')}")):
        export(preset("bigram-tiny"), tmp_path / "program", format="onnx")


def test_a_part_that_asks_for_numbers_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = preset("bigram-tiny")
    head = lm.model.lm_head.forward
    monkeypatch.setattr(lm.model.lm_head, "forward", lambda x, table: head(x, table) if x.sum() > 0 else x)
    with pytest.raises(CheckpointError, match=r"^bigram-tiny: torch.export cannot trace it: .*archetype-hf") as caught:
        export(lm, tmp_path / "program", format="torch-export")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "program").exists()


def test_a_program_has_what_turns_texts_into_tokens(tmp_path: Path) -> None:
    archetype.train(tmp_path / "run", Path(__file__), spec="bigram-tiny", steps=1, batch_size=2, device="cpu")
    lm = archetype.load(tmp_path / "run", device="cpu")
    archetype.export(lm, tmp_path / "program", format="torch-export")
    names = {file.name for file in (tmp_path / "program").iterdir()}
    assert {"model.pt2", "signature.json", "README.md", "config.json", "tokenizer.json"} <= names
    assert build(archetype.load_spec(tmp_path / "program")).spec == lm.spec
