"""Learning from pairs, and from images: what is in the loss, and what is not."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from archetype.api import loading
from archetype.api.pretrained import open_pretrained
from archetype.data.images import Images, read_image_folder
from archetype.data.pairs import Pairs
from archetype.families.original_transformer import transformer
from archetype.families.seq2seq import seq2seq
from archetype.families.vit import vit
from archetype.models.build import build
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.training.datasets import ImageData
from archetype.training.evaluate import evaluate
from archetype.training.loop import run
from archetype.training.objectives.image_class import ImageClass, ImageClassObjective
from archetype.training.objectives.sequence_to_sequence import SequenceToSequenceObjective
from archetype.training.optimizers import AdamW
from archetype.training.setup import start
from tests.helpers.passes import taught
from tests.helpers.recipes import recipes
from tests.helpers.weights import randomize
from tests.unit.training.test_text_objectives import held_out

VOCABULARY = 11
SPECS = {
    "transformer": transformer(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=VOCABULARY, context_length=16),
    "lstm with attention": seq2seq(num_layers=1, d_model=8, vocab_size=VOCABULARY, context_length=16, attention=True),
}


def pair_objective(smoothing: float = 0.0, batch_size: int = 4) -> SequenceToSequenceObjective:
    drawn = np.random.default_rng(0)

    def text(low: int) -> np.ndarray:
        return drawn.integers(VOCABULARY, size=drawn.integers(low, 9)).astype(np.int32)

    def some(count: int) -> Pairs:
        return Pairs([text(1) for _ in range(count)], [text(2) for _ in range(count)])

    return SequenceToSequenceObjective(some(24), some(10), "", batch_size, 0, smoothing)


@pytest.fixture(params=SPECS)
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    encoder_decoder = randomize(build(SPECS[request.param]))
    assert isinstance(encoder_decoder, EncoderDecoder)
    return encoder_decoder


def losses_alone(model: EncoderDecoder, pairs: Pairs) -> list[torch.Tensor]:
    """Of each pair, without any padding, the losses of its tokens."""
    losses = []
    for source, target in zip(pairs.sources, pairs.targets, strict=True):
        tokens = torch.from_numpy(target).long()[None]
        logits = taught(model, torch.from_numpy(source).long()[None], tokens[:, :-1])
        losses.append(cross_entropy(logits[0], tokens[0, 1:], reduction="none"))
    return losses


@torch.no_grad()
def test_the_loss_of_a_padded_batch_is_the_mean_over_the_tokens_of_each_pair_alone(model: EncoderDecoder) -> None:
    examples = pair_objective()
    for batch, first in zip(held_out(examples), range(0, 10, 4), strict=True):
        chosen = slice(first, first + 4)
        alone = torch.cat(losses_alone(model, Pairs(*(side[chosen] for side in sides(examples)))))
        assert len({int(count) for count in batch[3]}) > 1, "nothing is padded"
        output = examples.compute_loss(model, batch)
        assert output.loss.item() == pytest.approx(alone.mean().item(), rel=1e-5)
        assert output.num_targets == len(alone)
    every = torch.cat(losses_alone(model, examples.validation))
    measured = evaluate(model, examples, "float32")
    assert measured is not None
    assert measured.loss == pytest.approx(every.mean().item(), rel=1e-5)
    assert measured.count == len(every)
    assert measured.bits_per_byte is None


def sides(examples: SequenceToSequenceObjective) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return examples.validation.sources, examples.validation.targets


@torch.no_grad()
def test_what_stands_in_the_padding_changes_nothing(model: EncoderDecoder) -> None:
    examples = pair_objective()
    source, source_counts, target, num_tokens = held_out(examples)[0]
    expected = examples.compute_loss(model, (source, source_counts, target, num_tokens))
    for tokens, real in ((source, source_counts), (target, num_tokens)):
        tokens[torch.arange(tokens.shape[1]) >= real[:, None]] = VOCABULARY - 1
    output = examples.compute_loss(model, (source, source_counts, target, num_tokens))
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-5, atol=0)
    assert (output.num_targets, output.num_correct) == (expected.num_targets, expected.num_correct)


@torch.no_grad()
def test_labels_are_smoothed_in_training_only(model: EncoderDecoder) -> None:
    """Szegedy 2015, equation 9: a share of the target is the mean over the vocabulary."""
    batch = held_out(pair_objective())[0]
    sharp, smooth = pair_objective(0.0), pair_objective(0.3)
    assert torch.equal(sharp.compute_loss(model, batch).loss, smooth.compute_loss(model, batch).loss)
    model.train()
    source, source_counts, target, num_tokens = batch
    logs = taught(model, source, target[:, :-1], source_counts, num_tokens - 1).log_softmax(-1)
    real = torch.arange(logs.shape[1]) < (num_tokens - 1)[:, None]
    uniform = -logs.mean(-1)[real].mean()
    expected = 0.7 * sharp.compute_loss(model, batch).loss + 0.3 * uniform
    torch.testing.assert_close(smooth.compute_loss(model, batch).loss, expected)
    assert abs(expected - sharp.compute_loss(model, batch).loss) > 1e-3


def test_a_trained_vision_encoder_gets_a_head_for_the_classes_of_a_folder(tmp_path: Path) -> None:
    """Three classes by number, then two by name, then two others: what is below the head goes on, and is learned."""
    recipe, device = recipes(tmp_path)["images"].replace(steps=40), torch.device("cpu")
    run(start(tmp_path / "base", recipe.replace(steps=2), device), lambda event: None)
    drawn = np.random.default_rng(0)
    for folder, classes in (("first", ("dark", "light")), ("second", ("black", "white"))):
        for name, level in zip(classes, (40, 200), strict=True):
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(16):
                pixels = (level + drawn.integers(-30, 30, (9, 11))).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / folder / name / f"{number}.png")
        before = open_pretrained(tmp_path / ("base" if folder == "first" else "tuned first"))
        tuned = recipe.replace(data=ImageData(file=str(tmp_path / folder)), optimizer=AdamW(learning_rate=1e-2))
        state = start(tmp_path / f"tuned {folder}", tuned, device, pretrained=before)
        trained, weights = before.model.state_dict(), state.model.state_dict()
        assert {name for name in weights if not torch.equal(weights[name], trained.get(name, torch.zeros(())))} == {
            name for name in weights if name.startswith("classifier.")
        }
        assert "its weights except classifier, which are random" in state.notes[0]
        run(state, lambda event: None)
        lm = loading.load(tmp_path / f"tuned {folder}")
        assert lm.labels == classes
        pictures = read_image_folder(tmp_path / folder, 1, 8, lm.open_image_processor())
        assert lm.classify(torch.from_numpy(pictures.images)).argmax(1).tolist() == pictures.labels.tolist()
    same = start(tmp_path / "same", tuned, device, pretrained=open_pretrained(tmp_path / "tuned second"))
    assert all(torch.equal(tensor, lm.model.state_dict()[name]) for name, tensor in same.model.state_dict().items())


def image_objective(smoothing: float = 0.0) -> ImageClassObjective:
    drawn = np.random.default_rng(0)

    def some(count: int) -> Images:
        pixels = drawn.random((count, 1, 4, 4), dtype=np.float32)
        return Images(pixels, drawn.integers(3, size=count))

    return ImageClassObjective(some(20), some(10), 4, 0, ImageClass(label_smoothing=smoothing))


@torch.no_grad()
def test_the_loss_of_images_is_that_of_their_classes() -> None:
    sizes = dict(num_layers=1, d_model=8, num_heads=2, patch_size=2, image_size=4, num_channels=1, num_classes=3)
    model = randomize(build(vit(**sizes)))  # type: ignore[arg-type]
    examples = image_objective()
    logits = model(torch.from_numpy(examples.validation.images)).logits
    labels = torch.from_numpy(examples.validation.labels)
    evaluation = evaluate(model, examples, "float32")
    assert evaluation is not None
    assert evaluation.loss == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
    assert evaluation.accuracy == pytest.approx((logits.argmax(-1) == labels).float().mean().item())
    assert evaluation.count == 10
    batch = examples.batch(0)
    sharp, smooth = (image_objective(share).compute_loss(model, batch).loss for share in (0.0, 0.3))
    assert torch.equal(sharp, smooth)
    model.train()
    sharp, smooth = (image_objective(share).compute_loss(model, batch).loss for share in (0.0, 0.3))
    assert abs(sharp - smooth) > 1e-3
