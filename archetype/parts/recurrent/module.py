"""Recurrent mixers with a state of constant size, computed by torch's kernels."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from archetype.native.torch_hooks import without_onednn
from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.symbolic import is_symbolic, scan
from archetype.parts.recurrent import spec


@dataclass
class RNNState(LayerState):
    """Last output. A bidirectional RNN concatenates the forward and the backward output."""

    hidden: Float[Tensor, "B D"]

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        return tuple(vectors for _, vectors in self._values())

    def update(self, *vectors: Tensor) -> None:
        for (name, _), new in zip(self._values(), vectors, strict=True):
            setattr(self, name, new)


@dataclass
class LSTMState(RNNState):
    """Last output and cell."""

    cell: Float[Tensor, "B D"]


class _Uniform:
    """Initialize every tensor uniform within 1 / sqrt(hidden_size), as torch does."""

    hidden_size: int

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        bound = self.hidden_size**-0.5
        tensor.uniform_(-bound, bound, generator=generator)
        return True


class _RNN(_Uniform, nn.RNN): ...


class _LSTM(_Uniform, nn.LSTM): ...


class _GRU(_Uniform, nn.GRU): ...


CELLS: Mapping[str, Callable[..., Any]] = {  # one step of each kernel, by torch's name of its mode
    "RNN_TANH": torch.rnn_tanh_cell,
    "RNN_RELU": torch.rnn_relu_cell,
    "LSTM": torch.lstm_cell,
    "GRU": torch.gru_cell,
}


@module_for(spec.RNN, spec.LSTM, spec.GRU)
class Recurrent(nn.Module):
    """RNN, LSTM or GRU over the positions (Elman 1990; Hochreiter 1997; Cho 2014).

    Two directions have D / 2 features each. The backward direction starts at each row's last token that is not padding.
    Its output depends only on the tokens of this pass and is not updated by later tokens.
    """

    # torch's kernel exposes nothing; gates are recomputed from its input and output
    probes: ClassVar[dict[str, str]] = {}

    def __init__(self, mixer: spec.RNN | spec.LSTM | spec.GRU, place: Place) -> None:
        super().__init__()
        self.layer, self.directions = place.layer, 2 if mixer.bidirectional else 1
        self.d_model = place.d_model
        self.cell = _cell(mixer, self.d_model, self.d_model // self.directions)

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> RNNState:
        kind = LSTMState if isinstance(self.cell, nn.LSTM) else RNNState
        vectors = 2 if kind is LSTMState else 1
        return kind(*(torch.zeros(batch, self.d_model, dtype=dtype, device=device) for _ in range(vectors)))

    def forward(self, x: Vectors, context: ForwardContext, cache: LayerState | None = None) -> Vectors:
        if cache is None:
            return self._run_cell(x, context, None)[0]
        assert isinstance(cache, RNNState)
        before = context.before(cache).vectors
        y, last = self._run_cell(x, context, self._split(before, x.dtype))  # last: (directions, B, h) each
        new = [vectors.transpose(0, 1).flatten(1).to(cache.hidden.dtype) for vectors in last]  # (B, D)
        if context.num_tokens is not None:  # rows without tokens keep their state
            has_tokens = (context.num_tokens > 0)[:, None]
            new = [torch.where(has_tokens, now, old) for now, old in zip(new, before, strict=True)]
        cache.update(*new)
        return y

    def _split(self, vectors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Float[Tensor, "directions B h"], ...]:
        # the kernel takes (directions, B, h)
        halves = (vector.to(dtype).unflatten(1, (self.directions, -1)) for vector in vectors)
        return tuple(half.transpose(0, 1).contiguous() for half in halves)

    def _run_cell(
        self, x: Tensor, context: ForwardContext, first: tuple[Tensor, ...] | None
    ) -> tuple[Vectors, tuple[Tensor, ...]]:
        # the outputs, and the state after each row's last token
        if is_symbolic(x.shape[1]):
            return self._scan_cell(x, context, first)
        # torch takes and returns a pair (hidden, cell) for an LSTM, and a tensor otherwise
        start = first if first is None or isinstance(self.cell, nn.LSTM) else first[0]
        # padding is at the end, so it matters only to a backward direction or to the final state
        if context.num_tokens is None or x.shape[1] == 1 or (first is None and self.directions == 1):
            with _kernels(x):
                y, last = self.cell(x, start)
        else:
            num_tokens = context.num_tokens.clamp(min=1).cpu()  # the kernel does not accept empty rows
            # The kernel then starts the backward direction, and takes the last state, at each row's last token. The
            # lengths must be on the CPU.
            packed = pack_padded_sequence(x, num_tokens, batch_first=True, enforce_sorted=False)
            with _kernels(x):
                y, last = self.cell(packed, start)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])  # (B, T, D), zeros at padding
        return y, last if isinstance(last, tuple) else (last,)

    def _scan_cell(
        self, x: Tensor, context: ForwardContext, first: tuple[Tensor, ...] | None
    ) -> tuple[Vectors, tuple[Tensor, ...]]:
        # as `_run_cell`, position by position, for tracing; padding is skipped and gives zeros
        if first is None:
            first = self._split(self.new_state(x.shape[0], 0, x.dtype, x.device).vectors, x.dtype)
        valid = torch.ones_like(x[..., :1], dtype=torch.bool) if context.valid is None else context.valid[..., None]
        cell = CELLS[self.cell.mode]
        outputs, lasts = [], []
        for direction, weights in enumerate(self.cell.all_weights):

            def step(*values: Tensor, weights: Sequence[Tensor] = weights) -> tuple[Tensor, ...]:
                *states, x_t, is_token = values  # states (B, h), x_t (B, D), is_token (B, 1)
                new = cell(x_t, states[0] if len(states) == 1 else states, *weights)
                after = new if isinstance(new, tuple) else (new,)
                states = [torch.where(is_token, *pair) for pair in zip(after, states, strict=True)]
                return torch.where(is_token, after[0], 0.0), *states

            starts = tuple(vector[direction].clone() for vector in first)
            y, *last = scan(step, starts, x, valid, backward=direction == 1)
            outputs.append(y)
            lasts.append(last)
        return torch.cat(outputs, dim=-1), tuple(torch.stack(vectors) for vectors in zip(*lasts, strict=True))


def _kernels(x: Tensor) -> AbstractContextManager[None]:
    # oneDNN has no bfloat16 cells for processors without such instructions
    in_bfloat16 = x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    is_known = x.device.type != "cpu" or not in_bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return nullcontext() if is_known else without_onednn()


def _cell(mixer: spec.RNN | spec.LSTM | spec.GRU, inputs: int, hidden: int) -> nn.RNNBase:
    options: dict[str, Any] = {"batch_first": True, "bidirectional": mixer.bidirectional}
    if isinstance(mixer, spec.RNN):
        return _RNN(inputs, hidden, nonlinearity=mixer.activation, **options)
    return (_LSTM if isinstance(mixer, spec.LSTM) else _GRU)(inputs, hidden, **options)
