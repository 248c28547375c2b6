"""Bytes: the state that decoding keeps, and what training holds of weights, gradients, moments and activations.

Of the logits the loss saves their log-softmax, in float32. Backward begins with two more copies, the gradients behind
and before the log-softmax; with them a training step holds the most, unless gradients and the optimizer's step take
more. In bfloat16 every weight of a product has a cast copy, from forward to backward. With activation checkpointing
only the blocks' inputs are saved, and one block's activations at a time.
"""

from functools import cached_property
from typing import NamedTuple

from archetype.cost.formula import constant
from archetype.cost.work import FLOAT32, INT64, ComputeType, Work
from archetype.dtypes import WeightTypes, bytes_of, state_bytes
from archetype.estimate.rows import Row, module_rows, num_parameters
from archetype.models.cost import model_cost
from archetype.models.spec import ModelSpec


class SavedActivations(NamedTuple):
    """Bytes for a whole batch."""

    embedding_and_head: int  # with what layers share, final norms and the loss
    blocks: int
    block_inputs: int  # all that is saved of blocks whose activations are computed again
    largest_block: int  # with the gradient that its backward pass begins with
    logits: int  # one copy in float32; while the loss's gradient is computed there are two beside what is saved
    logits_weight_gradient: int  # in float32, beside the logits' own
    num_logits: int = 1  # how many copies are saved: of the next token, and of each further one

    @property
    def saved(self) -> int:
        """The bytes that autograd saves."""
        return self.embedding_and_head + self.blocks

    @property
    def peak(self) -> int:
        """The bytes that are held when the gradient of the loss is computed."""
        return self.saved + self.loss_gradient

    @property
    def peak_recomputed(self) -> int:
        """The same with activation checkpointing: the logits and one block's activations never meet."""
        return self.embedding_and_head + self.block_inputs + max(self.loss_gradient, self.largest_block)

    @property
    def loss_gradient(self) -> int:
        """The bytes of the logits' gradient that are held, beside what is saved."""
        return 2 * self.logits + self.logits_weight_gradient


class MemoryCost:
    """The memory of a model, for any batch and length.

    Args:
        model: the specification.
        dtype: type of weights, or of each; training computes in bfloat16 where products have numbers of two bytes.
        state_dtype: type of the state (absent: that of products).

    Raises:
        SpecError: there is no such type.
    """

    def __init__(self, model: ModelSpec, dtype: str | WeightTypes, state_dtype: str | None = None) -> None:
        self.types = dtype if isinstance(dtype, WeightTypes) else WeightTypes.uniform(dtype)
        self.cost, self.state_dtype = model_cost(model), state_dtype or self.types.numbers
        self.itemsize, self.compute_dtype = bytes_of(self.types.numbers), compute_dtype(self.types.numbers)
        state_bytes(1, self.state_dtype)  # refused before anything is counted

    @cached_property
    def num_parameters(self) -> int:
        """All parameters."""
        return num_parameters(self.cost).value

    @property
    def weights(self) -> int:
        """Bytes of all parameters in their types."""
        return self.types.weight_bytes(self.num_parameters)

    @cached_property
    def _rows(self) -> list[Row]:
        return module_rows(self.cost, 1, 1, phases=("forward",))

    @cached_property
    def cast_weights(self) -> int:
        """Bytes of the copies in bfloat16 of all weights of products."""
        if self.compute_dtype == "float32":
            return 0
        rows = self._rows
        numbers = sum(row.parameters for row in rows if row.forward)
        if self.cost.head.tied:
            numbers += next(row.parameters for row in rows if row.module.endswith("embedding.token"))
        if self.cost.further_tokens is not None:
            numbers += self.cost.further_tokens.product_weights()
        return 2 * numbers

    def memory(self, batch: int, length: int, source: int | None = None) -> dict[str, int]:
        """Weights in `dtype`, and what a training step holds: all but activations and copies in float32."""
        copy, saved = self.num_parameters * FLOAT32, self.saved_activations(batch, length, source)
        return {
            "weights": self.weights,
            "weight_copies": self.cast_weights,
            "gradients": copy,
            "optimizer": 2 * copy,
            "training_state": 4 * copy,  # weights, gradients and AdamW's two moments
            "activations": saved.peak,
            "activations_recomputed": saved.peak_recomputed,
            "training_peak": self.training_peak(saved.peak),
            "training_peak_recomputed": self.training_peak(saved.peak_recomputed),
        }

    def training_peak(self, activations: int) -> int:
        """The most bytes that a training step holds.

        Gradients come into being while activations go. So the peak is either where backward begins, with weights,
        their copies, moments and all activations, or in the optimizer's step, with gradients and no activation.

        Args:
            activations: held where backward begins, as `SavedActivations` says.
        """
        copy = self.num_parameters * FLOAT32
        return max(3 * copy + self.cast_weights + activations, 4 * copy)

    def state(self, batch: int, length: int, source: int | None = None) -> int:
        """Bytes of the state of some rows.

        Args:
            batch: rows.
            length: tokens that each has room for.
            source: tokens of each source, where there is one (absent: as many).
        """
        # a kind of model that reads no source need not know of one
        numbers, integers = self.cost.state(length) if source is None else self.cost.state(length, source)
        return batch * (state_bytes(numbers, self.state_dtype) + integers * INT64)

    def state_per_token(self, length: int, source: int | None = None) -> int:
        """Bytes by which the state of one row grows per token: of target and source, unless the source has a length.

        Where tokens are read in patches it is an average.
        """
        patch_size = self.cost.patch_size
        return -(-(self.state(1, length + patch_size, source) - self.state(1, length, source)) // patch_size)

    def saved_activations(self, batch: int, length: int, source: int | None = None) -> SavedActivations:
        """Bytes that autograd saves in a training step on `batch` rows of `length` tokens, save copies of weights."""
        sources = None if source is None else constant(source)
        cost, forward = self.cost, Work(constant(batch), constant(length), "forward", source=sources)
        work, stack_work = forward.in_training(self.compute_dtype), cost.stack_work(forward)
        logits = cost.head.num_logits(batch, work.tokens) * FLOAT32
        loss = logits + work.tokens * INT64 + FLOAT32  # log-softmax, targets, their number
        shared, blocks, inputs, largest = cost.saved_activations(work) + loss, 0, 0, 0
        count = 0 if cost.further_tokens is None else cost.further_tokens.count
        if cost.further_tokens is not None:
            shared += cost.further_tokens.saved_activations(work) + count * logits
        for stack in cost.stacks:
            saved = stack.saved_activations(stack_work[stack.prefix].in_training(self.compute_dtype))
            shared, blocks, inputs = shared + saved.shared, blocks + saved.blocks, inputs + saved.block_inputs
            largest = max(largest, saved.largest_block)
        weight_gradient = cost.head.num_weights * FLOAT32 if self.compute_dtype == "float32" else 0
        return SavedActivations(shared, blocks, inputs, largest, logits, weight_gradient, 1 + count)


def compute_dtype(dtype: str) -> ComputeType:
    """The data type in which a training step computes products, for weights that are used in `dtype`."""
    return "bfloat16" if bytes_of(dtype) == 2 else "float32"
