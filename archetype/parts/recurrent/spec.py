"""Recurrent mixers, which read a sequence in order and keep a vector of constant size."""

from typing import ClassVar, Literal

from archetype.roles.mixer import Mixer
from archetype.spec.base import Flag
from archetype.spec.errors import invalid
from archetype.spec.kinds import part


class _Recurrent(Mixer):
    """Base of recurrent mixers. `bidirectional` reads the sequence in both directions (Schuster 1997; encoders only).

    Attributes:
        bidirectional: whether half of the features read the sequence backwards.
    """

    bidirectional: Flag = False

    def check(self, width: int, causal: bool) -> None:
        if self.bidirectional and width % 2:
            invalid("bidirectional", f"{width} features cannot be halved", "use an even d_model")
        if self.bidirectional and causal:
            invalid("bidirectional", "a decoder must not read from the end", "remove it, or use an encoder")


@part
class RNN(_Recurrent):
    """h' = f(W x + b + U h + c), f = tanh or relu (Elman 1990; Mikolov 2010).

    Attributes:
        activation: activation f.
    """

    title: ClassVar[str] = "RNN"
    kind: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = "tanh"


@part
class LSTM(_Recurrent):
    """Long short-term memory with a forget gate (Hochreiter 1997; Gers 2000). Gates are in torch's order i, f, g, o."""

    title: ClassVar[str] = "LSTM"
    kind: Literal["lstm"] = "lstm"


@part
class GRU(_Recurrent):
    """Gated recurrent unit, reset gate after the matrix product (Cho 2014). Gates are in torch's order r, z, n."""

    title: ClassVar[str] = "GRU"
    kind: Literal["gru"] = "gru"
