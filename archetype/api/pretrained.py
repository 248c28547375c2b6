"""Open the models that training starts from and learns from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.api.text_embedder import TextEmbedder
from archetype.api.transplanting import transplant
from archetype.errors import CheckpointError, SpecError
from archetype.io import atomic
from archetype.models.build import Model
from archetype.models.spec import ModelSpec
from archetype.surgery.report import REPORT, read_record, record_from
from archetype.tokenizers import Tokenizer
from archetype.training.pretrained import Pretrained
from archetype.training.teacher.spec import Teacher
from archetype.weights.finite import check_numbers
from archetype.weights.packed import is_packed


def open_pretrained(folder: Path) -> Pretrained:
    """Load a model to start training from.

    Raises:
        CheckpointError: the model's matrices are packed, or an entry is NaN.
    """
    lm = load(folder, mapped=True)
    if is_packed(lm.model):
        cause = "has packed matrices, which cannot be trained"
        raise CheckpointError(str(folder), cause, "start from the unpacked model")
    check_numbers(lm.model, str(folder))
    return _pretrained(str(folder), lm, read_record(folder))


def _pretrained(
    source: str, lm: LanguageModel, record: dict[str, Any] | None, notes: tuple[str, ...] = ()
) -> Pretrained:
    def save(
        to: Path, model: Model, tokenizer: Tokenizer | None, labels: tuple[str, ...], pictures: dict[str, Any] | None
    ) -> None:
        pictures = pictures or lm.image_processor
        replace(lm, spec=model.spec, model=model, tokenizer=tokenizer, labels=labels, image_processor=pictures).save(to)
        if record is not None:
            atomic.write_json(to / REPORT, record)

    def change(spec: ModelSpec, seed: int) -> Pretrained:
        changed, report = transplant(lm, spec, seed=seed, proves=False)
        return _pretrained(source, changed, record_from(source, report), tuple(report.lines()))

    return Pretrained(
        source,
        lm.model,
        lm.tokenizer,
        lm.labels,
        lm.template,
        lm.family,
        lm.open_image_processor,
        lm.sentence_settings if isinstance(lm, TextEmbedder) and lm.spec.head.embeds else None,
        save,
        change,
        record,
        notes,
    )


def open_teacher(teacher: Teacher, device: torch.device) -> tuple[Model, Tokenizer | None]:
    """Load the teacher of a recipe, packed if the recipe says so."""
    try:
        lm = load(teacher.model, device=device, weights=teacher.weights)
    except SpecError as error:
        if error.place == "weights":
            raise SpecError("teacher.weights", error.cause, error.remedy) from None
        raise
    check_numbers(lm.model, f"teacher.model: {teacher.model}")
    return lm.model, lm.tokenizer
