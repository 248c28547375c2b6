"""The vision encoder: patches in their order, what stands for the picture, and that it learns."""

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.errors import SpecError
from archetype.models.build import build_on_meta
from archetype.models.initialization import initialize
from archetype.models.vision.module import VisionEncoder
from tests.helpers.digits import load_digits
from tests.helpers.passes import logits_or_hidden
from tests.helpers.weights import distance, randomize

EXACT = 1e-5  # of the largest magnitude, in float32
WRONG = 1e-3
BLOCK = spec.Block(
    wiring=spec.PreNorm(norm=spec.LayerNorm()),
    mixer=spec.Attention(num_heads=2, bias=True),
    feedforward=spec.MLP(d_ff=24, activation="gelu", bias=True),
)
BASE = spec.VisionEncoder(
    image_size=6, patch_size=2, num_channels=3, d_model=8, layers=(BLOCK,) * 2, final_norm=spec.LayerNorm(),
    head=spec.ClassificationHead(num_classes=5),
)  # fmt: skip
UNPLACED = BASE.replace(class_token=False, embedding=spec.Embedding())


def drawn(encoder: spec.VisionEncoder) -> VisionEncoder:
    model = build_on_meta(encoder).to_empty(device="cpu")
    assert isinstance(model, VisionEncoder)
    randomize(model)
    return model.requires_grad_(False)


def initialized(encoder: spec.VisionEncoder) -> VisionEncoder:
    model = build_on_meta(encoder).to_empty(device="cpu")
    assert isinstance(model, VisionEncoder)
    initialize(model, encoder.initialization, encoder.num_layers, seed=0)
    return model


def pictures(batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_patches_are_what_a_convolution_of_their_stride_sees() -> None:
    embedding = drawn(UNPLACED).embedding
    kernel = embedding.patch.weight.view(8, 3, 2, 2)
    expected = torch.nn.functional.conv2d(pictures(), kernel, embedding.patch.bias, stride=2)
    assert distance(embedding(pictures()), expected.flatten(2).transpose(1, 2)) < EXACT


@pytest.mark.parametrize("position", [spec.Learned(), spec.Sinusoidal(), spec.NoPosition()], ids=lambda p: p.kind)
def test_the_class_token_stands_first_and_the_sum_is_scaled_placed_and_normed(position: spec.EmbeddingPosition) -> None:
    embedding = spec.Embedding(position=position, scale=3.0, norm=spec.LayerNorm())
    part = drawn(BASE.replace(embedding=embedding)).embedding
    bare = drawn(UNPLACED).embedding
    bare.load_state_dict({name: value for name, value in part.state_dict().items() if "patch" in name})
    tokens = torch.cat((part.class_token.expand(2, 1, 8), bare(pictures())), dim=1)
    places = part.position(torch.arange(10)[None])
    torch.testing.assert_close(part(pictures()), part.norm(3.0 * tokens + places))
    assert part(pictures()).shape == (2, 10, 8)


def test_embedding_dropout_acts_in_training_only() -> None:
    part = drawn(BASE.replace(embedding=spec.Embedding(dropout=0.5))).embedding
    assert torch.equal(part(pictures()), part(pictures()))
    assert (part.train()(pictures(20)) == 0).float().mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("pooler", [True, False])
def test_classes_are_those_of_the_vector_that_stands_for_the_picture(class_token: bool, pooler: bool) -> None:
    model = drawn(BASE.replace(class_token=class_token, pooler=pooler))
    vectors = model(pictures()).hidden
    x = vectors[:, 0] if class_token else vectors.mean(1)
    if model.pooler is not None:
        x = torch.tanh(x @ model.pooler.weight.T + model.pooler.bias)
    expected = x @ model.classifier.weight.T + model.classifier.bias
    assert distance(logits_or_hidden(model(pictures())), expected) < EXACT


def test_without_a_head_the_vectors_are_given() -> None:
    model = drawn(BASE.replace(head=spec.NoHead()))
    assert model(pictures()).logits is None
    assert logits_or_hidden(model(pictures())).shape == (2, 10, 8)


def test_every_patch_sees_every_other() -> None:
    """Unlike in a decoder, also the later ones."""
    model = drawn(BASE.replace(head=spec.NoHead()))
    changed = pictures()
    changed[:, :, 5, 5] += 1.0
    after, before = (logits_or_hidden(model(images)) for images in (changed, pictures()))
    moved = (after - before).abs().amax(dim=(0, 2))
    assert (moved > WRONG).all()


def shuffled(images: Tensor, order: list[int]) -> Tensor:
    """The pictures with their nine patches in another order."""
    parts = [part for row in images.split(2, dim=2) for part in row.split(2, dim=3)]
    parts = [parts[place] for place in order]
    return torch.cat([torch.cat(parts[start : start + 3], dim=3) for start in (0, 3, 6)], dim=2)


def test_without_positions_a_picture_is_a_set_of_patches() -> None:
    order = [4, 0, 8, 2, 1, 7, 3, 6, 5]
    other = shuffled(pictures(), order)
    model = drawn(UNPLACED)
    assert distance(model(other).hidden, model(pictures()).hidden[:, order]) < EXACT
    assert distance(logits_or_hidden(model(other)), logits_or_hidden(model(pictures()))) < EXACT
    assert distance(drawn(BASE)(other).hidden, drawn(BASE)(pictures()).hidden) > WRONG


def test_a_batch_as_each_picture_alone() -> None:
    model = drawn(BASE)
    both = logits_or_hidden(model(pictures()))
    for row in range(2):
        assert distance(both[row], logits_or_hidden(model(pictures()[row : row + 1]))[0]) < EXACT


@pytest.mark.parametrize(
    ("shape", "size"), [((2, 3, 6, 8), "3 x 6 x 8"), ((2, 1, 6, 6), "1 x 6 x 6"), ((2, 3, 8, 8), "3 x 8 x 8")]
)
def test_pictures_of_another_size_are_refused(shape: tuple[int, ...], size: str) -> None:
    message = f"images: have shape {size}, but the model needs 3 x 6 x 6; resize or convert them"
    with pytest.raises(SpecError) as caught:
        drawn(BASE)(torch.zeros(shape))
    assert str(caught.value) == message


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_computes_in_the_type_it_is_built_in(dtype: torch.dtype) -> None:
    model = drawn(BASE).to(dtype)
    assert logits_or_hidden(model(pictures())).dtype == dtype


def test_autocast_changes_little() -> None:
    model = drawn(BASE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_outputs = logits_or_hidden(model(pictures()))
    assert 0 < distance(autocast_outputs, logits_or_hidden(model(pictures()))) < 5e-2


def test_names_of_parameters_are_the_file_format() -> None:
    names = list(drawn(BASE.replace(pooler=True, embedding=BASE.embedding.replace(norm=spec.RMSNorm()))).state_dict())
    assert [name for name in names if not name.startswith("blocks.")] == [
        "final_norm.weight", "final_norm.bias", "embedding.class_token", "embedding.patch.weight",
        "embedding.patch.bias", "embedding.position.weight", "embedding.norm.weight", "pooler.weight", "pooler.bias",
        "classifier.weight", "classifier.bias",
    ]  # fmt: skip


def test_the_class_token_is_drawn_as_a_table_is() -> None:
    wide = BASE.replace(d_model=64, initialization=spec.NormalInitialization(std=0.5))
    token = initialized(wide).embedding.class_token
    assert token.mean().abs() < 0.3
    assert 0.4 < token.std() < 0.6


def test_gradients_reach_every_parameter_and_training_reduces_the_loss() -> None:
    pictures, digits = load_digits()
    images, labels = torch.tensor(pictures[:256, None]).float(), torch.tensor(digits[:256])
    layer = BLOCK.replace(feedforward=spec.MLP(d_ff=64, activation="gelu", bias=True))
    encoder = BASE.replace(
        image_size=8,
        num_channels=1,
        d_model=32,
        layers=(layer,),
        pooler=True,
        head=spec.ClassificationHead(num_classes=10),
    )
    model, losses = initialized(encoder), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(logits_or_hidden(model(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        if not losses:
            # a key's bias moves all of a query's scores alike, which softmax does not see
            unreached = {name for name, parameter in model.named_parameters() if not parameter.grad.any()}
            assert unreached <= {"blocks.0.mixer.k.bias"}
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
