"""Evaluation of classification and regression models on labelled texts, tokens and images."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from archetype.convert.image_processor import ImageProcessor
from archetype.data.example_counts import ALL_WHOLE, ExampleCounts
from archetype.data.images import class_names, open_images
from archetype.data.labelled_words import FIELDS, NO_CLASS, labelled_rows, wrong_words
from archetype.data.records import TEXT_AND_LABEL, read_records
from archetype.errors import DataError
from archetype.evaluation.class_report import ClassReport, ValueReport, class_report, value_report
from archetype.generate.encoder import batches_by_length, classify_pictures, classify_texts
from archetype.generate.token_classes import names_of_classes
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.vision.module import VisionEncoder
from archetype.tokenizers import Tokenizer


def evaluate_texts(
    model: Encoder | Decoder | EncoderDecoder,
    tokenizer: Tokenizer,
    file: Path,
    labels: Sequence[str] = (),
    start: int | None = None,
) -> ClassReport | ValueReport:
    """Evaluate a classification or regression model on labelled texts, which are truncated to its context.

    Args:
        model: model in evaluation mode.
        file: JSON lines or CSV with fields text and label.
        labels: names of the model's classes (default: their indices).
        start: token with which an encoder-decoder's targets start (default: the end token).

    Raises:
        SpecError: the model has no class head.
        DataError: a line is invalid, or a label is not one of the model's classes.
    """
    records = read_records(file, TEXT_AND_LABEL)
    expected = [str(record["label"]) for record in records]
    answers, counts = classify_texts(model, tokenizer, [record["text"] for record in records], start, truncate=True)
    if answers.shape[1] == 1:
        return value_report([_number(label, file) for label in expected], answers[:, 0].tolist(), counts)
    return _report(answers, expected, labels, file, counts)


@torch.inference_mode()
def evaluate_tokens(
    model: Encoder | Decoder, tokenizer: Tokenizer, file: Path, labels: Sequence[str] = ()
) -> ClassReport:
    """Evaluate a token classifier on words, each of which is classified at its first token.

    Takes the same arguments as `evaluate_texts`, but a file with lines {"tokens": [...], "labels": [...]}.
    """
    names, records = names_of_classes(model, labels), read_records(file, FIELDS, fault=wrong_words)
    class_index = _class_indices(names, {str(label) for record in records for label in record["labels"]}, file)
    examples, num_cut = labelled_rows(records, tokenizer, model.spec.context_length, class_index)
    expected, answers = list[Tensor](), list[Tensor]()
    for indices, tokens, lengths in batches_by_length(model, [ids.tolist() for ids, _ in examples]):
        logits = model(tokens, num_tokens=lengths).logits  # (B, T, Y)
        for index, row_logits in zip(indices, logits, strict=True):
            classes = torch.from_numpy(examples[index][1]).long()
            is_first = classes != NO_CLASS  # first tokens of words
            expected.append(classes[is_first])
            answers.append(row_logits[: len(classes)][is_first.to(row_logits.device)].float().softmax(-1).cpu())
    # words whose first token was truncated, or that have no token
    num_words = sum(len(record["labels"]) for record in records) - sum(map(len, expected))
    counts = ExampleCounts(model.spec.context_length, num_cut, num_words=num_words)
    expected_names = [names[predicted] for predicted in torch.cat(expected).tolist()]
    return _report(torch.cat(answers), expected_names, names, file, counts)


def evaluate_images(
    model: VisionEncoder, path: Path, labels: Sequence[str] = (), processor: ImageProcessor | None = None
) -> ClassReport:
    """Evaluate an image classifier on a .npz file, or on a folder with a subfolder per class.

    Args:
        labels: names of the model's classes and of the subfolders (default: class indices).
    """
    images = open_images(path, *model.spec.image_shape, processor)
    indices = images.labels.tolist()
    if path.is_dir() and labels:
        names = class_names(path)
        expected = [names[index] for index in indices]
    else:
        expected = [labels[index] if index < len(labels) else str(index) for index in indices]
    return _report(classify_pictures(model, torch.from_numpy(images.images)), expected, labels, path)


def _report(
    answers: Tensor, expected: list[str], labels: Sequence[str], path: Path, counts: ExampleCounts = ALL_WHOLE
) -> ClassReport:
    # answers: class probabilities, (B, Y)
    names = tuple(labels) or tuple(map(str, range(answers.shape[1])))
    class_index = _class_indices(names, {*expected}, path)
    targets = torch.tensor([class_index[name] for name in expected], device=answers.device)
    # mean cross-entropy in nats, from probabilities
    loss = float(-answers.double().gather(1, targets[:, None]).log().mean())
    return class_report(expected, [names[predicted] for predicted in answers.argmax(1).tolist()], loss, counts)


def _class_indices(names: Sequence[str], expected: set[str], place: Path) -> dict[str, int]:
    if unknown := sorted(expected - {*names}):
        cause = f"{unknown[0]!r:.40} is not one of the model's classes, {', '.join(names):.100}"
        raise DataError(str(place), cause, "name the classes as in training")
    return {name: index for index, name in reversed(list(enumerate(names)))}  # the first index of a repeated name


def _number(label: str, file: Path) -> float:
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(str(file), f"the label {label!r:.40} is not a number", "use numbers: the model is a regressor")
    return value
