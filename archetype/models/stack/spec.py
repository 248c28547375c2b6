"""Stacks: layers, consistency checks between them, and a final norm."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from pydantic import model_validator

from archetype.models.block.spec import Block
from archetype.models.stack.layers import Layers
from archetype.parts.norm.spec import NoNorm
from archetype.roles.norm import AnyNorm
from archetype.roles.parallel import stage_layers
from archetype.roles.residual import AnyResidual, Residual, ResidualSum
from archetype.roles.wiring import Wiring
from archetype.spec.base import Positive, Spec
from archetype.spec.errors import inside, invalid
from archetype.spec.sizes import Width

__all__ = ["EarlyExit", "SizedStack", "Stack", "StackView"]


class EndsWithNorm(Spec):
    """Specification with `layers` and a `final_norm`, which may be omitted if the last layer normalizes its output."""

    @model_validator(mode="after")
    def _end_is_normalized(self) -> Self:
        if self._needs_norm() and "final_norm" not in self.model_fields_set:
            cause = "is missing, and nothing else normalizes the output of the stack"
            invalid("final_norm", cause, "add a norm, such as {kind: rms}, or write {kind: none}")
        return self

    def always_said(self) -> tuple[str, ...]:
        # written out where `final_norm` would otherwise be required
        return ("final_norm",) if self._needs_norm() else ()

    def _needs_norm(self) -> bool:
        wiring: Wiring = getattr(self, "layers")[-1].wiring  # noqa: B009
        norm = getattr(wiring, "norm", None)
        return wiring.normalizes_input and (norm is None or not norm.is_absent)


class Stack(EndsWithNorm):
    """Encoder or decoder stack of an encoder-decoder model.

    Attributes:
        layers: list of blocks; {repeat: n, block: ...} repeats a block n times.
        residual: residual wiring of the layers.
        final_norm: norm after the last layer.
    """

    layers: Layers
    residual: AnyResidual = ResidualSum()
    final_norm: AnyNorm = NoNorm()


class EarlyExit(Spec):
    """Early exit of each token from the passes of a loop, by a learned gate g after each pass (Ouro, Zhu 2025).

    A token exits after pass i with probability g_i (1 - g_1) ... (1 - g_(i-1)). Its output is that of the first pass at
    which the cumulative probability reaches `threshold`. If no pass reaches it, and in training, the output is that of
    the last pass. All passes are computed, since later tokens read the keys of each pass.

    Attributes:
        threshold: cumulative probability at which a token exits (absent: every token uses the last pass).
    """

    threshold: Positive | None = None


class SizedStack(Stack):
    """One of the two stacks of a model whose stacks have different widths.

    Attributes:
        d_model: width of the hidden vectors, D.
    """

    d_model: Width


class StackView(NamedTuple):
    """A stack within its model, as costs and checks see it."""

    prefix: str  # of module names: "", "encoder.", ...
    layers: tuple[Block, ...]
    final_norm: AnyNorm
    d_model: int
    causal: bool
    crosses: bool = False  # whether its blocks may have cross-attention
    residual: Residual = ResidualSum()
    block_field: str = ""  # path of the block that is repeated for all layers, if the specification has it once
    vocab_size: int = 0  # vocabulary size of its input; 0 if it reads vectors, not tokens
    layer_features: int = 0  # features of per-layer embedding vectors; 0 without them
    early_exit: EarlyExit | None = None

    @classmethod
    def of(cls, model: Any, vocab_size: int = 0, layer_features: int = 0) -> "StackView":
        """Return the stack of a model with a single one."""
        stack = cls("", model.layers, model.final_norm, model.d_model, model.is_causal, residual=model.residual)
        return stack._replace(vocab_size=vocab_size, layer_features=layer_features)

    def field(self, layers: int | str) -> str:
        return self.block_field or f"{self.prefix}layers[{layers}]"

    @property
    def relative_bias(self) -> tuple[Any, int] | None:
        """The position bias table that the layers share, and its number of heads; None if there is no table."""
        return next(iter(_relative_biases(self.layers)), None)

    @property
    def sources(self) -> frozenset[int]:
        """Indices of the layers whose published values later layers read."""
        sources = (block.mixer.source(index) for index, block in enumerate(self.layers))
        return frozenset(source for source in sources if source is not None)

    @property
    def passes(self) -> tuple[int, ...]:
        """Indices of the layers that begin a new pass and whose input gets the final norm."""
        return tuple(index for index, block in enumerate(self.layers) if block.norm_between)

    @property
    def divides(self) -> bool:
        reaches = any(self.reaches_next(layer) for layer in range(len(self.layers)))
        reaches = reaches or any(block.adds_input_of is not None for block in self.layers)
        return self.residual.is_sum and not (self.sources or self.passes or reaches) and self.reads_tokens_at is None

    def reaches_next(self, layer: int) -> bool:
        """Return whether the next layer adds an output of this one, or reads its router's vector."""
        following = self.layers[layer + 1 : layer + 2]
        return self.layers[layer].feedforward.delays_output or any(n.feedforward.router_state[0] for n in following)

    @property
    def readers(self) -> tuple[int, ...]:
        """Indices of the layers that read per-layer embedding vectors."""
        return tuple(dict.fromkeys(index for index, _, part in self.parts() if part.layer_features))

    @property
    def reads_tokens_at(self) -> str | None:
        """Path of the first field through which a layer reads token ids or per-layer embeddings, if any."""
        return next((path for _, path, part in self.parts() if part.tokens_read_by or part.layer_features), None)

    def parts(self) -> Iterator[tuple[int, str, Any]]:
        for index, block in enumerate(self.layers):
            for name, content in block.contents.items():
                for path, part in content.named_parts():
                    place = f"{self.field(index)}.{'cross_attention' if name == 'cross' else name}"
                    yield index, place + _as_field(path), part

    def check(self) -> None:
        for index, block in enumerate(self.layers):
            self._check_repetition(index, block)
            path, attention = self.field(index), block.cross_attention
            if attention is not None and not self.crosses:
                remedy = "remove it, or use kind encoder_decoder"
                invalid(f"{path}.cross_attention", "the model has no encoder", remedy)
            for name, part in block.contents.items():
                with inside(f"{path}.{'cross_attention' if name == 'cross' else name}"):
                    part.check(self.d_model, self.causal and name != "cross")
            self._check_source(index, block)
            self._check_residual(path, block)
            left = self.layers[index - 1].feedforward.router_state[1] if index else 0
            for inner, part in block.feedforward.named_parts():
                if (read := part.router_state[0]) and read != left:
                    cause = f"reads {read} features of the previous layer's router, which provides {left or 'none'}"
                    place = f"{path}.feedforward{_as_field(inner)}.router.carried"
                    invalid(place, cause, "remove it, or use the same width in both")
            if block.feedforward.delays_output and index + 1 == len(self.layers):
                invalid(f"{path}.feedforward.delayed", "there is no next layer", "remove it, or add a layer")
            if block.output_scale and not self.residual.is_sum:
                cause = f"needs a plain residual sum, but residual is {self.residual.dump()['kind']}"
                invalid(f"{path}.output_scale", cause, "remove it, or use residual: sum")
        self._check_tokens()
        if self.early_exit is not None and not self.passes:
            cause = "no loop of the model has a norm between its passes"
            invalid(f"{self.prefix}early_exit", cause, "add norm_between: true to shared layers, or remove it")
        tables = _relative_biases(self.layers)
        if len(tables) > 1:
            (first, heads), (other, other_heads) = tables[:2]
            cause = f"all layers share one table, and {first.dump()} for {heads} heads differs from "
            invalid(f"{self.prefix}layers", cause + f"{other.dump()} for {other_heads}", "make them equal")

    def _check_residual(self, path: str, block: Block) -> None:
        kind, place = self.residual.dump()["kind"], f"{self.prefix}residual"
        read = block.feedforward.reads_streams
        if read and read != self.residual.streams:
            cause = f"reads {read} residual streams, but residual {kind} has {self.residual.streams}"
            invalid(f"{path}.feedforward.num_streams", cause, f"use {self.residual.streams}")
        if read and (block.wiring.reads_first or block.wiring.normalizes_output):
            invalid(f"{path}.wiring", "several residual streams need sequential sublayers", "use pre_norm")
        if read and self.residual.per_block and len(block.contents) > 1:
            cause = f"the block reads one of the streams of {kind}, and its feed-forward part all of them"
            invalid(f"{path}.feedforward.num_streams", cause, "move it to a block without a mixer")
        if not (self.residual.is_sum or self.residual.per_block or block.wiring.adds_to_stream):
            cause = f"{kind} adds outputs to the stream, but {path}.wiring does not"
            invalid(place, cause, "use pre_norm, sandwich, output_norm or parallel")
        if block.feedforward.delays_output and not (self.residual.is_sum and block.wiring.adds_to_stream):
            cause = "delayed outputs need a plain residual sum and pre_norm"
            invalid(f"{path}.feedforward.delayed", cause, "remove it, or use residual: sum and pre_norm")
        if self.residual.grows and block.wiring.reads_first:
            invalid(place, f"{kind} needs sequential sublayers, but {path}.wiring is parallel", "use pre_norm")
        if block.norm_between and (self.final_norm.is_absent or not self.residual.is_sum):
            cause = "there is no final norm" if self.final_norm.is_absent else f"residual {kind} is not a plain sum"
            invalid(f"{path}.norm_between", cause, "remove it, or use final_norm: rms and residual: sum")
        if block.reinject == "unit" and not self.residual.is_sum:
            cause = f"unit needs a plain residual sum, but residual is {kind}"
            invalid(f"{path}.reinject", cause, "use true, or residual: sum")
        if self.residual.grows and block.reads_again is not None:
            field = "reinject" if block.reinject else "adds_input_of"
            cause = f"{kind} adds vectors in each pass, which {path}.{field} cannot sum"
            invalid(place, cause, f"remove {field}, or use residual: sum")
        if self.residual.grows and block.weights_of == 0:
            cause = f"{kind} has no query in the first sublayer of layer 0, whose weights {path} uses"
            invalid(place, cause, "share the weights of a later layer, or use residual: sum")

    def _check_tokens(self) -> None:
        # a stack of vectors has no token ids to look up
        for _, path, part in self.parts():
            if not self.vocab_size and (field := part.tokens_read_by) is not None:
                cause = "needs token ids, but these layers get only vectors"
                invalid(f"{path}.{field}", cause, "remove it")
            if part.layer_features not in (0, self.layer_features):
                of_embedding = f"has {self.layer_features}" if self.layer_features else "provides none to these layers"
                cause = f"reads {part.layer_features} features per layer, but the embedding {of_embedding}"
                invalid(f"{path}.features", cause, "use the same embedding.per_layer.features, or remove it")
        if self.layer_features and not self.readers:
            invalid(
                "embedding.per_layer",
                "is not read by any layer",
                "use feedforward: {kind: per_layer_input, ...} in a block",
            )

    def _check_source(self, index: int, block: Block) -> None:
        # a layer reads values only of an earlier, compatible layer
        if (source := block.mixer.source(index)) is None:
            return
        with inside(f"{self.field(index)}.mixer"):
            if not 0 <= source < index:
                invalid("", f"reads layer {source}, which is not before layer {index}", "name an earlier layer")
            block.mixer.check_source(self.layers[source].mixer, self.d_model)

    def used_of_other_stage(self, num_stages: int) -> tuple[int, int] | None:
        """Return a layer and the layer whose weights it shares, if they are in different pipeline stages."""
        for stage in range(num_stages):
            layers = stage_layers(stage, num_stages, len(self.layers))
            for index in layers:
                if (first := self.layers[index].weights_of) is not None and first not in layers:
                    return index, first
        return None

    def _check_repetition(self, index: int, block: Block) -> None:
        # a layer shares weights only with an earlier, equal layer that does not share any itself
        if block.adds_input_of is not None and block.adds_input_of >= index:
            place = f"{self.prefix}layers[{index}].adds_input_of"
            cause = f"{block.adds_input_of} is not an earlier layer"
            invalid(place, cause, f"use less than {index}" if index else "remove it")
        if block.weights_of is None:
            return
        path = f"{self.prefix}layers[{index}]"
        if block.weights_of >= index:
            remedy = f"use less than {index}" if index else "remove it"
            invalid(f"{path}.weights_of", f"{block.weights_of} is not an earlier layer", remedy)
        first = self.layers[block.weights_of]
        if first.weights_of is not None:
            cause = f"layer {block.weights_of} itself shares another layer's weights"
            invalid(f"{path}.weights_of", cause, f"use {first.weights_of}")
        if block.own != first.own:
            names = [name for name in type(block).model_fields if getattr(block.own, name) != getattr(first.own, name)]
            cause = f"{', '.join(names)} differs from layer {block.weights_of}, whose weights it uses"
            invalid(path, cause, "make them equal")


def _as_field(path: str) -> str:
    # of a module below a content: parts.0 in the spelling of fields, .parts[0]
    return re.sub(r"\.(\d+)", r"[\1]", f".{path}" if path else "")


def _relative_biases(layers: Sequence[Block]) -> list[tuple[Any, int]]:
    # every distinct table that the layers require
    biases: dict[tuple[Any, int], None] = {}
    for block in layers:
        for mixer in block.mixer.each():
            if (bias := mixer.stack_bias) is not None:
                biases[bias] = None
    return list(biases)
