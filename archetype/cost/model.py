"""The cost of whole models: embedding, head, and which work goes through which stack in each phase.

A source is as long as its target. What does not generate (encoders) has only the phase `forward`.
"""

from abc import ABC, abstractmethod
from itertools import pairwise

from archetype import spec
from archetype.cost.formula import Counts, multiple, prefixed, symbol
from archetype.cost.head import EmbeddingCost, HeadCost, LanguageModelHeadCost, decoder_head_cost, encoder_head_cost
from archetype.cost.registry import linear
from archetype.cost.stack import StackCost
from archetype.cost.work import FLOAT32, INT64, TrainingWork, Work


class ModelCost(ABC):
    """The cost of a model beside its stacks, and how it uses them."""

    generates = True  # whether it writes token by token
    reads = "sequences"  # what it reads: texts of any length, or images
    patch_size = 1  # tokens by which the state grows at once
    max_length: int | None = None  # the longest row that there are positions for, where that is limited
    head: HeadCost

    def __init__(self, model: spec.ModelSpec) -> None:
        self.spec, self.stacks = model, [StackCost(stack) for stack in model.stacks]

    @property
    def decoding_stacks(self) -> list[StackCost]:
        """The stacks that keep a state from token to token."""
        return self.stacks if self.generates else []

    @property
    def state_names(self) -> list[str]:
        """What the state is called, of each kind of mixer once."""
        blocks = [group.cost for stack in self.decoding_stacks for group in stack.groups]
        mixers = [mixer for block in blocks for mixer in (block.mixer, block.cross) if mixer and mixer.state(1)]
        return list(dict.fromkeys(mixer.state_name for mixer in mixers))

    @abstractmethod
    def embedding_parameters(self) -> Counts:
        """Parameters of the modules before the stacks."""

    def head_parameters(self) -> Counts:
        """Parameters of the modules after the stacks."""
        return self.head.parameters()

    def stack_work(self, work: Work) -> dict[str, Work]:
        """The workload of each stack, by the stack's prefix; a stack that rests has none."""
        return {stack.prefix: work._replace(causal=stack.stack.causal) for stack in self.stacks}

    def flops(self, work: Work) -> Counts:
        """FLOPs of the modules before and after the stacks."""
        return self.head.flops(work)

    def state(self, length: int) -> tuple[int, int]:
        """How many numbers and how many integers are in the state of one row with room for `length` tokens."""
        return 0, 0

    @abstractmethod
    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved before and after the stacks, without the loss."""


class EmbeddedModelCost(ModelCost):
    """A model whose stacks read vectors of tokens or patches and their positions."""

    def __init__(self, model: spec.Decoder | spec.EncoderDecoder | spec.Encoder | spec.VisionEncoder) -> None:
        super().__init__(model)
        self.d = symbol("D", model.d_model)
        vocabulary = symbol("V", 0 if isinstance(model, spec.VisionEncoder) else model.vocab_size)
        self.embedding = EmbeddingCost(model.embedding, vocabulary, model.context_length, self.d)
        self.max_length = self.embedding.max_length

    def embedding_parameters(self) -> Counts:
        """Parameters of the tables of tokens, their types and positions."""
        return prefixed("embedding.", self.embedding.parameters())

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes that autograd saves of embedding and head."""
        return self.embedding.saved_activations(work) + self.head.saved_activations(work)


class DecoderCost(EmbeddedModelCost):
    """A causal stack between an embedding and a head."""

    def __init__(self, model: spec.Decoder | spec.EncoderDecoder) -> None:
        super().__init__(model)
        self.head = decoder_head_cost(model, self.d)

    def state(self, length: int) -> tuple[int, int]:
        """The state of the stack."""
        return self.stacks[0].state(length), 0


class EncoderDecoderCost(DecoderCost):
    """The encoder reads the source once."""

    def __init__(self, model: spec.EncoderDecoder) -> None:
        super().__init__(model)
        vocabulary = symbol("V_s", model.source_vocab_size or model.vocab_size)
        source = EmbeddingCost(model.embedding, vocabulary, model.context_length, self.d)
        self.source_embedding = None if model.embedding.shared else source
        self.num_cross_attentions = sum(block.cross_attention is not None for block in model.decoder.layers)

    def embedding_parameters(self) -> Counts:
        """Parameters of one table for both, or of one each."""
        source = self.source_embedding.parameters() if self.source_embedding else {}
        return super().embedding_parameters() | prefixed("source_embedding.", source)

    def stack_work(self, work: Work) -> dict[str, Work]:
        """The source, unless it has been read, and the target."""
        encoder = {} if work.phase == "decode" else {"encoder.": work._replace(causal=False)}
        return encoder | {"decoder.": work._replace(source=work.length)}

    @property
    def decoding_stacks(self) -> list[StackCost]:
        """The decoder."""
        return self.stacks[1:]

    def state(self, length: int) -> tuple[int, int]:
        """The state of the decoder, with a source; each cross-attention keeps the source's length."""
        return self.stacks[1].state(length, source=length), self.num_cross_attentions

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes saved of embeddings and head, and of the encoder's output, which every cross-attention reads."""
        encoder_output = work.tokens * self.d.value * FLOAT32
        return super().saved_activations(work) + self.embedding.saved_activations(work) + encoder_output


class EncoderCost(EmbeddedModelCost):
    """A stack that sees whole texts."""

    generates = False

    def __init__(self, model: spec.Encoder | spec.VisionEncoder) -> None:
        super().__init__(model)
        self.model, self.head = model, encoder_head_cost(model, self.d)

    def head_parameters(self) -> Counts:
        """Parameters of the pooler, which stands with any head, and of the head."""
        pooler = {"pooler": linear(self.d, self.d, bias=True)} if self.model.pooler else {}
        return pooler | super().head_parameters()

    def saved_activations(self, work: TrainingWork) -> int:
        """Bytes that autograd saves of embedding and head, and the token types."""
        token_types = work.tokens * INT64 if self.model.embedding.num_token_types else 0
        return super().saved_activations(work) + token_types


class VisionEncoderCost(EncoderCost):
    """A picture has one length: its patches, and perhaps a class token."""

    reads = "images"

    def __init__(self, model: spec.VisionEncoder) -> None:
        super().__init__(model)
        self.max_length, self.class_token = model.context_length, model.class_token
        side = symbol("J", model.patch_size, model)
        self.patch = model.num_channels * side * side  # numbers of one patch

    def embedding_parameters(self) -> Counts:
        """Parameters of patches, the class token and positions."""
        patch = {"patch": linear(self.patch, self.d, bias=True), "class_token": self.d * self.class_token}
        embedding = self.embedding.parameters()
        return prefixed("embedding.", patch | {name: embedding[name] for name in ("position", "norm")})

    def flops(self, work: Work) -> Counts:
        """FLOPs of patches and head."""
        patches = work.rows * (work.length + -1 * self.class_token)
        return {"embedding.patch": 2 * patches * self.patch * self.d} | super().flops(work)

    def saved_activations(self, work: TrainingWork) -> int:
        """The pixels, and what the norm saves."""
        return work.input_bytes(self.patch.value) + self.embedding.norm.saved_activations(work.tokens)


class NGramCost(ModelCost):
    """Layers on the vectors of the newest n tokens; only answered tokens are computed."""

    def __init__(self, model: spec.NGram) -> None:
        super().__init__(model)
        self.n, d = model.n, symbol("D", model.d_model)
        self.table = symbol("V", model.vocab_size) * d
        widths = [symbol("n", model.n) * d, *(multiple("w", features, d) for features in model.hidden)]
        self.hidden = list(pairwise(widths))
        self.head = LanguageModelHeadCost(model.head, model.vocab_size, widths[-1])

    def embedding_parameters(self) -> Counts:
        """Parameters of the token table and of hidden layers."""
        hidden = {f"hidden.{i}": linear(*widths, bias=True) for i, widths in enumerate(self.hidden)}
        return {"embedding.token": self.table} | hidden

    def flops(self, work: Work) -> Counts:
        """FLOPs of hidden layers and head."""
        tokens = work.answered_tokens
        hidden = {f"hidden.{i}": 2 * tokens * inputs * outputs for i, (inputs, outputs) in enumerate(self.hidden)}
        return hidden | super().flops(work)

    @property
    def state_names(self) -> list[str]:
        """The newest tokens; a bigram model keeps none."""
        return ["newest tokens"] * (self.n > 1)

    def state(self, length: int) -> tuple[int, int]:
        """The tokens that are read again with the next one."""
        return 0, self.n - 1

    def saved_activations(self, work: TrainingWork) -> int:
        """The tokens, each hidden layer's input and tanh, and the head."""
        hidden = sum(work.input_bytes(width.value) for widths in self.hidden for width in widths)
        return work.tokens * self.n * INT64 + hidden + self.head.saved_activations(work)


class MegaByteCost(ModelCost):
    """A global model over patches and a local one over the bytes of each.

    A decoded byte takes its share of a step of the global model, which goes once for each patch, and a whole patch of
    the local model, which reads its patch anew for each byte. A byte's vector is 1 / J of the global width.
    """

    def __init__(self, model: spec.MegaByte) -> None:
        super().__init__(model)
        self.patch_size, self.max_length = model.patch_size, model.context_length
        self.patch, self.vocabulary = symbol("J", model.patch_size), symbol("V", model.vocab_size)
        self.positions = symbol("T_max", model.context_length)
        self.global_d, self.local_d = (stack.d for stack in self.stacks)
        self.byte_d = self.global_d / self.patch
        self.head = LanguageModelHeadCost(model.head, model.vocab_size, self.local_d)

    def embedding_parameters(self) -> Counts:
        """Parameters of both models' embeddings, and of the projection between them."""
        return {
            "global_embedding.token": self.vocabulary * self.byte_d,
            "global_embedding.position": self.positions * self.byte_d,
            "global_embedding.start": self.global_d,
            "local_embedding.token": self.vocabulary * self.local_d,
            "local_embedding.start": self.local_d,
            "projection": linear(self.byte_d, self.local_d, bias=True),
        }

    def stack_work(self, work: Work) -> dict[str, Work]:
        """Patches that are complete, with the one that the next byte belongs to; and the bytes of answered patches."""
        patches = symbol("M", work.length.value // self.patch_size + 1)
        steps = work.rows / self.patch if work.phase == "decode" else work.rows
        answered = work.rows * patches if work.phase == "forward" else work.rows
        return {
            "global_model.": work._replace(rows=steps, length=patches),
            "local_model.": work._replace(rows=answered, length=self.patch, phase="forward"),
        }

    def flops(self, work: Work) -> Counts:
        """FLOPs of the projection and the head."""
        local_tokens = self.stack_work(work)["local_model."].tokens
        return {"projection": 2 * local_tokens * self.byte_d * self.local_d} | super().flops(work)

    @property
    def decoding_stacks(self) -> list[StackCost]:
        """The global model; the local model reads its patch again for each byte."""
        return self.stacks[:1]

    @property
    def state_names(self) -> list[str]:
        """What the global model keeps, and the patch that is being written."""
        return [*super().state_names, "open patch"]

    def state(self, length: int) -> tuple[int, int]:
        """The start and every complete patch, the global model's newest output, and the bytes of one patch."""
        return self.stacks[0].state(length // self.patch_size + 1) + self.global_d.value, self.patch_size

    def saved_activations(self, work: TrainingWork) -> int:
        """Indices, the projection's input, and the head."""
        projection = work.input_bytes(self.byte_d.value)
        return 3 * work.tokens * INT64 + projection + self.head.saved_activations(work)


KINDS: dict[type[spec.Spec], type[ModelCost]] = {
    spec.Decoder: DecoderCost, spec.Encoder: EncoderCost, spec.EncoderDecoder: EncoderDecoderCost,
    spec.NGram: NGramCost, spec.MegaByte: MegaByteCost, spec.VisionEncoder: VisionEncoderCost,
}  # fmt: skip


def model_cost(model: spec.ModelSpec) -> ModelCost:
    """The cost of a model beside its stacks, and how it uses them."""
    return KINDS[type(model)](model)
