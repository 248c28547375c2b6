"""A step of a causal model as a program: new tokens and the state before them, logits and the state after them."""

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from archetype.convert.program.state import LENGTHS, META, Rate, StateLayout, by_name, structure_of
from archetype.convert.program.trace import LENGTH, ROWS, Inputs, export_module, result_of
from archetype.errors import CheckpointError
from archetype.models.causal import CausalModel
from archetype.models.spec import CausalSpec, ModelSpec
from archetype.nn.state import State

SLOTS = 13  # slots of the traced state: another size than those of the tokens


def check(spec: ModelSpec) -> None:
    """Check whether a program of a specification can have a state.

    Raises:
        CheckpointError: the model does not read tokens from left to right, or its head reads whole sequences.
    """
    if not isinstance(spec, CausalSpec) or spec.head.has_classes or spec.head.embeds:
        cause = f"a model of kind {spec.kind} with the head {spec.head.kind} does not continue texts"
        raise CheckpointError("--with-state", cause, "remove it")


class Step(nn.Module):
    """Forward pass over new tokens, whose state is a dictionary of tensors."""

    def __init__(self, model: CausalModel, layout: StateLayout) -> None:
        super().__init__()
        self.network, self.context_length, self.layout = model, model.spec.context_length, layout
        # each call replaces the tensors
        self.layers = structure_of(model).new_layers(1, self.context_length, model.dtype, META)

    def forward(self, tokens: Tensor, num_tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits (B, T, V) and the next state. `num_tokens` (B,) is the number of tokens before the padding."""
        self._tie_sizes(tokens.shape[0], state)
        places = by_name(self.layers)
        for name, (holder, field, tensor) in places.items():
            # a copy, as layers write into their state; tensors without numbers are not part of the dictionary
            empty = (tokens.shape[0], *tensor.shape[1:])
            value = state[name].clone() if name in state else tokens.new_zeros(empty, dtype=tensor.dtype)
            setattr(holder, field, value)
        output = self.network(tokens, State(state[LENGTHS], self.layers, self.context_length), num_tokens)
        assert output.state is not None
        after = {LENGTHS: output.state.lengths}
        after |= {name: getattr(holder, field) for name, (holder, field, _) in places.items() if name in state}
        return result_of(output), after

    def _tie_sizes(self, batch: int, state: dict[str, Tensor]) -> None:
        # tells torch that sizes of the same name are one symbol
        slots: dict[Rate, int] = {}
        for tensor in self.layout.tensors:
            shape = state[tensor.name].shape
            torch._check(shape[0] == batch)
            if tensor.axis is not None and tensor.rate is not None:
                torch._check(shape[tensor.axis] == slots.setdefault(tensor.rate, shape[tensor.axis]))


def trace_step(model: CausalModel) -> tuple[ExportedProgram, StateLayout]:
    """Return the program of a step, and the layout of its state.

    Batch size, number of tokens and slots of the state may have any size. Where torch cannot trace any number of slots,
    such as for a learned selection of keys, the state has slots for the whole context.

    Raises:
        CheckpointError: torch.export cannot trace a part.
    """
    layout = StateLayout.of(model)
    try:
        return _trace(model, layout), layout
    except CheckpointError:
        fixed = layout.fixed()
        if fixed.rates == layout.rates:
            raise
        return _trace(model, fixed), fixed


def _trace(model: CausalModel, layout: StateLayout) -> ExportedProgram:
    context = model.spec.context_length
    batch, length = Dim("batch"), Dim("length", max=context)
    sizes = {rate: Dim(name, max=rate.slots(context)) for rate, name in layout.rates.items()}
    state = {}
    for tensor in layout.tensors:
        slots = {} if tensor.axis is None or tensor.rate is None else {tensor.axis: sizes[tensor.rate]}
        state[tensor.name] = {0: batch, **slots}
    shapes = {"tokens": {0: batch, 1: length}, "num_tokens": {0: batch}, "state": state}
    longest = max((rate.tokens_per_slot for rate in layout.rates), default=1) * SLOTS
    inputs = step_inputs(model, min(LENGTH, context), layout.first(ROWS, min(longest, context)), seed=0)
    return export_module(Step(model, layout).eval(), inputs, shapes, model.spec.name)


def step_inputs(model: CausalModel, length: int, state: dict[str, Tensor], seed: int) -> Inputs:
    """Return a step's inputs: random tokens of rows that have different numbers of them, and a state."""
    generator, batch = torch.Generator().manual_seed(seed), len(state[LENGTHS])
    return {
        "tokens": torch.randint(model.spec.vocab_size, (batch, length), generator=generator),
        "num_tokens": torch.randint(1, length + 1, (batch,), generator=generator),
        "state": state,
    }
