"""How a model is trained, written down: the file that `archetype train --recipe` reads and every run keeps."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from archetype.errors import SpecError
from archetype.io.yaml import read_mapping
from archetype.spec.base import Flag, Length, Positive, Probability, Size, Spec
from archetype.spec.serialize import to_yaml

TokenizerKind = Literal["bytes", "characters", "words", "bpe", "byte_bpe"]
Fraction = Annotated[float, Field(ge=0, le=1)]


HeldOut = Annotated[float, Field(gt=0, lt=0.9)]


class _Tokenized(Spec):
    """`tokenizer` is a kind, to be trained on what is not held out, or a folder that holds a trained one.

    `lowercase` makes one that is trained turn every text to lower case.
    """

    tokenizer: TokenizerKind | str = "byte_bpe"
    vocab_size: Size | None = None
    lowercase: Flag = False
    validation: HeldOut = 0.1


class Text(_Tokenized):
    """UTF-8 files, one after the other, whose last part (`validation`) is held out."""

    kind: Literal["corpus"] = "corpus"
    text: tuple[str, ...] = ()


class Pairs(_Tokenized):
    """UTF-8 files whose lines belong together, a source and its target; the last lines are held out."""

    kind: Literal["pairs"] = "pairs"
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()


class Pictures(Spec):
    """A .npz file of `images`, (N, H, W) or (N, C, H, W), and `labels`, (N,); a share drawn by the seed is held out."""

    kind: Literal["images"] = "images"
    file: str = ""
    validation: HeldOut = 0.1


def _text_unless_said(data: Any) -> Any:
    return {"kind": "corpus"} | data if isinstance(data, dict) else data


Data = Annotated[Text | Pairs | Pictures, Field(discriminator="kind"), BeforeValidator(_text_unless_said)]


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


class MaskedToken(Spec):
    """Cross-entropy of tokens that were hidden (Devlin 2018, section 3.1).

    Of the `share` that is chosen, 8 in 10 become the mask, 1 any token, and 1 stays as it is.
    """

    kind: Literal["masked_token"] = "masked_token"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15


class SpanCorruption(Spec):
    """A text with spans cut out is the source, the spans are the target (Raffel 2019, section 3.1.4).

    `share` of the tokens are cut out, in spans of `mean_span` tokens on average.
    """

    kind: Literal["span_corruption"] = "span_corruption"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mean_span: Annotated[float, Field(ge=1, le=1000)] = 3.0


class SequenceToSequence(Spec):
    """Cross-entropy of each token of a target, given its source and the tokens before (Sutskever 2014).

    `smoothing` is spread over the whole vocabulary (Szegedy 2015; Vaswani 2017).
    """

    kind: Literal["sequence_to_sequence"] = "sequence_to_sequence"
    smoothing: Probability = 0.1


class ImageClass(Spec):
    """Cross-entropy of a picture's class."""

    kind: Literal["image_class"] = "image_class"
    smoothing: Probability = 0.0


Objective = Annotated[
    NextToken | MaskedToken | SpanCorruption | SequenceToSequence | ImageClass, Field(discriminator="kind")
]


class Recipe(Spec):
    """Everything that a run depends on beside the text itself.

    `spec` is a preset's name, a file, or a specification written in place, which may leave `vocab_size` to the
    tokenizer. `objective` may be left out: it is then the one that suits the model and the data. `length` is tokens of
    each row (absent: the model's context); of pairs, the most that either side may have. `dtype` auto is bfloat16 where
    the machine computes in it, else float32; weights and moments are float32 always.
    """

    version: Literal[1] = 1
    spec: str | dict[str, Any] = "llama-tiny"
    data: Data = Text()
    objective: Objective | None = None
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
        raise error.at(str(file)) from None


def recipe_yaml(recipe: Recipe) -> str:
    """The recipe as YAML."""
    return to_yaml(recipe)
