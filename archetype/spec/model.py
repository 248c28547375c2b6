"""Whole models: the root of a specification file."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from archetype.spec.activation import Activation
from archetype.spec.attention import Attention
from archetype.spec.base import Flag, Length, Size, Spec, WideSize, invalid
from archetype.spec.embedding import Embedding, PairEmbedding
from archetype.spec.feedforward import NoFeedForward
from archetype.spec.head import DecoderHead, EncoderHead, LanguageModelHead, MaskedLanguageModelHead, VisionHead
from archetype.spec.initialization import GPT2Initialization, Initialization
from archetype.spec.layers import Layers
from archetype.spec.norm import AnyNorm, NoNorm
from archetype.spec.position import Learned, Sinusoidal
from archetype.spec.recurrent import GRU, LSTM, RNN
from archetype.spec.stack import EndsWithNorm, SizedStack, Stack, StackView, check

__all__ = [
    "CausalSpec", "Decoder", "Encoder", "EncoderDecoder", "MegaByte", "ModelSpec", "NGram", "StateBridge",
    "VisionEncoder",
]  # fmt: skip

SCHEMA_VERSION = 1


class _Model(Spec):
    """Fields and questions that all models share.

    Attributes:
        version: of the file format.
        name: what the model is called; it changes no number.
    """

    version: Literal[1] = 1
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _version_is_known(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("version", SCHEMA_VERSION) != SCHEMA_VERSION:
            cause = f"schema version {data['version']!r:.40} is unknown here"
            invalid("version", cause, f"this Archetype reads version {SCHEMA_VERSION}")
        return data

    @model_validator(mode="after")
    def _stacks_hold(self) -> "_Model":
        for stack in self.stacks:
            check(stack)
        embedding, width = getattr(self, "embedding", None), getattr(self, "d_model", 0)
        if isinstance(embedding, Embedding) and isinstance(embedding.position, Sinusoidal) and width % 2:
            invalid("d_model", f"{width} features cannot be paired for sinusoidal positions", "use an even number")
        return self

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """Every stack of blocks, as it stands in the model."""
        return ()

    @property
    def num_layers(self) -> int:
        """L, of all stacks together."""
        return sum(len(stack.layers) for stack in self.stacks)

    @property
    def follows_length(self) -> bool:
        """Whether rotations depend on the length of the text, so that a text must be read whole."""
        return any(
            isinstance(block.mixer, Attention) and block.mixer.keys_follow_length
            for stack in self.stacks
            for block in stack.layers
        )


class Decoder(EndsWithNorm, _Model):
    """A stack in which no position sees a later one; it predicts the next token, or a class of the text.

    Attributes:
        vocab_size: tokens of the vocabulary, V.
        context_length: longest text, in tokens.
        d_model: features of each vector, D.
        embedding: how tokens become vectors.
        layers: blocks in turn, of which {repeat: n, block: ...} writes several.
        final_norm: of what the last layer gives; said with {kind: none} where a pre-norm stack has none.
        head: how vectors become logits.
        initialization: how weights are drawn.
    """

    kind: Literal["decoder"] = "decoder"
    vocab_size: WideSize
    context_length: Length
    d_model: Size
    embedding: Embedding = Embedding()
    layers: Layers
    final_norm: AnyNorm = NoNorm()
    head: DecoderHead = LanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """The one stack."""
        return (StackView("", self.layers, self.final_norm, self.d_model, causal=True),)


class Encoder(EndsWithNorm, _Model):
    """A stack in which every position sees every other; it understands a text that is whole (Devlin 2018).

    `pooler` adds a layer with tanh on the first token's vector, which stands for the text.

    Attributes:
        vocab_size: tokens of the vocabulary, V.
        context_length: longest text, in tokens.
        d_model: features of each vector, D.
        embedding: how tokens become vectors.
        layers: blocks in turn, of which {repeat: n, block: ...} writes several.
        final_norm: of what the last layer gives; said with {kind: none} where a pre-norm stack has none.
        pooler: a layer with tanh on the first token's vector.
        head: what is answered for the vectors.
        initialization: how weights are drawn.
    """

    kind: Literal["encoder"] = "encoder"
    vocab_size: WideSize
    context_length: Length
    d_model: Size
    embedding: Embedding = Embedding()
    layers: Layers
    final_norm: AnyNorm = NoNorm()
    pooler: Flag = False
    head: EncoderHead = MaskedLanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """The one stack."""
        return (StackView("", self.layers, self.final_norm, self.d_model, causal=False),)


class StateBridge(Spec):
    """Each recurrent layer of the decoder starts from the last state of the encoder's (Sutskever 2014)."""

    kind: Literal["state"] = "state"


class EncoderDecoder(_Model):
    """A target text written with a view of a source text (Sutskever 2014; Vaswani 2017).

    The decoder sees the source through the `cross_attention` of its blocks, through a `state_bridge`, or both.
    `source_vocab_size` is the encoder's where the embeddings are not shared (absent: the same).

    Attributes:
        vocab_size: tokens of the target's vocabulary, V.
        source_vocab_size: tokens of the source's, where embeddings are not shared (absent: the same).
        context_length: longest text on either side, in tokens.
        d_model: features of each vector, D.
        embedding: how tokens become vectors.
        encoder: the stack that reads the source.
        decoder: the stack that writes the target.
        state_bridge: hands the encoder's last states to the decoder (absent: it does not).
        head: how vectors become logits.
        initialization: how weights are drawn.
    """

    renamed: ClassVar[dict[str, str]] = {"bridge": "state_bridge"}
    kind: Literal["encoder_decoder"] = "encoder_decoder"
    vocab_size: WideSize
    source_vocab_size: WideSize | None = None
    context_length: Length
    d_model: Size
    embedding: PairEmbedding = PairEmbedding()
    encoder: Stack
    decoder: Stack
    state_bridge: StateBridge | None = None
    head: LanguageModelHead = LanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """Encoder and decoder."""
        return (
            StackView("encoder.", self.encoder.layers, self.encoder.final_norm, self.d_model, causal=False),
            StackView("decoder.", self.decoder.layers, self.decoder.final_norm, self.d_model, True, crosses=True),
        )

    @model_validator(mode="after")
    def _source_is_seen(self) -> "EncoderDecoder":
        if self.source_vocab_size is not None and self.embedding.shared:
            invalid("source_vocab_size", "a shared table has one vocabulary", "leave it out, or use shared: false")
        crosses = any(block.cross_attention is not None for block in self.decoder.layers)
        if self.state_bridge is None and not crosses:
            remedy = "give a block cross_attention, or state_bridge: {kind: state} to recurrent stacks"
            invalid("decoder.layers", "no block of the decoder sees the source", remedy)
        if self.state_bridge is not None:
            ours = [type(block.mixer) for block in self.encoder.layers]
            theirs = [type(block.mixer) for block in self.decoder.layers]
            if ours != theirs or not set(ours) <= {RNN, LSTM, GRU}:
                cause = "a bridge of states needs the same recurrent mixers in both stacks, layer by layer"
                invalid("state_bridge", cause, "make the stacks alike, or use cross-attention")
            if not crosses:
                self._check_all_is_read()
        return self

    def _check_all_is_read(self) -> None:
        """A bridge alone hands over states: what only the encoder's last vectors pass would never be trained."""
        last, place = self.encoder.layers[-1], f"encoder.layers[{len(self.encoder.layers) - 1}]"
        cause, remedy = "the decoder reads the encoder's states alone", "or give a block of the decoder cross_attention"
        if not isinstance(self.encoder.final_norm, NoNorm):
            invalid("encoder.final_norm", f"{cause}, so this is never trained", f"use kind none, {remedy}")
        if not isinstance(last.feedforward, NoFeedForward):
            invalid(f"{place}.feedforward", f"{cause}, so this is never trained", f"leave it out, {remedy}")
        if last.wiring.normalizes_output and not isinstance(getattr(last.wiring, "norm", NoNorm()), NoNorm):
            invalid(f"{place}.wiring.norm", f"{cause}, so this is never trained", f"use plain or pre_norm, {remedy}")


class NGram(_Model):
    """The next token from the `n` newest, through layers of tanh (Bengio 2003); n = 1 is the bigram model.

    `hidden` are the layers' widths. Before a text's start stand vectors of zeros.

    Attributes:
        vocab_size: tokens of the vocabulary, V.
        context_length: longest text, in tokens.
        n: newest tokens that are read.
        d_model: features of each vector, D.
        hidden: widths of the hidden layers.
        activation: their nonlinearity.
        head: how vectors become logits.
        initialization: how weights are drawn.
    """

    kind: Literal["ngram"] = "ngram"
    vocab_size: WideSize
    context_length: Length
    n: Size
    d_model: Size
    hidden: tuple[WideSize, ...] = ()
    activation: Activation = "tanh"
    head: LanguageModelHead = LanguageModelHead(bias=True)
    initialization: Initialization = GPT2Initialization()

    @property
    def width(self) -> int:
        """Features that the head reads."""
        return self.hidden[-1] if self.hidden else self.n * self.d_model

    @model_validator(mode="after")
    def _head_fits(self) -> "NGram":
        if self.head.tied and self.width != self.d_model:
            cause = f"the head reads {self.width} features and the embedding has {self.d_model}"
            invalid("head.tied", cause, f"end hidden with {self.d_model}, or leave tied out")
        return self


class MegaByte(_Model):
    """A global model over patches of `patch_size` bytes, and a local one over the bytes of each (Yu 2023).

    A byte's vector has 1 / patch_size of the global model's width for the global model, which reads whole patches, and
    the local model's width for the local one, to which a projection of the global model's output is added.

    Attributes:
        vocab_size: values of a byte, V.
        context_length: longest text, in bytes.
        patch_size: bytes of a patch, J.
        global_model: the stack over patches.
        local_model: the stack over a patch's bytes.
        head: how vectors become logits.
        initialization: how weights are drawn.
    """

    letters: ClassVar[Mapping[str, str]] = {"T": "bytes of a sequence"}
    kind: Literal["megabyte"] = "megabyte"
    vocab_size: WideSize = 256
    context_length: Length
    patch_size: Size
    global_model: SizedStack
    local_model: SizedStack
    head: LanguageModelHead = LanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """Global and local."""
        sides = (("global_model.", self.global_model), ("local_model.", self.local_model))
        return tuple(
            StackView(prefix, side.layers, side.final_norm, side.d_model, causal=True) for prefix, side in sides
        )

    @model_validator(mode="after")
    def _patches_divide(self) -> "MegaByte":
        widths = (("global_model.d_model", self.global_model.d_model), ("context_length", self.context_length))
        for name, size in widths:
            if size % self.patch_size:
                cause = f"patch_size {self.patch_size} does not divide {size}"
                invalid(name, cause, f"use a multiple, such as {-(-size // self.patch_size) * self.patch_size}")
        return self


class VisionEncoder(EndsWithNorm, _Model):
    """A picture as a text of patches (Dosovitskiy 2020).

    A `class_token` before the patches stands for the picture; without it the mean of the patches does. `pooler` adds a
    layer with tanh on it.

    Attributes:
        image_size: height and width of a picture, in pixels.
        patch_size: height and width of a patch, in pixels.
        num_channels: of a picture.
        d_model: features of each vector, D.
        class_token: whether a learned vector stands before the patches.
        embedding: how patches become vectors.
        layers: blocks in turn, of which {repeat: n, block: ...} writes several.
        final_norm: of what the last layer gives; said with {kind: none} where a pre-norm stack has none.
        pooler: a layer with tanh on the pooled vector.
        head: what is answered for the picture.
        initialization: how weights are drawn.
    """

    renamed: ClassVar[dict[str, str]] = {"channels": "num_channels"}
    letters: ClassVar[Mapping[str, str]] = {"T": "positions of an image", "J": "pixels of a patch's side"}
    kind: Literal["vision_encoder"] = "vision_encoder"
    image_size: Size
    patch_size: Size
    num_channels: Size = 3
    d_model: Size
    class_token: Flag = True
    embedding: Embedding = Embedding(position=Learned())
    layers: Layers
    final_norm: AnyNorm = NoNorm()
    pooler: Flag = False
    head: VisionHead
    initialization: Initialization = GPT2Initialization()

    @property
    def context_length(self) -> int:
        """Positions: the patches, and the class token."""
        return (self.image_size // self.patch_size) ** 2 + self.class_token

    @property
    def stacks(self) -> tuple[StackView, ...]:
        """The one stack."""
        return (StackView("", self.layers, self.final_norm, self.d_model, causal=False),)

    @model_validator(mode="after")
    def _patches_divide(self) -> "VisionEncoder":
        if self.image_size % self.patch_size:
            cause = f"{self.patch_size} does not divide image_size {self.image_size}"
            invalid("patch_size", cause, "use a divisor")
        if self.embedding.num_token_types:
            invalid("embedding.num_token_types", "patches of a picture are all of one type", "leave it out")
        return self


# Models that write text, token by token.
CausalSpec = Decoder | NGram | MegaByte

ModelSpec = Annotated[
    Decoder | Encoder | EncoderDecoder | NGram | MegaByte | VisionEncoder, Field(discriminator="kind")
]
MODELS: dict[str, type[_Model]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder_decoder": EncoderDecoder,
    "ngram": NGram,
    "megabyte": MegaByte,
    "vision_encoder": VisionEncoder,
}
