"""Memory in bytes: the state in decoding; weights, gradients, optimizer moments and activations in training.

The loss saves the log-softmax of the logits in float32. At the start of the backward pass there are two more copies:
the gradients after and before the log-softmax. A training step then reaches its peak, unless gradients and the
optimizer step need more. In bfloat16, every weight of a matrix product has a cast copy throughout forward and backward.
With activation checkpointing, only the inputs of blocks are saved, and the activations of one block at a time.
"""

from functools import cached_property
from typing import NamedTuple

from archetype.cost.formula import constant
from archetype.cost.work import FLOAT32, INT64, ComputeType, Work
from archetype.dtypes import WeightTypes, bytes_of, state_bytes
from archetype.estimate.rows import Row, module_rows, num_parameters
from archetype.models.cost import ModelCost


class SavedActivations(NamedTuple):
    """Bytes saved for backward, for a whole batch."""

    embedding_and_head: int  # including tensors shared by layers, final norms and the loss
    blocks: int
    block_inputs: int  # with activation checkpointing, nothing else of a block is saved
    largest_block: int  # including the gradient at the start of its backward pass
    logits: int  # one copy in float32
    logits_weight_gradient: int  # gradient of the head's weight in float32
    num_logits: int = 1  # saved copies: for the next token and each further token

    @property
    def saved(self) -> int:
        return self.embedding_and_head + self.blocks

    @property
    def peak(self) -> int:
        """Bytes allocated while the gradient of the loss is computed."""
        return self.saved + self.loss_gradient

    @property
    def peak_recomputed(self) -> int:
        """`peak` with activation checkpointing."""
        # the gradients of logits are freed before the activations of a block are recomputed
        return self.embedding_and_head + self.block_inputs + max(self.loss_gradient, self.largest_block)

    @property
    def loss_gradient(self) -> int:
        # gradients after and before the log-softmax, and of the head's weight
        return 2 * self.logits + self.logits_weight_gradient


class MemoryCost:
    """Memory of a model for any batch and length.

    Args:
        cost: cost of the model.
        dtype: data type of the weights, or one per tensor; training computes in bfloat16 for types of two bytes.
        state_dtype: data type of keys and values (absent: the data type of matrix products, which recurrent states
            have in any case).

    Raises:
        SpecError: a data type is unknown.
    """

    def __init__(self, cost: ModelCost, dtype: str | WeightTypes, state_dtype: str | None = None) -> None:
        self.types = dtype if isinstance(dtype, WeightTypes) else WeightTypes.uniform(dtype)
        self.cost, self.state_dtype = cost, state_dtype or self.types.numbers
        self.itemsize, self.compute_dtype = bytes_of(self.types.numbers), compute_dtype(self.types.numbers)
        state_bytes(1, self.state_dtype)  # raises for an unknown type

    @cached_property
    def num_parameters(self) -> int:
        return num_parameters(self.cost).value

    @property
    def weights(self) -> int:
        return self.types.weight_bytes(self.num_parameters)

    @cached_property
    def _rows(self) -> list[Row]:
        return module_rows(self.cost, 1, 1, phases=("forward",))

    @cached_property
    def cast_weights(self) -> int:
        """Bytes of the bfloat16 copies of all weights of matrix products."""
        if self.compute_dtype == "float32":
            return 0
        rows = self._rows
        num_weights = sum(row.parameters for row in rows if row.forward)
        if self.cost.head.tied:
            num_weights += next(row.parameters for row in rows if row.module.endswith("embedding.token"))
        if self.cost.further_tokens is not None:
            num_weights += self.cost.further_tokens.product_weights()
        return 2 * num_weights

    def memory(self, batch: int, length: int, source: int | None = None) -> dict[str, int]:
        """Return the bytes of weights, and of a training step (float32 except activations and weight copies)."""
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
        """Return the peak memory of a training step, given the activations at the start of its backward pass."""
        # Gradients are allocated while activations are freed. The peak is therefore either at the start of the backward
        # pass (weights, their copies, moments and all activations), or in the optimizer step (gradients, no
        # activations).
        copy = self.num_parameters * FLOAT32
        return max(3 * copy + self.cast_weights + activations, 4 * copy)

    def state(self, batch: int, length: int, source: int | None = None) -> int:
        """Return the bytes of the state of a batch.

        Args:
            length: capacity of each sequence in tokens.
            source: tokens per source, if there is one (absent: `length`).
        """
        # models without a source need not have the argument
        floats, integers = self.cost.state(length) if source is None else self.cost.state(length, source)
        recurrent = scales = 0
        if self.state_dtype != self.types.numbers:
            parts = self.cost.state_parts(length, length if source is None else source)
            recurrent = sum(part.recurrent for part in parts)
            scales = sum(part.key_scales for part in parts) * (self.state_dtype == "int8")
        keys = state_bytes(floats - recurrent, self.state_dtype) + scales * FLOAT32
        return batch * (keys + state_bytes(recurrent, self.types.numbers) + integers * INT64)

    def state_read(self, batch: int, length: int, source: int | None = None) -> int:
        """Return the bytes of the state that the next token reads: all but the keys that an index leaves out."""
        unread = state_bytes(self.cost.unread_state(length), self.state_dtype)
        return self.state(batch, length, source) - batch * unread

    def state_per_token(self, length: int, source: int | None = None) -> int:
        """Bytes by which the state of one sequence grows per token, averaged over a patch or a pooled key.

        An encoder-decoder's source grows as well, unless its length is given.
        """
        period = self.cost.state_period
        return -(-(self.state(1, length + period, source) - self.state(1, length, source)) // period)

    def saved_activations(self, batch: int, length: int, source: int | None = None) -> SavedActivations:
        """Return the bytes that autograd saves in a training step, without cast copies of weights."""
        sources = None if source is None else constant(source)
        cost, forward = self.cost, Work(constant(batch), constant(length), "forward", source=sources)
        work, stack_work = forward.in_training(self.compute_dtype), cost.stack_work(forward)
        logits = cost.head.num_logits(batch, work.tokens) * FLOAT32
        loss = logits + work.tokens * INT64 + FLOAT32  # log-softmax, targets, number of targets
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
    """Return the data type of matrix products in training, for weights used in `dtype`."""
    return "bfloat16" if bytes_of(dtype) == 2 else "float32"
