"""A trained model to go on from, and what becomes of it where the new one has another head or more tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.convert.image_processor import ImageProcessor
from archetype.convert.sentence_transformers.files import SentenceSettings
from archetype.families.family import Family
from archetype.models.build import Model
from archetype.nn.parameter_names import names_matching, train_only
from archetype.parts.adapter.module import adapter_parameters
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.training.recipe import Recipe

# tables of an embedding that have no row for each token
NOT_TOKENS = ("position", "token_type", "class_token", "distillation_token")


@dataclass(frozen=True)
class Pretrained:
    """A model to go on from.

    Attributes:
        source: where it was loaded from.
        labels: names of the classes of its head.
        template: its chat template.
        family: the published family that it was loaded from.
        image_processor: how pictures become its numbers.
        sentence: what is done to a text before it is embedded; None for a model without a head for that.
        save: writes all that it came with as a run directory, with this model, tokenizer and labels for its own, and
            other contents of preprocessor_config.json where there are some.
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


@torch.no_grad()
def take_over(
    model: Model, before: Model, num_tokens: int | None = None, keeps_head: bool = True
) -> tuple[set[str], set[str]]:
    """Give a model the weights of another, as far as both have them.

    The rows of tokens that are new, in the embedding and in the head, are the mean of those before them.

    Args:
        model: random weights, changed in place.
        before: the trained model.
        num_tokens: that the tokenizer had before it got more (absent: it got none).
        keeps_head: whether its head for classes names the same ones.

    Returns:
        The names of the tensors that stay random, and of those that have rows for new tokens.
    """
    trained, random, wider = before.state_dict(), set(), set()
    for name, tensor in model.state_dict().items():
        old = trained.get(name)
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
            tensor[num_tokens:] = old[:num_tokens].mean(0)
            wider.add(name)
        elif old.shape == tensor.shape:
            tensor.copy_(old)
        else:
            random.add(name)
    return random, wider


def set_trainable(model: Model, recipe: Recipe) -> None:
    """Let what the recipe names learn: all parameters, those of patterns, and those of the adapter.

    Raises:
        SpecError: a pattern matches no parameter.
    """
    if recipe.trainable is not None or recipe.adapter is not None:
        named = names_matching(model, recipe.trainable or (), "trainable")
        train_only(model, named | adapter_parameters(model))
