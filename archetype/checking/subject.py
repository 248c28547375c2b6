"""The model that is checked, with random tensors, and one interface for all kinds of models."""

import inspect
import math
from collections.abc import Iterable
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from archetype.models.build import Model, build
from archetype.models.output import Output
from archetype.models.spec import ModelSpec
from archetype.nn.comparison import randomize
from archetype.nn.registry import module_class
from archetype.nn.state import State

CPU = torch.device("cpu")
ROWS = 4
SOURCE_LENGTH = 7


class Violated(Exception):
    """An invariant does not hold. The message is the observation.

    Attributes:
        difference: largest difference of outputs, if that is what was observed.
    """

    def __init__(self, message: str, difference: float = math.inf) -> None:
        super().__init__(message)
        self.difference = difference


class Inapplicable(Exception):
    """An invariant does not apply to a model. The message is the reason."""


class Subject:
    """Model and its inputs."""

    def __init__(self, spec: ModelSpec, device: torch.device = CPU) -> None:
        self.spec, self.device = spec, device

    @cached_property
    def model(self) -> Any:
        """Model in float32 with random tensors, in evaluation mode."""
        return self.built().requires_grad_(False)

    @cached_property
    def exact(self) -> "Subject":
        """The same model in float64."""
        other = Subject(self.spec, self.device)
        other.model, other.exact = deepcopy(self.model).double(), other
        return other

    def built(self, dtype: torch.dtype = torch.float32) -> Model:
        """Return a new model whose parameters require gradients. The weights are the same on every device."""
        return randomize(build(self.spec, dtype=dtype)).to(self.device)

    @cached_property
    def parameters(self) -> frozenset[str]:
        # argument names of the forward method
        return frozenset(inspect.signature(module_class(self.spec).forward).parameters)

    @property
    def reads_images(self) -> bool:
        return "images" in self.parameters

    @property
    def writes(self) -> bool:
        # whether it generates token by token, with a state
        return "state" in self.parameters

    @property
    def length(self) -> int:
        # length of the longest sequence in checks
        return min(self.spec.context_length, 16)

    @property
    def vocab_size(self) -> int:
        spec: Any = self.spec
        return int(spec.vocab_size)

    def tokens(self, rows: int, length: int, seed: int = 0, vocab_size: int | None = None) -> Tensor:
        # (B, T), random
        vocab_size = vocab_size or self.vocab_size
        tokens = torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))
        return tokens.to(self.device)

    def inputs(self, rows: int = ROWS) -> dict[str, Tensor]:
        """Return the arguments of its forward method: images, tokens, or sources and targets."""
        if self.reads_images:
            spec: Any = self.spec
            shape = (rows, spec.num_channels, spec.image_size, spec.image_size)
            return {"images": torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.device)}
        tokens = self.tokens(rows, self.length)
        if "source" in self.parameters:
            return {"target": tokens, "source": self.sources(range(rows))}
        return {"tokens": tokens}

    def sources(self, rows: Iterable[int]) -> Tensor:
        """Return the sources (B, S) with these indices."""
        vocab_size = getattr(self.spec, "source_vocab_size", None)
        return self.tokens(64, SOURCE_LENGTH, 50, vocab_size)[list(rows)]

    def indices(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def read(self, tokens: Tensor, num_tokens: list[int] | None = None, rows: Iterable[int] | None = None) -> Tensor:
        """Return the outputs (B, T, ...) for whole sequences: logits, or hidden vectors.

        Args:
            tokens: (B, T), padded at the end.
            num_tokens: number of tokens of each sequence, without padding (default: all).
            rows: indices of the sources, if the model reads sources (default: the first ones).
        """
        options: dict[str, Any] = {}
        if num_tokens is not None:
            options["num_tokens"] = self.indices(num_tokens)
        if "source" in self.parameters:
            options["source"] = self.sources(range(len(tokens)) if rows is None else rows)
        return vectors(self.model(tokens, **options))

    def new_state(self, rows: Iterable[int], capacity: int) -> State:
        """Return an empty state for these rows."""
        rows = list(rows)
        first = self.sources(rows) if "source" in self.parameters else len(rows)
        return self.model.new_state(first, capacity=capacity)

    def step(self, tokens: Tensor, state: State, num_tokens: list[int] | None = None) -> tuple[Tensor, State]:
        """Return the outputs for more tokens (B, T, ...), and the state after them."""
        counts = None if num_tokens is None else self.indices(num_tokens)
        output = self.model(tokens, state, counts)
        assert output.state is not None
        return vectors(output), output.state


def vectors(output: Output) -> Tensor:
    """Return the logits of each token; if there are none (classes of a whole sequence), the hidden vectors."""
    logits = output.logits
    if logits is not None and (logits.dim() == 3 or output.hidden is None):
        return logits
    assert output.hidden is not None
    return output.hidden
