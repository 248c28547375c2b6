"""RG-LRU: Griffin's recurrence in chunks, beside transformers' loop over positions."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

from archetype import spec
from archetype.errors import SpecError
from archetype.families import preset
from archetype.nn.chunks import diagonal_chunk, read_chunks
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.rg_lru.module import RGLRU
from tests.helpers.weights import distance, randomize

D, EXACT = 12, 1e-11
MIXER = spec.RGLRU(num_heads=3, width=18, chunk_size=8)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_chunks_are_the_recurrence_and_so_are_their_gradients() -> None:
    def defined(hidden: Tensor, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for t in range(x.shape[1]):
            hidden = a[:, t].exp() * hidden + x[:, t]
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden

    for length in (1, 2, 7, 20):
        tensors = [random(2, 5), random(2, length, 5, seed=1), -random(2, length, 5, seed=2).square() * 9]
        for size in (1, 8, 64):
            results = []
            for run in (defined, lambda hidden, *rest, size=size: read_chunks(diagonal_chunk, size, (hidden,), *rest)):
                inputs = [tensor.clone().requires_grad_() for tensor in tensors]
                y, last = run(*inputs)
                weighed = (y * random(*y.shape, seed=3)).sum() + (last * random(*last.shape, seed=4)).sum()
                results.append((y, last, *torch.autograd.grad(weighed, inputs)))
            assert all(distance(*pair) < EXACT for pair in zip(*results, strict=True))


def theirs(part: Any, width: int) -> RecurrentGemmaRecurrentBlock:
    config = RecurrentGemmaConfig(
        hidden_size=D, lru_width=width, num_attention_heads=MIXER.num_heads, num_hidden_layers=1, num_key_value_heads=1
    )
    block, tensors = RecurrentGemmaRecurrentBlock(config, 0), part.state_dict()
    names = {
        "x": "linear_x", "gate": "linear_y", "o": "linear_out", "conv": "conv_1d", "rate": "rg_lru.recurrent_param",
        "input_gate.weight": "rg_lru.input_gate_weight", "input_gate.bias": "rg_lru.input_gate_bias",
        "decay_gate.weight": "rg_lru.recurrent_gate_weight", "decay_gate.bias": "rg_lru.recurrent_gate_bias",
    }  # fmt: skip
    for name, tensor in tensors.items():
        path, _, kind = name.rpartition(".")
        block.get_parameter(names.get(name) or f"{names[path]}.{kind}").data.copy_(tensor)
    return block


@torch.no_grad()
@pytest.mark.parametrize("width", [12, 18])
def test_the_same_as_transformers(width: int) -> None:
    part = randomize(RGLRU(MIXER.replace(width=width), Place(D))).float()
    x, positions = random(2, 23, D).float(), torch.arange(23)[None].expand(2, -1)
    expected, _ = theirs(part, width)(x, positions, None, use_cache=False)
    assert distance(part(x, ForwardContext.of(x)), expected) < 1e-5
    part.rate += 0.5
    assert distance(part(x, ForwardContext.of(x)), expected) > 1e-3


@torch.no_grad()
def test_in_pieces_as_at_once_and_padding_changes_nothing() -> None:
    part, x = randomize(RGLRU(MIXER, Place(D))).double(), random(2, 17, D)
    whole = part(x, ForwardContext.of(x))
    for pieces in ([1] * 17, [4, 13], [9, 1, 7]):
        state, outputs, read = part.new_state(2, 17, torch.float64, x.device), [], 0
        for piece in x.split(pieces, dim=1):
            outputs.append(part(piece, ForwardContext.of(piece, torch.full((2,), read)), state))
            read += piece.shape[1]
        assert distance(torch.cat(outputs, 1), whole) < EXACT
    state, lengths = part.new_state(2, 17, torch.float64, x.device), torch.tensor([9, 4])
    part(x[:, :9], ForwardContext.of(x[:, :9], num_tokens=lengths), state)
    after = torch.stack([x[0, 9:14], x[1, 4:9]])
    y = part(after, ForwardContext.of(after, lengths), state)
    assert distance(y, torch.stack([whole[0, 9:14], whole[1, 4:9]])) < EXACT


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match=r"mixer\.num_heads: 3 does not divide 64 features; use a divisor of the width"):
        spec.assign(preset("llama-tiny"), ["layers[*].mixer={kind: rg_lru, num_heads: 3}"])
