"""How a model is trained, written down: the file that `archetype train --recipe` reads and every run keeps."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from archetype.errors import SpecError
from archetype.io.yaml import read_mapping
from archetype.parts.adapter.spec import Adapter
from archetype.spec.base import Flag, Length, Positive, Probability, Size, Spec
from archetype.spec.kinds import ByKind
from archetype.spec.serialize import document_schema
from archetype.training.datasets import Data, TextData
from archetype.training.objectives import ObjectiveConfig
from archetype.training.optimizers import AdamW, Optimizer
from archetype.training.parallel.layout import Parallel
from archetype.training.schedules import Cosine, Schedule
from archetype.training.trackers import Tracker


class Recipe(Spec):
    """Everything that a run depends on beside the data themselves.

    A `spec` written in place may leave `vocab_size` to the tokenizer. An `objective` that is absent is the first that
    suits the model and the data. `dtype` auto is bfloat16 where the machine computes in it, else float32; moments are
    float32 always, and so are the weights that are written. With `ema_decay` the averaged weights are what is
    evaluated, written and given to people; checkpoints have both.

    Attributes:
        version: of the file format.
        spec: a preset, the file of a specification, or a specification.
        data: what is learned from.
        objective: what is learned (absent: what suits the model and the data).
        trainable: a pattern of the parameters that learn, such as 'blocks.[20-23].*' or lm_head (absent: all, or
            those of the adapter alone).
        adapter: low-rank matrices, lora or dora, that learn in place of the model's own (absent: none).
        add_tokens: names of tokens that the tokenizer gets beside its own.
        batch_size: rows of a step.
        micro_batch_size: rows computed at once; gradients are accumulated over the batch (absent: all of a batch).
        sequence_length: tokens of each row; of pairs, the most that either side may have (absent: the model's context).
        steps: optimizer steps.
        optimizer: how weights follow gradients.
        schedule: how the learning rate follows the steps.
        max_grad_norm: length to which gradients are clipped.
        ema_decay: what the moving average of the weights keeps of itself in a step (absent: there is none).
        dtype: type that products are computed in.
        weights_dtype: of the weights in memory; of bfloat16 the optimizer has masters in float32.
        recompute: none, blocks, or the number of blocks (the first ones) whose activations backward computes again.
        compile: whether torch.compile makes each block one program.
        parallel: how many processes share the work, and how.
        seed: of weights, order and dropout.
        evaluate_every: steps between evaluations.
        evaluate_batches: batches of an evaluation.
        checkpoint_every: steps between checkpoints.
        keep_checkpoints: how many of the newest stay; the weights of the lowest held-out loss stay beside them.
        trackers: where measurements are also reported: tensorboard, wandb, trackio or mlflow.
        patience: evaluations without a lower held-out (validation) loss after which training ends (absent: never).
    """

    version: Literal[1] = 1
    spec: str | dict[str, Any] = "llama-tiny"
    data: Annotated[Data, ByKind(Data, default="corpus")] = TextData()
    objective: Annotated[ObjectiveConfig, ByKind(ObjectiveConfig)] | None = None
    trainable: tuple[str, ...] | None = None
    adapter: Annotated[Adapter, ByKind(Adapter, default="lora")] | None = None
    add_tokens: tuple[str, ...] = ()
    batch_size: Size = 16
    micro_batch_size: Size | None = None
    sequence_length: Length | None = None
    steps: Length = 1000
    optimizer: Annotated[Optimizer, ByKind(Optimizer, default="adamw")] = AdamW()
    schedule: Annotated[Schedule, ByKind(Schedule, default="cosine")] = Cosine()
    max_grad_norm: Positive = 1.0
    ema_decay: Probability | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    weights_dtype: Literal["float32", "bfloat16"] = "float32"
    recompute: Literal["none", "blocks"] | Size = "none"
    compile: Flag = False
    parallel: Parallel = Parallel()
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    evaluate_every: Length = 250
    evaluate_batches: Length = 20
    checkpoint_every: Length = 500
    keep_checkpoints: Size = 2
    patience: Size | None = None
    trackers: tuple[Annotated[Tracker, ByKind(Tracker)], ...] = ()


def json_schema() -> dict[str, Any]:
    """A JSON Schema of recipe files, for editors."""
    return document_schema("recipe", Recipe.model_json_schema())


def read_recipe(file: Path) -> Recipe:
    """Return the recipe in a YAML or JSON file.

    Raises:
        SpecError: names the file, the first field that is wrong, why, and what would be right.
    """
    data = read_mapping(file)
    try:
        return Recipe.parse(data)
    except SpecError as error:
        raise error.at(str(file)) from None
