"""Tracing of a model with torch.export, once for all batch sizes and lengths."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from archetype.errors import CheckpointError
from archetype.models.build import Model
from archetype.models.output import Output
from archetype.models.spec import ModelSpec

Inputs = dict[str, Any]  # tensors by name; a state is a dictionary of tensors
# Sizes of the traced batch: distinct, so that torch keeps them apart, and not 1, which torch would make a constant.
ROWS, LENGTH, SOURCE_LENGTH = 3, 7, 11


def trace(model: Model) -> ExportedProgram:
    """Return the program of a complete forward pass, from tokens or images to logits, or to vectors without a head.

    Args:
        model: model to trace, set to evaluation mode.

    Raises:
        CheckpointError: torch.export cannot trace a part, such as a plug-in that branches on a tensor's data.
    """
    inputs = example_inputs(model, ROWS, LENGTH, SOURCE_LENGTH)
    return export_module(_pass_of(model), inputs, _dynamic_shapes(model.spec, inputs), model.spec.name)


def export_module(module: nn.Module, inputs: Inputs, shapes: dict[str, Any], name: str) -> ExportedProgram:
    """Trace a module with example inputs.

    Args:
        shapes: the dimensions of each input that may vary.
        name: name of the model, for messages.

    Raises:
        CheckpointError: torch.export cannot trace a part.
    """
    error = None
    for is_oblivious in (False, True):
        try:
            with torch.no_grad(), _sizes_of_one(is_oblivious):
                return torch.export.export(module, (), inputs, dynamic_shapes=shapes, strict=False)
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError, TypeError, AssertionError) as caught:
            error = error or caught
    cause = f"torch.export cannot trace it: {str(error).strip().splitlines()[0]:.120}"
    raise CheckpointError(name or "model", cause, "use --format archetype-hf") from error


def example_inputs(model: Model, batch_size: int, length: int, source_length: int, seed: int = 0) -> Inputs:
    """Return random inputs for the program by name.

    Args:
        batch_size: number of sequences or images.
        length: number of tokens, reduced to the context length if larger.
        source_length: number of source tokens for an encoder-decoder.
    """
    spec, generator = model.spec, torch.Generator().manual_seed(seed)
    if spec.image_shape is not None:
        channels, size = spec.image_shape
        return {"images": torch.randn(batch_size, channels, size, size, generator=generator)}

    def tokens(length: int, vocab_size: int) -> Tensor:
        return torch.randint(vocab_size, (batch_size, min(length, spec.context_length)), generator=generator)

    def num_tokens(tokens: Tensor) -> Tensor:
        return torch.randint(1, tokens.shape[1] + 1, (batch_size,), generator=generator)

    name = "target" if spec.reads_source else "tokens"
    inputs = {name: tokens(length, spec.vocab_size)}
    if spec.reads_source:
        inputs["source"] = tokens(source_length, getattr(spec, "source_vocab_size", None) or spec.vocab_size)
        inputs["source_num_tokens"] = num_tokens(inputs["source"])
    if _padding_matters(model):
        inputs["num_tokens"] = num_tokens(inputs[name])
    if not spec.is_causal and (types := getattr(spec, "embedding").num_token_types) > 1:  # noqa: B009
        inputs["token_types"] = torch.randint(types, inputs[name].shape, generator=generator)
    return inputs


def output_name(spec: ModelSpec) -> str:
    return "vectors" if spec.head.embeds else "hidden" if spec.head.is_absent else "logits"


def run(model: Model, inputs: Inputs) -> Tensor:
    """Return the model's output for the program's inputs."""
    with torch.no_grad():
        return cast(Tensor, _pass_of(model.eval())(**inputs))


def _padding_matters(model: Model) -> bool:
    # If padding changes the logits, the program needs the length of each sequence. A pattern that depends on the length
    # is built once per pass, so that all sequences of a batch have the same length there.
    strategies = (getattr(module, "pairs", None) for module in model.modules())  # of attention
    follows_length = any(pairs is not None and pairs.rule.depends_on_length for pairs in strategies)
    sees_ahead = not (model.spec.is_causal or model.spec.reads_source)
    return (sees_ahead or model.spec.head.has_classes or model.spec.head.embeds) and not follows_length


class _OfTokens(nn.Module):
    """Forward pass of a model that reads one sequence per row."""

    def __init__(self, network: Model) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, num_tokens: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        types = {} if token_types is None else {"token_types": token_types}
        return result_of(self.network(tokens, num_tokens=num_tokens, **types))


class _OfPairs(_OfTokens):
    """Forward pass of an encoder-decoder. Each row has a source and a target."""

    def forward(  # type: ignore[override]
        self, target: Tensor, source: Tensor, source_num_tokens: Tensor, num_tokens: Tensor | None = None
    ) -> Tensor:
        # tells torch that both batch sizes are one symbol
        torch._check(target.shape[0] == source.shape[0])
        return result_of(
            self.network(target, num_tokens=num_tokens, source=source, source_num_tokens=source_num_tokens)
        )


class _OfImages(_OfTokens):
    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        return result_of(self.network(images))


def _pass_of(model: Model) -> nn.Module:
    spec = model.spec
    kind = _OfImages if spec.reads_images else _OfPairs if spec.reads_source else _OfTokens
    return kind(model).eval()


def result_of(output: Output) -> Tensor:
    """Return the output of a program: vectors of texts, logits, or the vectors that a head would read."""
    results = (output.text_vectors, output.logits, output.hidden)
    return next(result for result in results if result is not None)


def _dynamic_shapes(spec: ModelSpec, inputs: Inputs) -> dict[str, dict[int, Dim]]:
    # the dimensions that may vary; the context length limits lengths
    batch = Dim("batch")
    if spec.reads_images:
        return {name: {0: batch} for name in inputs}
    length, source_length = (Dim(name, max=spec.context_length) for name in ("length", "source_length"))
    shapes = {}
    for name, tensor in inputs.items():
        lengths = {1: source_length if name == "source" else length} if tensor.dim() > 1 else {}
        shapes[name] = {0: batch, **lengths}
    return shapes


@contextmanager
def _sizes_of_one(is_oblivious: bool) -> Iterator[None]:
    # Lets torch treat a size of 1 like any other. Most models trace with False. A size that follows from the length,
    # such as a number of patches, may be 1 for every length of the example: then only True works, with which more of
    # torch's checks fail.
    with torch.fx.experimental._config.patch(backed_size_oblivious=is_oblivious):  # type: ignore[attr-defined]
        yield
