"""A model under check: built with every tensor random, and called alike whatever its kind."""

import inspect
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from archetype.models.build import Model, build
from archetype.models.output import Output
from archetype.models.spec import ModelSpec
from archetype.nn.cache import State
from archetype.nn.comparison import randomize
from archetype.nn.registry import module_class

CPU = torch.device("cpu")
ROWS = 4
SOURCE_LENGTH = 7


class Violated(Exception):
    """An invariant does not hold; the message says in one line what was seen."""


class Inapplicable(Exception):
    """An invariant is not asked of a model; the message says why."""


class Subject:
    """One model, and what it is called with.

    Args:
        spec: the specification.
        device: that computes it.
    """

    def __init__(self, spec: ModelSpec, device: torch.device = CPU) -> None:
        self.spec, self.device = spec, device

    @cached_property
    def model(self) -> Any:
        """The model in float32, every tensor random, ready to evaluate."""
        return self.built().requires_grad_(False)

    @cached_property
    def exact(self) -> "Subject":
        """The same in float64, in which a rounding is no more than 1e-15."""
        other = Subject(self.spec, self.device)
        other.model = self.built(torch.float64).requires_grad_(False)
        return other

    def built(self, dtype: torch.dtype = torch.float32) -> Model:
        """Another model with the same weights, the same on every device, whose parameters take gradients."""
        return randomize(build(self.spec, dtype=dtype)).to(self.device)

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of what its forward takes, which say what it reads."""
        return frozenset(inspect.signature(module_class(self.spec).forward).parameters)

    @property
    def reads_images(self) -> bool:
        """Whether it reads pictures, which have one size."""
        return "images" in self.parameters

    @property
    def writes(self) -> bool:
        """Whether it writes a text token by token, with a state."""
        return "state" in self.parameters

    @property
    def length(self) -> int:
        """Tokens of the longest text that it is given."""
        return min(self.spec.context_length, 16)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary that it writes in."""
        spec: Any = self.spec
        return int(spec.vocab_size)

    def tokens(self, rows: int, length: int, seed: int = 0, vocab_size: int | None = None) -> Tensor:
        """Random tokens (B, T) of its vocabulary."""
        vocab_size = vocab_size or self.vocab_size
        tokens = torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))
        return tokens.to(self.device)

    def inputs(self, rows: int = ROWS) -> dict[str, Tensor]:
        """Arguments of its forward: whole rows of pixels, of tokens, or of sources and targets."""
        if self.reads_images:
            spec: Any = self.spec
            shape = (rows, spec.num_channels, spec.image_size, spec.image_size)
            return {"images": torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.device)}
        texts = self.tokens(rows, self.length)
        return (
            {"target": texts, "source": self.sources(range(rows))} if "source" in self.parameters else {"tokens": texts}
        )

    def sources(self, rows: Iterable[int]) -> Tensor:
        """The source of each of some rows (B, S)."""
        vocab_size = getattr(self.spec, "source_vocab_size", None)
        return self.tokens(64, SOURCE_LENGTH, 50, vocab_size)[list(rows)]

    def indices(self, values: list[int]) -> Tensor:
        """Numbers of rows or of tokens, where the model is."""
        return torch.tensor(values, device=self.device)

    def read(self, tokens: Tensor, num_tokens: list[int] | None = None, rows: Iterable[int] | None = None) -> Tensor:
        """Vectors of whole texts (B, T, ...): logits of each token, or what it has instead.

        Args:
            tokens: of each row (B, T), padded at the end.
            num_tokens: how many of each row's are not padding (absent: all).
            rows: the rows whose sources are read, where there are sources (absent: the first ones).
        """
        options: dict[str, Any] = {}
        if num_tokens is not None:
            options["num_tokens"] = self.indices(num_tokens)
        if "source" in self.parameters:
            options["source"] = self.sources(range(len(tokens)) if rows is None else rows)
        return vectors(self.model(tokens, **options))

    def new_state(self, rows: Iterable[int], capacity: int) -> State:
        """The state of some rows before their texts."""
        rows = list(rows)
        first = self.sources(rows) if "source" in self.parameters else len(rows)
        state: State = self.model.new_state(first, capacity=capacity)
        return state

    def step(self, tokens: Tensor, state: State, num_tokens: list[int] | None = None) -> tuple[Tensor, State]:
        """Vectors of further tokens, and the state after them."""
        counts = None if num_tokens is None else self.indices(num_tokens)
        output = self.model(tokens, state, counts)
        assert output.state is not None
        return vectors(output), output.state


def vectors(output: Output) -> Tensor:
    """What a pass computes of every position: logits, or hidden vectors where the logits are of whole texts."""
    logits = output.logits
    if logits is not None and (logits.dim() == 3 or output.hidden is None):
        return logits
    assert output.hidden is not None
    return output.hidden
