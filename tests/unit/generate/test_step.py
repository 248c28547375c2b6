"""A decoding step goes on in place, for every kind of state, and a prefilled row takes a place among others."""

import pytest
import torch

from archetype.families import preset
from archetype.generate.step import DecodeStep, prefill
from archetype.models import CausalModel, build
from archetype.nn.cache import State
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
    step, lengths = DecodeStep(model, state.first_rows(3)), [3, 12, 8]
    before = pointers(state)
    for _ in range(7):
        logits = step(torch.tensor([[texts[row][length]] for row, length in enumerate(lengths)]))
        lengths = [length + 1 for length in lengths]
        for row, length in enumerate(lengths):
            with torch.no_grad():
                whole = model(torch.tensor([texts[row][:length]])).logits[0, -1]
            assert distance(logits[row], whole) < 1e-9
    assert state.lengths.tolist() == [*lengths, 0]
    assert pointers(state) == before == pointers(state.first_rows(4))
