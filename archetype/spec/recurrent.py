"""Mixers that read a text from its start to its end and remember a vector of constant size."""

from typing import Literal

from pydantic import model_validator

from archetype.spec.base import Flag, Positive, Size, Spec, invalid


class _Recurrent(Spec):
    """`bidirectional`: half of the features read the text from its end (Schuster 1997); for encoders only."""

    bidirectional: Flag = False

    def fits(self, d_model: int) -> None:
        """Check, inside a validator, what depends on the model's width."""
        if self.bidirectional and d_model % 2:
            invalid("bidirectional", f"{d_model} features cannot be halved", "use an even d_model")

    def stands(self, causal: bool) -> None:
        """Check, inside a validator, what depends on the direction of the stack."""
        if causal and self.bidirectional:
            invalid("bidirectional", "a decoder must not read from the end", "leave it out, or use an encoder")


class RNN(_Recurrent):
    """h' = f(W x + b + U h + c), f = tanh or relu (Elman 1990; Mikolov 2010)."""

    kind: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = "tanh"


class LSTM(_Recurrent):
    """Long short-term memory with a forget gate (Hochreiter 1997; Gers 2000); gates in torch's order i, f, g, o."""

    kind: Literal["lstm"] = "lstm"


class GRU(_Recurrent):
    """Gated recurrent unit, the reset gate after the product (Cho 2014); gates in torch's order r, z, n."""

    kind: Literal["gru"] = "gru"


class Mamba(Spec):
    """Selective state space (Gu 2023, algorithm 2): convolution, scan, gate.

    E = expand * d_model channels, each with `state_size` numbers that decay by exp(delta A); delta, B and C follow the
    token. Absent: `dt_rank` is d_model / 16, rounded up.
    """

    kind: Literal["mamba"] = "mamba"
    expand: Size = 2
    state_size: Size = 16
    conv_kernel: Size = 4
    dt_rank: Size | None = None
    conv_bias: Flag = True
    bias: Flag = False
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1

    @model_validator(mode="after")
    def _steps_are_ordered(self) -> "Mamba":
        if self.dt_max < self.dt_min:
            invalid("dt_max", f"{self.dt_max} is below dt_min {self.dt_min}", "use a larger one")
        return self

    def fits(self, d_model: int) -> None:
        """Every width does."""

    def stands(self, causal: bool) -> None:
        """In every stack: it reads from the start wherever it stands."""

    def rank(self, d_model: int) -> int:
        """The rank of delta's projection, for a model of width `d_model`."""
        return self.dt_rank or -(-d_model // 16)
