"""The contents of a block that mix positions."""

from typing import Annotated

from pydantic import Field

from archetype.spec.attention import Attention, LatentAttention
from archetype.spec.recurrent import GRU, LSTM, RNN, Mamba

Mixer = Annotated[Attention | LatentAttention | RNN | LSTM | GRU | Mamba, Field(discriminator="kind")]
