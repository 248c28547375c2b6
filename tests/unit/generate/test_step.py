"""A decoding step goes on in place, for every kind of state, and a prefilled row takes a place among others."""

from collections import Counter

import pytest
import torch

from archetype.families import preset
from archetype.generate.step import DecodeStep, prefill
from archetype.models.build import build
from archetype.models.causal import CausalModel
from archetype.native.arguments import OPERATIONS
from archetype.native.recorder import TorchCall
from archetype.nn.cache import State
from archetype.spec import assign
from tests.helpers.kernels import kernels
from tests.helpers.weights import distance, randomize

NAMES = (
    "llama-tiny", "mistral-tiny", "mamba-tiny", "mamba2-tiny", "deepseek-v2-tiny", "lstm-tiny", "ngram-tiny",
    "megabyte-tiny", "mixtral-tiny", "bloom-tiny", "sparse-strided-tiny",
)  # fmt: skip


def pointers(state: State) -> list[int]:
    buffers = [tensor.data_ptr() for layer in state.layers for _, _, tensor in layer.tensors()]
    return [*buffers, state.lengths.data_ptr()]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_as_a_pass_over_the_whole_and_moves_no_buffer(name: str) -> None:
    model = randomize(build(preset(name).replace(context_length=40), dtype=torch.float64))
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
            assert distance(logits[row], whole) < 1e-9
    assert state.lengths.tolist() == [*lengths, 0]
    assert pointers(state) == before == pointers(state.rows(0, 4))


def recorded_entries(num_layers: int) -> Counter[str]:
    spec = assign(preset("llama-tiny"), [f"num_layers={num_layers}"])
    model = build(spec, dtype=torch.bfloat16).eval()
    assert isinstance(model, CausalModel)
    step = DecodeStep(model, model.new_state(2, 8))
    step(torch.zeros(2, 1, dtype=torch.long))
    assert step.replay is not None
    native = [segment for segment in step.replay.segments if not isinstance(segment, TorchCall)]
    return Counter(OPERATIONS[entry.operation].operation for segment in native for entry in segment)


def test_a_layer_is_recorded_in_seventeen_entries() -> None:
    """Two norms, seven products, two rotations, keys and values, attention, a gate, and two sums; nothing is copied."""
    kernels("native")
    assert recorded_entries(3) - recorded_entries(2) == {
        "rows": 2, "product": 7, "rotate": 2, "append": 2, "attend": 1, "gated": 1, "pointwise": 2
    }  # fmt: skip
