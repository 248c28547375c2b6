"""Programs of torch.export and ONNX that keep their state: every causal tiny preset, the whole prompt and by steps."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import build_untrained
from archetype.convert.program import files, step
from archetype.convert.program.formats import FILES
from archetype.convert.program.state import Rate, StateLayout
from archetype.errors import CheckpointError
from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.examples import every
from tests.helpers.programs import causal_presets, row_of, rows_of_page
from tests.helpers.stepping import Stepper
from tests.helpers.weights import distance, randomize

EXACT, WRONG = 1e-5, 1e-3
CAUSAL = causal_presets()


def model_of(name: str, *changes: str, seed: int = 0) -> LanguageModel:
    """A preset, changed, whose every tensor is random."""
    if not changes:
        lm = build_untrained(name)
        randomize(lm.model, seed)
        return lm
    model = randomize(build(assign(archetype.load_spec(name), list(changes))), seed).eval()
    return LanguageModel(model.spec, model)


def layout_row(name: str) -> tuple[str, ...]:
    """The row of a preset if its state may have any number of slots."""
    return row_of(name, ["yes"] * len(FILES), StateLayout.of(build_untrained(name).model).entries()["state"])  # type: ignore[arg-type]


def written(lm: LanguageModel, format: str, folder: Path) -> Stepper:
    folder.mkdir(exist_ok=True)
    export(lm, folder / "program", format=format, with_state=True)  # type: ignore[arg-type]
    return Stepper(folder / "program")


@torch.no_grad()
def check(lm: LanguageModel, format: str, folder: Path) -> Stepper:
    """The program continues a text as the model does without a state, however the text is cut into steps."""
    program = written(lm, format, folder)
    model: Any = lm.model
    tokens = prompt = torch.randint(model.spec.vocab_size, (1, 9))
    for _ in range(32):
        logits = model(tokens).logits
        tokens = torch.cat((tokens, logits[:, -1:].argmax(-1)), 1)
    expected = tokens[0, 9:].tolist()
    assert [program.greedy(prompt, 32, chunk) for chunk in (9, 1)] == [expected, expected]
    # two texts in one batch, of which one has fewer new tokens in each step: logits and sizes of the state
    texts, state = torch.randint(model.spec.vocab_size, (2, 40)), program.first(2, 40)
    whole, sizes = model(texts).logits, {name: tensor.shape for name, tensor in state.items()}
    read = [0, 0]
    for counts in ((20, 7), (1, 1), (0, 3), (19, 1)):
        new = torch.zeros(2, max(counts), dtype=torch.long)
        for row, count in enumerate(counts):
            new[row, :count] = texts[row, read[row] : read[row] + count]
        logits, state = program.step(new, state, torch.tensor(counts))
        for row, count in enumerate(counts):
            if count:
                assert distance(logits[row, :count], whole[row, read[row] : read[row] + count]) < EXACT
            read[row] += count
        assert {name: tensor.shape for name, tensor in state.items()} == sizes  # no step needs more memory
    assert state["lengths"].tolist() == read
    return program


def test_a_layer_of_attention_keeps_its_state(tmp_path: Path) -> None:
    check(model_of("llama-tiny", "num_layers=1"), "torch-export", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL)
def test_every_causal_preset_keeps_its_state(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch and in onnxruntime, from one trace, with the state that the page says."""
    monkeypatch.setattr(files, "trace_step", cache(step.trace_step))
    lm = model_of(name)
    entries = [check(lm, format, tmp_path / format).signature["state"] for format in FILES]
    assert rows_of_page()[name] == row_of(name, ["yes"] * len(FILES), entries[0])
    assert entries[0] == entries[1]


def test_the_page_has_a_row_for_each_causal_preset() -> None:
    rows = rows_of_page()
    assert [*rows] == CAUSAL


@pytest.mark.parametrize("name", every(12, CAUSAL))
def test_the_page_counts_the_tensors_of_the_state(name: str) -> None:
    """What grows has the size of the context if torch cannot trace the slots; blocks of keys always have it."""
    counts = [[int(cell or 0) for cell in row[-4:]] for row in (rows_of_page()[name], layout_row(name))]
    (constant, ring, grows, context), (*same, most, blocks) = counts
    assert [constant, ring] == same and grows + context == most + blocks and grows in (0, most)


@pytest.mark.slow
def test_a_hybrid_keeps_its_state_and_the_signature_says_how_each_tensor_grows(tmp_path: Path) -> None:
    lm = model_of("mistral-tiny", "layers[1].mixer=mamba")
    stack: Any = lm.spec.stacks[0]
    window = stack.layers[0].mixer.pattern.size
    signature = check(lm, "torch-export", tmp_path).signature
    entries = {entry["name"]: entry for entry in signature["state"]}
    assert entries["0.keys"]["size"] == "ring" and entries["0.keys"]["shape"][entries["0.keys"]["axis"]] == window
    assert {entries[name]["size"] for name in ("lengths", "1.conv", "1.hidden")} == {"constant"}
    assert signature["slots"] == {} and signature["context_length"] == 128


@pytest.mark.parametrize(
    ("name", "changes", "rates"),
    [
        ("llama-tiny", (), {Rate(1, 0)}),
        ("mamba-tiny", (), set()),
        ("mistral-tiny", ("layers[*].mixer.pattern={kind: window, size: 500}",), {Rate(1, 0)}),
        ("megabyte-tiny", (), {Rate(4, 1)}),
    ],
)
def test_slots_are_counted_from_the_state_itself(name: str, changes: tuple[str, ...], rates: set[Rate]) -> None:
    model: Any = model_of(name, *changes).model
    layout = StateLayout.of(model)
    assert set(layout.rates) == rates
    for room in (16, 40):  # as the model's own state
        ours = model.new_state(3, room)
        sizes = sorted(tensor.shape for layer in ours.layers for _, _, tensor in layer.tensors() if tensor.numel())
        theirs = layout.first(3, room)
        assert sizes == sorted(tensor.shape for key, tensor in theirs.items() if key != "lengths")
        values = [tensor for layer in ours.layers for _, _, tensor in layer.tensors() if tensor.numel()]
        alike = [[yours for yours in theirs.values() if yours.shape == mine.shape] for mine in values]
        assert all(min(distance(yours, mine) for yours in of) < EXACT for mine, of in zip(values, alike, strict=True))


@pytest.mark.slow
def test_a_state_is_given_further_slots_between_steps(tmp_path: Path) -> None:
    lm = model_of("llama-tiny")
    program, tokens = written(lm, "torch-export", tmp_path), torch.randint(256, (1, 30))
    state = program.first(1, 10)
    _, state = program.step(tokens[:, :10], state)
    axes = {entry["name"]: entry.get("axis") for entry in program.signature["state"]}
    for name, axis in axes.items():
        if axis is not None:
            state[name] = torch.cat((state[name], torch.zeros_like(state[name]), torch.zeros_like(state[name])), axis)
    logits, _ = program.step(tokens[:, 10:], state)
    with torch.no_grad():
        assert distance(logits, lm.model(tokens).logits[:, 10:]) < EXACT


@pytest.mark.slow
def test_a_learned_selection_of_keys_has_slots_for_fewer_keys_than_it_chooses(tmp_path: Path) -> None:
    index = "layers[*].mixer.index={kind: lightning, num_heads: 2, head_dim: 8, top_k: 6}"
    lm = model_of("llama-tiny", index)
    program = check(lm, "torch-export", tmp_path)
    entries = [entry for entry in program.signature["state"] if entry["name"] != "lengths"]
    assert {(entry["size"], entry["shape"][2]) for entry in entries} == {("grows", "slots")}
    tokens = torch.randint(256, (1, 4))
    logits, _ = program.step(tokens, program.first(1, 4))
    with torch.no_grad():
        assert distance(logits, lm.model(tokens).logits) < EXACT


@pytest.mark.parametrize(("name", "format"), [("gla-tiny", "onnx"), ("llama-tiny", "torch-export")])
@pytest.mark.slow
def test_the_code_of_the_readme_runs_without_archetype(name: str, format: str, tmp_path: Path) -> None:
    lm = model_of(name)
    export(lm, tmp_path / "program", format=format, with_state=True)  # type: ignore[arg-type]
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "program" / "README.md").read_text(), re.DOTALL)
    code += "import sys\nassert not [name for name in sys.modules if name.startswith('archetype')]\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "program", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        for _ in range(20):
            tokens = torch.cat((tokens, lm.model(tokens).logits[:, -1:].argmax(-1)), 1)
    assert json.loads(done.stdout) == tokens[0, 3:].tolist()


def test_a_program_of_other_weights_is_noticed_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = step.trace_step(model_of("bigram-tiny", seed=1).model)  # type: ignore[arg-type]
    monkeypatch.setattr(files, "trace_step", lambda model: other)
    with pytest.raises(CheckpointError, match=r"^model.pt2: has different outputs than the model for 1 sequences of 1"):
        export(model_of("bigram-tiny"), tmp_path / "program", format="torch-export", with_state=True)
    assert not (tmp_path / "program").exists()


@pytest.mark.slow
def test_a_state_that_stays_as_it_was_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(step.Step):
        def forward(self, tokens: Tensor, num_tokens: Tensor, state: dict[str, Tensor]) -> Any:
            logits, after = super().forward(tokens, num_tokens, state)
            return logits, {name: tensor + 0 for name, tensor in state.items()} | {"lengths": after["lengths"]}

    monkeypatch.setattr(step, "Step", Forgetful)
    with pytest.raises(CheckpointError, match=r"^model.pt2: has different outputs than the model for 1 sequences of 2"):
        export(model_of("ngram-tiny"), tmp_path / "program", format="torch-export", with_state=True)


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("llama-tiny", "archetype-hf", "--with-state: applies to torch-export and onnx only; remove it"),
        ("bert-tiny", "onnx", "--with-state: a model of kind encoder with the head masked_language_model does not "),
        ("t5-tiny", "torch-export", "--with-state: a model of kind encoder_decoder with the head language_model does "),
    ],
)
def test_a_state_is_refused_where_there_is_none(name: str, format: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        export(build_untrained(name), tmp_path / "program", format=format, with_state=True)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message) and not (tmp_path / "program").exists()
