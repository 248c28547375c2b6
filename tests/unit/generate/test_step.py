"""A decoding step goes on in place, for every kind of state, and a prefilled row takes a place among others."""

from collections import Counter
from typing import Any

import pytest
import torch

from archetype import LanguageModel
from archetype.families import preset
from archetype.generate import Engine, make_deterministic
from archetype.generate.beam_step import BeamStep
from archetype.generate.step import DecodeStep, prefill
from archetype.models.build import build
from archetype.models.causal import CausalModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.native.arguments import OPERATIONS
from archetype.native.recorder import TorchCall
from archetype.nn.state import State
from archetype.spec import assign
from tests.helpers.kernels import kernels
from tests.helpers.weights import distance, randomize

NAMES = (
    "llama-tiny", "mistral-tiny", "mamba-tiny", "mamba2-tiny", "deepseek-v2-tiny", "lstm-tiny", "ngram-tiny",
    "megabyte-tiny", "mixtral-tiny", "bloom-tiny", "sparse-strided-tiny", "nsa-tiny",
)  # fmt: skip


def pointers(state: State) -> list[int]:
    buffers = [tensor.data_ptr() for layer in state.layers for _, _, tensor in layer.tensors()]
    return [*buffers, state.lengths.data_ptr()]


def check_steps(name: str, dtype: torch.dtype, tolerance: float) -> DecodeStep:
    model = randomize(build(preset(name).replace(context_length=40), dtype=dtype))
    assert isinstance(model, CausalModel)
    texts = torch.randint(0, model.spec.vocab_size, (3, 20), generator=torch.Generator().manual_seed(1)).tolist()
    state = model.new_state(4, 32)
    for row, length in enumerate((3, 12, 8)):
        _, fresh = prefill(model, [texts[row][:length]], model.new_state(1, length))
        state.insert(torch.tensor([row]), fresh)
    step, lengths = DecodeStep(model, state.rows(0, 3)), [3, 12, 8]
    before = pointers(state)
    for _ in range(7):
        logits = step(torch.tensor([[texts[row][length]] for row, length in enumerate(lengths)]))
        lengths = [length + 1 for length in lengths]
        for row, length in enumerate(lengths):
            with torch.no_grad():
                whole = model(torch.tensor([texts[row][:length]])).logits[0, -1]
            assert distance(logits[row], whole) < tolerance
    assert state.lengths.tolist() == [*lengths, 0]
    assert pointers(state) == before == pointers(state.rows(0, 4))
    return step


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_as_a_pass_over_the_whole_and_moves_no_buffer(name: str) -> None:
    assert check_steps(name, torch.float64, 1e-9).replay is None


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_cannot_be_recorded_is_computed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels("native")
    compute = DecodeStep._compute

    def then_read(*inputs: Any) -> torch.Tensor:  # after every change of the state
        logits = compute(*inputs)
        assert logits.sum().isfinite().item()
        return logits

    monkeypatch.setattr(DecodeStep, "_compute", then_read)
    assert check_steps(name, torch.float32, 1e-5).replay is None


def recorded_entries(num_layers: int) -> Counter[str]:
    spec = assign(preset("llama-tiny"), [f"num_layers={num_layers}"])
    model = build(spec, dtype=torch.bfloat16).eval()
    assert isinstance(model, CausalModel)
    return entries_of(DecodeStep(model, model.new_state(2, 8)))


def entries_of(step: DecodeStep) -> Counter[str]:
    step(torch.zeros(len(step.state.lengths), 1, dtype=torch.long))
    assert step.replay is not None
    native = [segment for segment in step.replay.segments if not isinstance(segment, TorchCall)]
    return Counter(OPERATIONS[entry.operation].operation for segment in native for entry in segment)


def test_a_layer_is_recorded_in_seventeen_entries() -> None:
    """Two norms, seven products, two rotations, keys and values, attention, a gate, and two sums; nothing is copied."""
    kernels("native")
    assert recorded_entries(3) - recorded_entries(2) == {
        "rows": 2, "product": 7, "rotate": 2, "append": 2, "attend": 1, "gated": 1, "pointwise": 2
    }  # fmt: skip


@pytest.mark.parametrize("name", ["bloom-tiny", "gpt-oss-tiny", "deepseek-v2-tiny", "sparse-strided-tiny"])
def test_attention_of_a_layer_is_recorded_in_one_entry(name: str) -> None:
    """With slopes, with sinks and a window, over latents, and under a mask."""
    kernels("native")
    model = build(preset(name)).eval()
    assert isinstance(model, CausalModel)
    entries = entries_of(DecodeStep(model, model.new_state(2, 8)))
    assert entries["attend"] == model.spec.num_layers


def test_experts_are_recorded_in_a_product_for_each_matrix() -> None:
    kernels("native")
    model = build(preset("mixtral-tiny")).eval()
    assert isinstance(model, CausalModel)
    entries = entries_of(DecodeStep(model, model.new_state(2, 8)))
    assert entries["product"] == 8 * model.spec.num_layers + 1  # q, k, v, o, router, gate, up, down; and the head


def test_a_step_of_beams_records_both_attentions_and_copies() -> None:
    kernels("native")
    model = build(preset("t5-tiny")).eval()
    assert isinstance(model, EncoderDecoder)
    with torch.inference_mode():
        state = model.new_state(torch.ones(1, 4, dtype=torch.long), capacity=8, num_beams=2)
    entries = entries_of(BeamStep(model, state, 2))
    layers = len(model.decoder.blocks)
    assert (entries["attend"], entries["copy_places"]) == (2 * layers, layers)


def test_a_recorded_pass_leaves_the_model_its_kernels() -> None:
    """Other threads compute with the same model while a step of it is recorded."""
    kernels("native")
    model, records = build(preset("llama-tiny")).eval(), []
    assert isinstance(model, CausalModel)
    model.blocks[0].register_forward_pre_hook(
        lambda _, inputs: records.append((inputs[1].kernels.records, model.kernels.records))
    )
    step = DecodeStep(model, model.new_state(1, 8))
    for _ in range(2):  # the second step is replayed
        step(torch.zeros(1, 1, dtype=torch.long))
    assert records == [(True, False)]


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_an_engine_records_each_size_of_step_once(is_deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels("native")
    model, sizes, record = build(preset("llama-tiny")).eval(), [], DecodeStep._record
    assert isinstance(model, CausalModel)
    if is_deterministic:
        make_deterministic(model)

    def counted(step: DecodeStep, *inputs: Any) -> torch.Tensor:
        sizes.append(len(step.state.lengths))
        return record(step, *inputs)

    monkeypatch.setattr(DecodeStep, "_record", counted)
    engine, texts = Engine(LanguageModel(model.spec, model), slots=4), []
    for _ in range(2):
        requests = [engine.submit([1, 2, 3, row], max_new_tokens=4 + row, temperature=0.0) for row in range(3)]
        for request in requests:
            request.result()
        texts.append([request.tokens for request in requests])
        # three requests at first, then two, then one; a deterministic model also reads its prompts by a step
        assert sorted(sizes) == [1, 2, 4] + [4] * is_deterministic
    assert texts[0] == texts[1]
