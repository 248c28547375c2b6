"""Recurrent language models: Elman's (Mikolov 2010), long short-term memory (Sundermeyer 2012), gated units."""

from archetype import spec
from archetype.families.family import Family, tiny


def recurrent(
    *,
    name: str = "",
    mixer: spec.Mixer,
    num_layers: int,
    d_model: int,
    vocab_size: int,
    context_length: int,
    dropout: float = 0.0,
) -> spec.Decoder:
    """Recurrences one after the other, between an embedding and the logits."""
    block = spec.Block(wiring=spec.Plain(), mixer=mixer, dropout=dropout)
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=spec.repeat(num_layers, block),
        head=spec.LanguageModelHead(bias=True),
        initialization=spec.XavierInitialization(),
    )


FAMILY = Family("recurrent", tiny(recurrent, {
    "rnn-tiny": dict(num_layers=2, mixer=spec.RNN()),
    "lstm-tiny": dict(num_layers=2, mixer=spec.LSTM()),
    "gru-tiny": dict(num_layers=2, mixer=spec.GRU()),
}))  # fmt: skip
