"""LSTM encoder-decoders: a state handed over (Sutskever 2014), and attention to the source (Bahdanau 2014)."""

from archetype import spec
from archetype.families.family import Family, presets, tiny


def seq2seq(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    vocab_size: int,
    source_vocab_size: int | None = None,
    context_length: int,
    attention: bool = False,
    dropout: float = 0.0,
) -> spec.EncoderDecoder:
    """LSTMs on both sides, the decoder's starting from the last states of the encoder's.

    With `attention` the encoder reads in both directions, and the decoder's last layer attends to all of its output,
    by additive scores.
    """
    plain, last = spec.Plain(), spec.Attention(num_heads=1, score="additive") if attention else None
    source = spec.Block(wiring=plain, mixer=spec.LSTM(bidirectional=attention), dropout=dropout)
    target = spec.Block(wiring=plain, mixer=spec.LSTM(), dropout=dropout)
    return spec.EncoderDecoder(
        name=name,
        vocab_size=vocab_size,
        source_vocab_size=source_vocab_size,
        context_length=context_length,
        d_model=d_model,
        embedding=spec.PairEmbedding(shared=False),
        encoder=spec.Stack(layers=spec.repeat(num_layers, source)),
        decoder=spec.Stack(layers=(*spec.repeat(num_layers - 1, target), target.replace(cross_attention=last))),
        state_bridge=spec.StateBridge(),
        head=spec.LanguageModelHead(bias=True),
        initialization=spec.XavierInitialization(),
    )


FAMILY = Family("seq2seq", {
    **presets("Sutskever 2014, section 3.4: 384M parameters; no longest sentence is given, and 128 is ours", seq2seq,
        {
            "seq2seq-lstm": dict(num_layers=4, d_model=1000, vocab_size=80_000, source_vocab_size=160_000,
                context_length=128),
        }),
    **tiny(seq2seq, {
        # the bytes, and the end of a text
        "seq2seq-lstm-tiny": dict(num_layers=2, vocab_size=257),
        "seq2seq-attention-tiny": dict(num_layers=2, attention=True, vocab_size=257),
    }),
})  # fmt: skip
