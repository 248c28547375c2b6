"""Cost of encoder-decoders, which encode each source once."""

from archetype.cost.formula import ZERO, Counts, Formula, prefixed, symbol
from archetype.cost.registry import cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.models.cost import EmbeddedModelCost
from archetype.models.encoder_decoder import spec
from archetype.models.stack.cost import StackCost
from archetype.parts.embedding.cost import TokenEmbeddingCost
from archetype.parts.head.cost import HeadCost


@cost_of(spec.EncoderDecoder)
class EncoderDecoderCost(EmbeddedModelCost):
    def __init__(self, model: spec.EncoderDecoder) -> None:
        super().__init__(model, model.vocab_size)
        self.head = HeadCost.of(model.head, self.d, model.vocab_size)
        self.source_embedding: TokenEmbeddingCost | None = None
        if not model.embedding.is_shared:
            vocabulary = symbol("V_s", model.source_vocab_size or model.vocab_size)
            self.source_embedding = TokenEmbeddingCost.of(model.embedding, self.d, vocabulary, model.context_length)
        elif (placement := model.embedding.source_placement) is not None:  # without a table
            self.source_embedding = TokenEmbeddingCost.of(placement, self.d, ZERO, model.context_length)
        self.num_cross_attentions = sum(block.cross_attention is not None for block in model.decoder.layers)

    def embedding_parameters(self) -> Counts:
        # shared or separate tables, and each side's positions
        source = self.source_embedding.parameters() if self.source_embedding else {}
        return super().embedding_parameters() | prefixed("source_embedding.", source)

    def flops(self, work: Work) -> Counts:
        counts = super().flops(work)
        # decoding reads an encoded source
        if work.phase != "decode":
            prefix, source = (
                ("embedding.", self.embedding)
                if self.source_embedding is None
                else ("source_embedding.", self.source_embedding)
            )
            for name, count in prefixed(prefix, source.flops(work._replace(length=_source(work)))).items():
                counts[name] = counts.get(name, ZERO) + count
        return counts

    def stack_work(self, work: Work) -> dict[str, Work]:
        # the encoder does not run once the source has been read
        source = _source(work)
        reading = work._replace(length=source, causal=False, source=None)
        return ({} if work.phase == "decode" else {"encoder.": reading}) | {"decoder.": work._replace(source=source)}

    @property
    def decoding_stacks(self) -> list[StackCost]:
        return self.stacks[1:]

    def state(self, length: int, source: int | None = None) -> tuple[int, int]:
        # per cross-attention, one integer: the source's length
        integers = self.num_cross_attentions + self.stacks[1].state_integers(length)
        return self.stacks[1].state(length, source=source or length), integers

    def saved_activations(self, work: TrainingWork) -> int:
        reading = work._replace(length=work.source or work.length)
        encoder_output = reading.tokens * self.d.value * FLOAT32  # read by all cross-attentions
        source = self.source_embedding or self.embedding
        return super().saved_activations(work) + source.saved_activations(reading) + encoder_output


def _source(work: Work) -> Formula:
    # as long as the target if it is not given
    return symbol("T_s", work.source.value) if work.source else work.length
