"""Pretrained models to start training from. Their weights can be copied to a model with another head or more tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.convert.image_processor import ImageProcessor
from archetype.convert.sentence_transformers.files import SentenceSettings
from archetype.convert.source import open_spec
from archetype.families.family import Family
from archetype.models.build import Model
from archetype.models.spec import ModelSpec
from archetype.nn.parameter_names import train_only
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.training.recipe import Recipe
from archetype.training.stages import names_trained, stage_at

# embedding tables without one row per token
NOT_TOKENS = ("position", "token_type", "class_token", "distillation_token")


@dataclass(frozen=True)
class Pretrained:
    """Pretrained model that training starts from.

    Attributes:
        source: path or name that the model was loaded from.
        labels: class names of the model's head.
        family: published family that the model was loaded from.
        image_processor: returns the model's image processor, if any.
        sentence: preprocessing of texts to embed; None unless the model embeds texts.
        save: writes a run directory with all files of the source, but with the given model, tokenizer and labels, and,
            unless None, the given contents of preprocessor_config.json.
        change: returns the model with another specification and its weights as far as they fit, given the seed of new
            weights.
        transplant: record of the transplant that the model comes from, if any.
        notes: lines about a transplant at the start of this run.
    """

    source: str
    model: Model
    tokenizer: Tokenizer | None
    labels: tuple[str, ...]
    template: ChatTemplate | None
    family: Family | None
    image_processor: Callable[[], ImageProcessor | None]
    sentence: SentenceSettings | None
    save: Callable[[Path, Model, Tokenizer | None, tuple[str, ...], dict[str, Any] | None], None]
    change: Callable[[ModelSpec, int], "Pretrained"]
    transplant: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def for_recipe(self, recipe: Recipe) -> "Pretrained":
        """Return the model with the specification of a recipe, changed by a transplant if it is another one."""
        spec = open_spec(recipe.spec)
        return self if spec == self.model.spec else self.change(spec, recipe.seed)


@torch.no_grad()
def take_over(
    model: Model, before: Model, num_tokens: int | None = None, keeps_head: bool = True
) -> tuple[set[str], set[str]]:
    """Copy the tensors that two models share from the pretrained model to the new model.

    Rows of new tokens in embedding and head become the mean of the old rows.

    Args:
        model: randomly initialized model, which is changed in place.
        before: pretrained model.
        num_tokens: the tokenizer's vocabulary size before tokens were added (default: no tokens were added).
        keeps_head: whether the class head keeps its classes.

    Returns:
        Names of the tensors that stay random, and of the tensors with rows for new tokens.
    """
    trained, random, wider = before.state_dict(), set(), set()
    for name, tensor in model.state_dict().items():
        old = trained.get(name)
        # a class head with other classes has rows of another meaning
        if old is None or old.shape[1:] != tensor.shape[1:] or (name.startswith("classifier.") and not keeps_head):
            random.add(name)
        elif (
            name.startswith(("embedding", "source_embedding", "lm_head"))
            and not any(part in name for part in NOT_TOKENS)
            and (
                num_tokens is not None
                and len(tensor) > num_tokens
                and len(old) == getattr(before.spec, "vocab_size", None)
            )
        ):
            tensor[: len(old)] = old
            tensor[num_tokens:] = old[:num_tokens].mean(0)  # also rows that padded the table beyond the tokenizer
            wider.add(name)
        elif old.shape == tensor.shape:
            tensor.copy_(old)
        else:
            random.add(name)
    return random, wider


def set_trainable(model: Model, recipe: Recipe) -> None:
    """Freeze the parameters that no step trains: without stages, those that the recipe's patterns do not match."""
    last, _ = stage_at(recipe.stages, recipe.steps - 1)
    names: set[str] = set()
    for of_stage in (names_trained(model, recipe, index) for index in range(last + 1)):
        if of_stage is None:
            return  # a stage trains everything
        names |= of_stage
    train_only(model, names)
