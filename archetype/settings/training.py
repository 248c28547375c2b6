"""Settings of training: the plain fields of a recipe, the limits of a run, and field types with their help texts."""

from typing import Annotated, Any, Literal

from pydantic import Field

from archetype.parts.adapter.spec import Adapter
from archetype.spec.base import MAX_FLOAT, Flag, Index, Length, Positive, Probability, Size, Spec
from archetype.spec.kinds import ByKind


def described(text: str) -> Any:
    """Return metadata with the help of a setting, which the JSON Schema and the command line show."""
    return Field(description=text)


# Files of training data
TextFiles = Annotated[
    tuple[str, ...],
    described("Text files, record files (JSON, CSV, TSV, Parquet), folders, glob patterns, or a dataset as hf:NAME."),
]
SourceFiles = Annotated[
    tuple[str, ...],
    described("Source texts: a file with one per line, or a file of records with `source` and `target`."),
]
TargetFiles = Annotated[tuple[str, ...], described("Target texts: a file with one line per source.")]
ImageFiles = Annotated[
    str, described("Images to classify: an .npz file of images and labels, or a folder with one per class.")
]
LabelledTextFiles = Annotated[tuple[str, ...], described('Texts to classify: records of {"text": ..., "label": ...}.')]
LabelledTokenFiles = Annotated[
    tuple[str, ...], described('Words to classify: records of {"tokens": [...], "labels": [...]}.')
]
ConversationFiles = Annotated[
    tuple[str, ...],
    Field(
        description='Conversations: records of {"messages": [{"role": "user", "content": ...}, {"role": "assistant", '
        '...}]}, optionally with "tools" (JSON schemas of functions), or in the format of ShareGPT or Alpaca.'
    ),
]
PreferenceFiles = Annotated[
    tuple[str, ...], described('Preferences for DPO: records of {"prompt": ..., "chosen": ..., "rejected": ...}.')
]
TextPairFiles = Annotated[
    tuple[str, ...],
    Field(
        description='Text pairs for contrastive training: records of {"anchor": ..., "positive": ...}, optionally with '
        '"negative", a text or a list of texts.'
    ),
]
ScoredPairFiles = Annotated[
    tuple[str, ...], described('Text pairs with a similarity: records of {"text1": ..., "text2": ..., "score": ...}.')
]
Columns = Annotated[
    tuple[str, ...],
    described("Column that contains a field of the records, as FIELD=COLUMN, or COLUMN for the first field."),
]
SkipBad = Annotated[Index, described("Maximum number of bad records (damaged, empty or missing a field) to skip.")]

# Tokenizer, optimizer and schedule
TokenizerName = Annotated[
    str, described("Tokenizer to train (bytes, characters, words, bpe or byte_bpe), or a tokenizer's folder.")
]
VocabSize = Annotated[Size | None, described("Vocabulary size of a new tokenizer.")]
TeacherModel = Annotated[
    str, described("Learn from the outputs of this model, which has the same vocabulary (distillation).")
]
LearningRate = Annotated[Positive, described("Peak learning rate.")]
WarmupSteps = Annotated[
    int, Field(strict=True, ge=0, description="Number of steps of the linear warm-up to the peak learning rate.")
]

TRACKERS = described("Also record metrics with tensorboard, wandb, trackio or mlflow.")


class RunSettings(Spec):
    """The fields of a recipe, except data and parts."""

    version: Annotated[Literal[1], described("Version of the file format.")] = 1
    spec: Annotated[
        str | dict[str, Any], described("Model to train: a preset, a specification file or a specification.")
    ] = "llama-tiny"
    trainable: Annotated[
        tuple[str, ...] | None,
        described("Train only parameters that match this pattern, such as 'blocks.[20-23].*' or lm_head."),
    ] = None
    adapter: Annotated[
        Annotated[Adapter, ByKind(Adapter, default="lora")] | None,
        described("Train an adapter (lora or dora) and freeze the base model."),
    ] = None
    add_tokens: Annotated[tuple[str, ...], described("Tokens to add to the tokenizer.")] = ()
    batch_size: Annotated[Size, described("Number of sequences per optimizer step.")] = 16
    micro_batch_size: Annotated[
        Size | None, described("Number of sequences per forward pass; gradients are accumulated over the batch.")
    ] = None
    sequence_length: Annotated[
        Length | None, described("Number of tokens per sequence; for text pairs, the maximum of each side.")
    ] = None
    steps: Annotated[Length, described("Number of optimizer steps.")] = 1000
    max_grad_norm: Annotated[Positive, described("Gradient norm above which gradients are clipped.")] = 1.0
    ema_decay: Annotated[
        Probability | None,
        described("Decay per step of the moving average of the weights; the averaged weights are evaluated and saved."),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        described("Data type of matrix products; auto is bfloat16 if the device computes in it, else float32."),
    ] = "auto"
    weights_dtype: Annotated[
        Literal["float32", "bfloat16"],
        described("Data type of the weights in memory; the optimizer keeps float32 master weights for bfloat16."),
    ] = "float32"
    recompute: Annotated[
        Literal["none", "blocks"] | Size,
        described("Blocks whose activations the backward pass recomputes: none, all (`blocks`), or the first N."),
    ] = "none"
    compile: Annotated[Flag, described("Compile each block with torch.compile.")] = False
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63, description="Seed of weights, data order and dropout.")] = 0
    evaluate_every: Annotated[Length, described("Number of steps between evaluations.")] = 250
    evaluate_batches: Annotated[Length, described("Number of batches per evaluation.")] = 20
    checkpoint_every: Annotated[Length, described("Number of steps between checkpoints.")] = 500
    keep_checkpoints: Annotated[
        Size, described("Number of recent checkpoints to keep, besides the weights with the lowest validation loss.")
    ] = 2
    patience: Annotated[
        Size | None, described("Early stopping: end after this many evaluations without a lower validation loss.")
    ] = None


class Limits(Spec):
    """Limits of a run. Training ends when the first limit is reached."""

    tokens: Annotated[
        Annotated[float, Field(ge=1, le=MAX_FLOAT)] | None,
        described("Train until this many tokens (or images) are predicted; padding and prompts do not count."),
    ] = None
    flops: Annotated[
        Annotated[float, Field(ge=1, le=MAX_FLOAT)] | None,
        described("Train for this many FLOPs, as the cost model counts them."),
    ] = None
    minutes: Annotated[
        Annotated[float, Field(ge=0.01, le=MAX_FLOAT)] | None,
        described("Train for about this many minutes, estimated from a few steps before the run."),
    ] = None
    epochs: Annotated[
        Annotated[float, Field(gt=0, le=MAX_FLOAT)] | None, described("Train for this many passes over the data.")
    ] = None
