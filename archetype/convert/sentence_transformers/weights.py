"""Weights of the dense layers after pooling."""

import io
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from archetype.convert.sentence_transformers.files import PICKLE, WEIGHTS, Files
from archetype.convert.sentence_transformers.head import dense_folders, read_head, write_head
from archetype.errors import CheckpointError
from archetype.models.build import Model
from archetype.nn.registry import build_head
from archetype.parts.sentence_head.spec import SentenceEmbeddingHead

NAMES = {"linear.weight": "weight", "linear.bias": "bias"}  # the library's names -> ours


def read_layers(files: Files) -> dict[str, Tensor]:
    """Return the tensors of all dense layers, keyed by their names in the head.

    Raises:
        CheckpointError: the file of a layer is missing or damaged.
    """
    return {
        f"layers.{index}.{ours}": tensor
        for index, path in enumerate(dense_folders(files))
        for theirs, tensor in _tensors(files, path).items()
        if (ours := NAMES.get(theirs)) is not None
    }


def attach_head(model: Model, spec: SentenceEmbeddingHead, files: Files) -> None:
    """Replace a model's head, in place, with a sentence head whose weights come from the folder's modules.

    Raises:
        CheckpointError: a tensor is missing or has the wrong shape.
    """
    head = open_head(model, spec, files)
    model.spec = model.spec.without_sentence_head().replace(head=spec)
    model.lm_head = model.classifier = None
    model.sentence_head = head


def open_head(model: Model, spec: SentenceEmbeddingHead, files: Files) -> nn.Module:
    """Return a sentence head whose weights come from a folder's modules; see `attach_head`."""
    # shapes only: the tensors of the files take their places below
    with torch.device("meta"):
        head: Any = build_head(spec, 0, getattr(model.spec, "d_model"))  # noqa: B009
    tensors = {name: tensor.to(model.device, model.dtype) for name, tensor in read_layers(files).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    for name, path in zip(shapes, (path for path in dense_folders(files) for _ in NAMES), strict=False):
        if tuple(tensors[name].shape if name in tensors else ()) != shapes[name]:
            cause = f"{name} is missing or does not have shape {shapes[name]}"
            raise CheckpointError(f"{path}/{WEIGHTS}", cause, "is the folder complete?")
    head.load_state_dict({name: tensors[name] for name in shapes}, strict=True, assign=True)
    return head.eval()


def head_files(model: Model, before: Files) -> dict[str, bytes]:
    """Return the files of a model's sentence head: `before` if they still match the head, otherwise new files."""
    if not model.spec.head.embeds:
        return dict(before)
    state = model.sentence_head.state_dict()
    # the original files, byte for byte, if neither the head nor a weight has changed
    if before and _is_said_by(before, model, state):
        return dict(before)
    files = write_head(model.spec, before)
    for index, path in enumerate(dense_folders(files)):
        layer = {theirs: state.get(f"layers.{index}.{ours}") for theirs, ours in NAMES.items()}
        present = {name: tensor.detach().cpu().contiguous() for name, tensor in layer.items() if tensor is not None}
        files[f"{path}/{WEIGHTS}"] = save(present, {"format": "pt"})
    return files


def _is_said_by(files: Files, model: Model, state: dict[str, Tensor]) -> bool:
    if read_head(files) != model.spec.head:
        return False
    tensors = read_layers(files)
    # compared in the model's dtype, to which loading has converted them
    return all(torch.equal(tensors[name].to(tensor), tensor) for name, tensor in state.items())


def _tensors(files: Files, path: str) -> dict[str, Tensor]:
    if f"{path}/{WEIGHTS}" in files:
        return load(files[f"{path}/{WEIGHTS}"])
    if f"{path}/{PICKLE}" in files:
        # weights_only: a pickle could run code otherwise
        return torch.load(io.BytesIO(files[f"{path}/{PICKLE}"]), weights_only=True)
    remedy = "is the folder complete? a pickle needs --allow-pickle"
    raise CheckpointError(f"{path}/{WEIGHTS}", "is missing", remedy)
