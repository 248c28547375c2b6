"""What reads a whole text or picture: rows apart, padding as nothing, and without positions no order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archetype import spec
from archetype.models.build import build
from archetype.models.encoder.module import Encoder
from archetype.models.vision.module import VisionEncoder
from tests.helpers.combinations import EXACT, padded, rows_of, text
from tests.helpers.examples import examples
from tests.helpers.passes import logits_or_hidden
from tests.helpers.strategies import CONTEXT, VOCABULARY, encoders, vision_encoders
from tests.helpers.weights import distance, randomize

LENGTHS = st.lists(st.integers(1, CONTEXT), min_size=2, max_size=4)
EXAMPLES = examples(8)
WRONG = 1e-3  # what every mistake exceeds


def model_of(drawn: spec.Encoder | spec.VisionEncoder) -> Encoder | VisionEncoder:
    """The model of a specification, every tensor random, ready to evaluate."""
    model = build(drawn).double()
    randomize(model)
    return model.requires_grad_(False)


def encoder(mixer: spec.Mixer, **changes: object) -> spec.Encoder:
    """Two layers of a mixer, with vectors as the result."""
    block = spec.Block(
        wiring=spec.PreNorm(norm=spec.LayerNorm()), mixer=mixer, feedforward=spec.MLP(d_ff=16, activation="gelu")
    )
    base = spec.Encoder(
        vocab_size=VOCABULARY,
        context_length=CONTEXT,
        d_model=8,
        layers=(block, block),
        final_norm=spec.NoNorm(),
        head=spec.NoHead(),
    )
    return base.replace(**changes)


@pytest.mark.shapes
@given(encoders(), LENGTHS)
@EXAMPLES
def test_a_batch_as_each_row_alone(drawn: spec.Encoder, lengths: list[int]) -> None:
    model, rows, sizes = model_of(drawn), rows_of(lengths), torch.tensor(lengths)
    together, vectors = logits_or_hidden(model(padded(rows), sizes)), model(padded(rows), sizes).hidden
    pooled = model.pooled(vectors, sizes)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        expected = model(row[None]).hidden
        assert distance(vectors[index, :length], expected[0, :length]) < EXACT
        assert distance(pooled[index], model.pooled(expected)[0]) < EXACT
        answer = logits_or_hidden(model(row[None]))[0]
        ours = together[index]
        if answer.dim() == 2:
            ours, answer = ours[:length], answer[:length]
        assert distance(ours, answer) < EXACT


@given(encoders(), LENGTHS, st.integers(0, VOCABULARY - 1))
@EXAMPLES
def test_what_stands_in_the_padding_changes_nothing(drawn: spec.Encoder, lengths: list[int], filler: int) -> None:
    model, rows, sizes = model_of(drawn), rows_of(lengths), torch.tensor(lengths)
    before, after = (model(padded(rows, CONTEXT, token), sizes).hidden for token in (7, filler))
    for index, length in enumerate(lengths):
        assert distance(before[index, :length], after[index, :length]) < EXACT
    assert before.isfinite().all()
    assert after.isfinite().all()


@pytest.mark.parametrize("mixer", [spec.Attention(num_heads=2), spec.Attention(num_heads=2, score="additive")])
@pytest.mark.parametrize("shift", [1, 3])
def test_without_positions_an_encoder_is_permutation_equivariant(mixer: spec.Mixer, shift: int) -> None:
    model, tokens = model_of(encoder(mixer)), text(2, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(shift))
    outputs = logits_or_hidden(model(tokens))
    assert distance(logits_or_hidden(model(tokens[:, order])), outputs[:, order]) < EXACT
    # the same tokens in the padded part of a text: their order is nothing to the others either
    longer = torch.cat((tokens[:, order], text(2, 3)), 1)
    assert distance(logits_or_hidden(model(longer, torch.tensor([9, 9])))[:, :9], outputs[:, order]) < EXACT


ROTARY = spec.Rotary()
PLACED = {
    "learned": encoder(spec.Attention(num_heads=2), embedding=spec.Embedding(position=spec.Learned())),
    "rotary": encoder(spec.Attention(num_heads=2, position=ROTARY)),
    "alibi": encoder(spec.Attention(num_heads=2, position=spec.Alibi())),
    "relative bias": encoder(spec.Attention(num_heads=2, position=spec.RelativeBias())),
    "window": encoder(spec.Attention(num_heads=2, pattern=spec.Window(size=4))),
    "lstm": encoder(spec.LSTM(bidirectional=True)),
    "mamba": encoder(spec.Mamba()),
    "latent": encoder(
        spec.LatentAttention(num_heads=2, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_with_positions_it_is_not(name: str) -> None:
    model, tokens = model_of(PLACED[name]), text(1, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    moved, still = (logits_or_hidden(model(some)) for some in (tokens[:, order], tokens))
    assert distance(moved, still[:, order]) > WRONG


@pytest.mark.parametrize("name", [name for name in PLACED if name not in ("mamba", "window")])
@pytest.mark.parametrize("place", [0, 8])
def test_every_position_sees_both_ends(name: str, place: int) -> None:
    model, tokens = model_of(PLACED[name]), text(1, 9)
    changed = tokens.clone()
    changed[0, place] = (changed[0, place] + 1) % VOCABULARY
    differences = (logits_or_hidden(model(changed)) - logits_or_hidden(model(tokens))).abs().amax(-1)[0]
    assert (differences > 1e-5).all()


@given(encoders().filter(lambda drawn: drawn.embedding.num_token_types > 1))
@EXAMPLES
def test_absent_types_are_all_the_first(drawn: spec.Encoder) -> None:
    model, tokens = model_of(drawn), text(2, 6)
    none, first = model(tokens).hidden, model(tokens, token_types=torch.zeros_like(tokens)).hidden
    assert distance(none, first) < EXACT


@pytest.mark.shapes
@given(vision_encoders())
@EXAMPLES
def test_pictures_do_not_see_each_other(drawn: spec.VisionEncoder) -> None:
    model, images = model_of(drawn), pictures(drawn, 3)
    together = logits_or_hidden(model(images))
    for index in range(3):
        assert distance(together[index], logits_or_hidden(model(images[index : index + 1]))[0]) < EXACT


def test_without_positions_the_mean_of_patches_knows_no_order() -> None:
    """Patches change places in the picture: nothing is left of where they stood."""
    block = encoder(spec.Attention(num_heads=2)).layers[0]
    drawn = spec.VisionEncoder(
        image_size=8, patch_size=2, num_channels=1, d_model=8, class_token=False, embedding=spec.Embedding(),
        layers=(block,), final_norm=spec.NoNorm(), head=spec.ClassificationHead(num_classes=3),
    )  # fmt: skip
    images = pictures(drawn, 2)
    turned = images.unflatten(3, (4, 2)).roll(1, 3).flatten(3)
    assert not torch.equal(images, turned)
    assert distance(model_of(drawn)(images).logits, model_of(drawn)(turned).logits) < EXACT
    placed = model_of(drawn.replace(embedding=spec.Embedding(position=spec.Learned())))
    assert distance(placed(images).logits, placed(turned).logits) > WRONG


def pictures(drawn: spec.VisionEncoder, number: int) -> Tensor:
    """Random pictures of the size that a model takes."""
    shape = number, drawn.num_channels, drawn.image_size, drawn.image_size
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
