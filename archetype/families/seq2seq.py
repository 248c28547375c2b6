"""LSTM encoder-decoders: with a fixed-size state (Sutskever 2014), or with attention to the source (Bahdanau 2014)."""

from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.models.block.spec import Block, Plain
from archetype.models.encoder_decoder.spec import EncoderDecoder, StateBridge
from archetype.models.initialization_spec import XavierInitialization
from archetype.models.stack.spec import Stack
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import PairEmbedding
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.recurrent.spec import LSTM
from archetype.spec.repeats import repeat


def seq2seq(*, num_layers: int, attention: bool = False, dropout: float = 0.0, **sizes: Any) -> EncoderDecoder:
    """Build an LSTM encoder-decoder. The decoder starts from the encoder's last states.

    With `attention`, the encoder is bidirectional, and the last layer of the decoder attends to the encoder's outputs
    with additive scores.
    """
    plain, last = Plain(), Attention(num_heads=1, score="additive") if attention else None
    source = Block(wiring=plain, mixer=LSTM(bidirectional=attention), dropout=dropout)
    target = Block(wiring=plain, mixer=LSTM(), dropout=dropout)
    return EncoderDecoder(
        embedding=PairEmbedding(shared=False),
        encoder=Stack(layers=repeat(num_layers, source)),
        decoder=Stack(layers=(*repeat(num_layers - 1, target), target.replace(cross_attention=last))),
        state_bridge=StateBridge(),
        head=LanguageModelHead(bias=True),
        initialization=XavierInitialization(),
        **sizes,
    )


FAMILY = Family("seq2seq", {
    **presets("Sutskever 2014, section 3.4: 384M parameters; no longest sentence is given, and 128 is ours", seq2seq,
        {
            "seq2seq-lstm": dict(num_layers=4, d_model=1000, vocab_size=80_000, source_vocab_size=160_000,
                context_length=128),
        }),
    **tiny(seq2seq, {
        # 256 bytes and the end of a text
        "seq2seq-lstm-tiny": dict(num_layers=2, vocab_size=257),
        "seq2seq-attention-tiny": dict(num_layers=2, attention=True, vocab_size=257),
    }),
})
