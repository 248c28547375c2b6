"""How a model is trained, written down: the file that `archetype train --recipe` reads and every run keeps."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from archetype.errors import SpecError
from archetype.spec.base import Length, Positive, Probability, Size, Spec
from archetype.spec.io import read_mapping, to_yaml

TokenizerKind = Literal["bytes", "characters", "words", "bpe", "byte_bpe"]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Data(Spec):
    """What is learned from.

    `text` are UTF-8 files, one after the other, whose last part (`validation`) is held out. `tokenizer` is a kind, to
    be trained on the rest, or a folder that holds a trained one.
    """

    text: tuple[str, ...] = ()
    tokenizer: TokenizerKind | str = "byte_bpe"
    vocab_size: Size | None = None
    validation: Annotated[float, Field(gt=0, lt=0.9)] = 0.1


class AdamW(Spec):
    """Adam with decoupled weight decay, which falls on matrices only (Loshchilov 2017)."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: Positive = 1e-3
    betas: tuple[Probability, Probability] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1


class Cosine(Spec):
    """A linear rise over `warmup` steps, then half a cosine down to `final` of the peak (Loshchilov 2016)."""

    kind: Literal["cosine"] = "cosine"
    warmup: Annotated[int, Field(strict=True, ge=0)] = 100
    final: Fraction = 0.1


class NextToken(Spec):
    """Cross-entropy of each position's next token."""

    kind: Literal["next_token"] = "next_token"


class Recipe(Spec):
    """Everything that a run depends on beside the text itself.

    `spec` is a preset's name, a file, or a specification written in place, which may leave `vocab_size` to the
    tokenizer. `length` is tokens of each row (absent: the model's context). `dtype` auto is bfloat16 where the
    machine computes in it, else float32; weights and moments are float32 always.
    """

    version: Literal[1] = 1
    spec: str | dict[str, Any] = "llama-tiny"
    data: Data = Data()
    objective: NextToken = NextToken()
    batch_size: Size = 16
    length: Length | None = None
    steps: Length = 1000
    optimizer: AdamW = AdamW()
    schedule: Cosine = Cosine()
    clip: Positive = 1.0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    evaluate_every: Length = 250
    evaluate_batches: Length = 20
    checkpoint_every: Length = 500


def read_recipe(file: Path) -> Recipe:
    """The recipe in a YAML or JSON file."""
    data = read_mapping(file)
    try:
        return Recipe.parse(data)
    except SpecError as error:
        raise error.within(str(file)) from None


def recipe_yaml(recipe: Recipe) -> str:
    """The recipe as YAML."""
    return to_yaml(recipe)
