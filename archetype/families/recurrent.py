"""Recurrent language models: Elman's (Mikolov 2010), LSTM (Sundermeyer 2012) and GRU."""

from typing import Any

from archetype.families.family import Family, tiny
from archetype.models.block.spec import Block, Plain
from archetype.models.decoder.spec import Decoder
from archetype.models.initialization_spec import XavierInitialization
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.roles.mixer import Mixer
from archetype.spec.repeats import repeat


def recurrent(*, mixer: Mixer, num_layers: int, **sizes: Any) -> Decoder:
    """Build a decoder of stacked recurrent layers between an embedding and the logits."""
    block = Block(wiring=Plain(), mixer=mixer)
    return Decoder(
        layers=repeat(num_layers, block),
        head=LanguageModelHead(bias=True),
        initialization=XavierInitialization(),
        **sizes,
    )


FAMILY = Family("recurrent", tiny(recurrent, {
    "rnn-tiny": dict(num_layers=2, mixer=RNN()),
    "lstm-tiny": dict(num_layers=2, mixer=LSTM()),
    "gru-tiny": dict(num_layers=2, mixer=GRU()),
}))
