"""Encoder and decoder: which tables they read, what goes over the bridge, and that they learn."""

import pytest
import torch
from torch import Tensor

from archetype import families, spec
from archetype.errors import SpecError
from archetype.models.build import build, build_on_meta
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.state import BlockState
from archetype.parts.recurrent.module import LSTMState
from tests.helpers.examples import every
from tests.helpers.passes import forward_step, taught
from tests.helpers.weights import distance, randomize

TRANSFORMER = families.preset("transformer-tiny")
BRIDGED = families.preset("seq2seq-attention-tiny")
SOURCE = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
TARGET = torch.tensor([[2, 7, 1, 8], [2, 8, 1, 8]])
COUNTS = torch.tensor([6, 2])


def pair(model: spec.EncoderDecoder) -> EncoderDecoder:
    built = build(model)
    randomize(built)
    assert isinstance(built, EncoderDecoder)
    return built.requires_grad_(False)


def by_hand(model: EncoderDecoder, source: Tensor, target: Tensor) -> Tensor:
    """Logits of one pair without padding: the stacks' blocks one after the other."""
    embedding = model.source_embedding or model.embedding
    context = ForwardContext.of(source)
    x = embedding(source, context)
    for block in model.encoder.blocks:
        x = block(x, context)
    vectors, context = model.encoder.final_norm(x), ForwardContext.of(target)
    y = model.embedding(target, context)
    for block in model.decoder.blocks:
        y = block.mixer_norm(y + block.mixer(y, context))
        part = block.cross
        (keys, values), queries = part.keys_and_values(vectors), part.queries(y)
        weights = (queries @ keys.transpose(2, 3) * part.sizes.head_dim**-0.5).softmax(-1)
        y = block.cross_norm(y + part.o((weights @ values).transpose(1, 2).flatten(2)))
        y = block.feedforward_norm(y + block.feedforward(y, context))
    return model.decoder.final_norm(y) @ model.embedding.token.weight.T


@pytest.mark.parametrize("shared", [True, False])
def test_logits_are_the_transformers_equations(shared: bool) -> None:
    """Section 3.1: each layer norm(x + F(x)), the decoder's second content a look at the encoder's output."""
    model = pair(TRANSFORMER.replace(embedding=TRANSFORMER.embedding.replace(shared=shared)))
    assert (model.source_embedding is None) == shared
    logits = taught(model, SOURCE, TARGET)
    for row in range(2):
        assert distance(logits[row], by_hand(model, SOURCE[row : row + 1], TARGET[row : row + 1])[0]) < 1e-5


def test_the_decoder_starts_where_the_encoder_ended() -> None:
    """Of two directions: the forward one after the last token that is no padding, the backward one after the first."""
    model = pair(BRIDGED)
    state = model.new_state(SOURCE, COUNTS)
    first, second = state.layers
    assert isinstance(first, LSTMState) and isinstance(second, BlockState)
    x = model.source_embedding.token.weight[SOURCE[1:, :2]]
    _, (hidden, cell) = model.encoder.blocks[0].mixer.cell(x)
    assert distance(first.hidden[1], hidden[:, 0].flatten()) < 1e-6
    assert distance(first.cell[1], cell[:, 0].flatten()) < 1e-6


def test_a_bridged_state_may_have_another_type() -> None:
    model = pair(BRIDGED)
    state = model.new_state(SOURCE, COUNTS, dtype=torch.bfloat16)
    first, second = state.layers
    assert {first.hidden.dtype, first.cell.dtype, second.mixer.cell.dtype, second.cross.keys.dtype} == {torch.bfloat16}
    logits, state = forward_step(model, TARGET, state)
    assert 0 < distance(logits, taught(model, SOURCE, TARGET, COUNTS)) < 2**-6


def test_a_source_has_a_vocabulary_of_its_own() -> None:
    model = pair(BRIDGED.replace(source_vocab_size=11))
    assert model.source_embedding.token.weight.shape == (11, 64)
    assert model.embedding.token.weight.shape == (257, 64)
    with pytest.raises(IndexError):
        taught(model, TARGET + 11, TARGET)


def test_the_state_holds_the_source_once_and_the_targets_places() -> None:
    model = pair(TRANSFORMER)
    state = model.new_state(SOURCE, COUNTS, capacity=9)
    assert [layer.mixer.keys.shape for layer in state.layers] == [(2, 4, 9, 16)] * 2
    assert [layer.cross.keys.shape for layer in state.layers] == [(2, 4, 6, 16)] * 2
    assert model.new_state(SOURCE, capacity=10**9).capacity == 128


@pytest.mark.parametrize("length", [128, 129])
def test_learned_positions_end(length: int) -> None:
    model = pair(TRANSFORMER.replace(embedding=spec.PairEmbedding(position=spec.Learned())))
    long, short = torch.zeros(1, length, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long)
    if length == 128:
        assert taught(model, long, long).isfinite().all()
        return
    for source, target in ((long, short), (short, long)):
        with pytest.raises(SpecError, match="tokens: 129 tokens exceed the 128 learned positions"):
            taught(model, source, target)


def test_names_of_parameters_are_the_file_format() -> None:
    names = list(build_on_meta(families.preset("t5-tiny")).state_dict())
    assert [name for name in names if ".blocks." not in name] == [
        "embedding.token.weight", "encoder.position_bias.weight", "encoder.final_norm.weight",
        "decoder.position_bias.weight", "decoder.final_norm.weight",
    ]  # fmt: skip
    assert [name for name in names if name.startswith("decoder.blocks.1.")] == [
        f"decoder.blocks.1.{name}.weight"
        for name in ("mixer_norm", "mixer.q", "mixer.k", "mixer.v", "mixer.o", "cross_norm", "cross.q", "cross.k",
                     "cross.v", "cross.o", "feedforward_norm", "feedforward.up", "feedforward.down")
    ]  # fmt: skip
    names = list(build_on_meta(BRIDGED).state_dict())
    assert [name for name in names if ".blocks." not in name] == [
        "embedding.token.weight", "source_embedding.token.weight", "lm_head.weight", "lm_head.bias",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rate", "steps"),
    every(
        2,
        (
            pytest.param(*one)
            for one in [
                ("transformer-tiny", 5e-3, 40),
                ("seq2seq-attention-tiny", 1e-2, 60),
                ("seq2seq-lstm-tiny", 1e-2, 100),
            ]
        ),
    ),
)
def test_it_learns_to_say_a_source_again(name: str, rate: float, steps: int) -> None:
    """Without a view of the source nothing could be learned: the digits are random. All parameters are reached."""
    preset = families.preset(name)
    model = build_on_meta(preset).to_empty(device="cpu")
    initialize(model, preset.initialization, preset.num_layers, seed=0)
    source = torch.randint(1, 6, (64, 3), generator=torch.Generator().manual_seed(0))
    target = torch.cat((torch.zeros(64, 1, dtype=torch.long), source), 1)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    losses = []
    for number in range(steps):
        logits = taught(model, source, target[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if number == 0:
            assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 1.0 < 1.6 < losses[0]  # five digits alike are 1.61 nats
