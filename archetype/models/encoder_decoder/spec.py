"""Specification of encoder-decoders."""

from typing import ClassVar, Literal

from pydantic import model_validator

from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import Stack, StackView
from archetype.parts.embedding.spec import PairEmbedding
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import NoNorm
from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.roles.embedding import AnyPairEmbedding
from archetype.roles.head import PairHead
from archetype.spec.base import Spec
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Context, Vocabulary, Width


class StateBridge(Spec):
    """Initialize each recurrent decoder layer with the last state of its encoder layer (Sutskever 2014)."""

    kind: Literal["state"] = "state"


@part
class EncoderDecoder(ModelSpec):
    """Generation of a target text from a source text, or classification of both (Sutskever 2014; Vaswani 2017).

    The decoder reads the source through `cross_attention` in its blocks, through a `state_bridge`, or both.
    `source_vocab_size` is the encoder's vocabulary size if embeddings are not shared (absent: `vocab_size`).

    Attributes:
        vocab_size: vocabulary size of the target, V.
        source_vocab_size: vocabulary size of the source, if embeddings are not shared (absent: `vocab_size`).
        context_length: maximum length of source and target in tokens.
        d_model: width of the hidden vectors, D.
        embedding: token embedding.
        encoder: stack that reads the source.
        decoder: stack that generates the target.
        state_bridge: initialization of the decoder's states from the encoder's (absent: none).
        head: head that reads the final vectors; classification uses the target's last token (Lewis 2019, section 4.1).
        initialization: initialization of the weights.
    """

    reads_source: ClassVar[bool] = True
    kind: Literal["encoder_decoder"] = "encoder_decoder"
    vocab_size: Vocabulary
    source_vocab_size: Vocabulary | None = None
    context_length: Context
    d_model: Width
    embedding: AnyPairEmbedding = PairEmbedding()
    encoder: Stack
    decoder: Stack
    state_bridge: StateBridge | None = None
    head: PairHead = LanguageModelHead()
    initialization: Initialization = GPT2Initialization()

    @property
    def stacks(self) -> tuple[StackView, ...]:
        encoder, decoder = self.encoder, self.decoder
        return (
            StackView(
                "encoder.",
                encoder.layers,
                encoder.final_norm,
                self.d_model,
                causal=False,
                residual=encoder.residual,
                vocab_size=self.input_vocab_size,
            ),
            StackView(
                "decoder.",
                decoder.layers,
                decoder.final_norm,
                self.d_model,
                causal=True,
                crosses=True,
                residual=decoder.residual,
                vocab_size=self.vocab_size,
            ),
        )

    @property
    def writes_target(self) -> bool:
        return bool(self.head.predicts_next)

    @property
    def input_vocab_size(self) -> int:
        return self.source_vocab_size or self.vocab_size

    @model_validator(mode="after")
    def _source_is_seen(self) -> "EncoderDecoder":
        if self.source_vocab_size is not None and self.embedding.is_shared:
            invalid("source_vocab_size", "a shared table has one vocabulary", "remove it, or use shared: false")
        crosses = any(block.cross_attention is not None for block in self.decoder.layers)
        if self.state_bridge is None and not crosses:
            remedy = "add cross_attention to a block, or set state_bridge: {kind: state} for recurrent stacks"
            invalid("decoder.layers", "no decoder block reads the source", remedy)
        if self.state_bridge is not None:
            ours = [type(block.mixer) for block in self.encoder.layers]
            theirs = [type(block.mixer) for block in self.decoder.layers]
            if ours != theirs or not set(ours) <= {RNN, LSTM, GRU}:
                cause = "a state bridge needs the same recurrent mixer in each layer of both stacks"
                invalid("state_bridge", cause, "use the same layers in both stacks, or cross-attention")
            for stack in ("encoder", "decoder"):
                for index, block in enumerate(getattr(self, stack).layers):
                    if not block.feedforward.separates_documents:
                        cause = "a state bridge passes on only mixer states, and this part reads other positions, too"
                        invalid(f"{stack}.layers[{index}].feedforward", cause, "remove it, or use cross-attention")
            if not crosses:
                self._check_all_is_read()
        return self

    def _check_all_is_read(self) -> None:
        # with only a bridge, everything that does not affect the encoder's states would never be trained
        last, path = self.encoder.layers[-1], f"encoder.layers[{len(self.encoder.layers) - 1}]"
        cause, remedy = (
            "the decoder reads only the encoder's states",
            "or add cross_attention to a block of the decoder",
        )
        if not self.encoder.final_norm.is_absent:
            invalid("encoder.final_norm", f"{cause}, so this is never trained", f"use kind none, {remedy}")
        if not last.feedforward.is_absent:
            invalid(f"{path}.feedforward", f"{cause}, so this is never trained", f"remove it, {remedy}")
        if last.wiring.normalizes_output and not getattr(last.wiring, "norm", NoNorm()).is_absent:
            invalid(f"{path}.wiring.norm", f"{cause}, so this is never trained", f"use plain or pre_norm, {remedy}")
