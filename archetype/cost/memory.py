"""Bytes: the state that decoding keeps, and what training holds of weights, gradients, moments and activations.

Of the logits the loss saves their log-softmax, in float32; the logits themselves live until the loss is computed. In
bfloat16 every weight of a product has a cast copy. With blocks computed again in the backward pass only their inputs
are saved, and one block's activations at a time.
"""

from functools import cached_property
from typing import NamedTuple

from archetype import spec
from archetype.cost.dtypes import bytes_of
from archetype.cost.formula import constant
from archetype.cost.model import model_cost
from archetype.cost.rows import module_rows, num_parameters
from archetype.cost.work import FLOAT32, INT64, ComputeType, Work


class SavedActivations(NamedTuple):
    """Bytes for a whole batch."""

    embedding_and_head: int  # with what layers share, final norms and the loss
    blocks: int
    block_inputs: int  # all that is saved of blocks whose activations are computed again
    largest_block: int
    logits: int  # alive only until the loss is computed

    @property
    def saved(self) -> int:
        """What autograd saves."""
        return self.embedding_and_head + self.blocks

    @property
    def peak(self) -> int:
        """What is held when the loss is computed."""
        return self.saved + self.logits

    @property
    def peak_recomputed(self) -> int:
        """The same where blocks are computed again: the logits and one block's activations never meet."""
        return self.embedding_and_head + self.block_inputs + max(self.logits, self.largest_block)


class MemoryCost:
    """The memory of a model, for any batch and length.

    Args:
        model: the specification.
        dtype: type of weights and state; training computes in bfloat16 where it has two bytes.
    """

    def __init__(self, model: spec.ModelSpec, dtype: str) -> None:
        self.cost, self.itemsize, self.compute_dtype = model_cost(model), bytes_of(dtype), compute_dtype(dtype)

    @cached_property
    def num_parameters(self) -> int:
        """All parameters."""
        return num_parameters(self.cost).value

    @cached_property
    def cast_weights(self) -> int:
        """Bytes of the copies in bfloat16 of all weights of products."""
        if self.compute_dtype == "float32":
            return 0
        rows = module_rows(self.cost, 1, 1, phases=("forward",))
        numbers = sum(row.parameters for row in rows if row.forward)
        if self.cost.head.tied:
            numbers += next(row.parameters for row in rows if row.module.endswith("embedding.token"))
        return 2 * numbers

    def memory(self, batch: int, length: int) -> dict[str, int]:
        """Weights in `dtype`, and what a training step holds: all but activations in float32."""
        number, saved = self.num_parameters, self.saved_activations(batch, length)
        training = 4 * number * FLOAT32  # weights, gradients and AdamW's two moments
        return {
            "weights": number * self.itemsize,
            "gradients": number * FLOAT32,
            "optimizer": 2 * number * FLOAT32,
            "training": training,
            "activations": saved.peak,
            "activations_recomputed": saved.peak_recomputed,
            "training_peak": training + saved.peak,
            "training_peak_recomputed": training + saved.peak_recomputed,
        }

    def state(self, batch: int, length: int) -> int:
        """Of the state of `batch` rows with room for `length` tokens each; of a source too, where there is one."""
        numbers, integers = self.cost.state(length)
        return batch * (numbers * self.itemsize + integers * INT64)

    def state_per_token(self, length: int) -> int:
        """By which the state of one row grows with each further token; of patches, on average."""
        patch_size = self.cost.patch_size
        return -(-(self.state(1, length + patch_size) - self.state(1, length)) // patch_size)

    def saved_activations(self, batch: int, length: int) -> SavedActivations:
        """Of a training step on `batch` rows of `length` tokens."""
        cost, forward = self.cost, Work(constant(batch), constant(length), "forward")
        work, stack_work = forward.in_training(self.compute_dtype), cost.stack_work(forward)
        logits = cost.head.num_logits(batch, work.tokens) * FLOAT32
        loss = logits + work.tokens * INT64 + FLOAT32  # log-softmax, targets, their number
        shared, blocks, inputs, largest = cost.saved_activations(work) + loss + self.cast_weights, 0, 0, 0
        for stack in cost.stacks:
            saved = stack.saved_activations(stack_work[stack.prefix].in_training(self.compute_dtype))
            shared, blocks, inputs = shared + saved.shared, blocks + saved.blocks, inputs + saved.block_inputs
            largest = max(largest, saved.largest_block)
        return SavedActivations(shared, blocks, inputs, largest, logits)


def compute_dtype(dtype: str) -> ComputeType:
    """What a training step computes products in, for weights that are used in `dtype`."""
    return "bfloat16" if bytes_of(dtype) == 2 else "float32"
