"""Models as llama.cpp computes them: facts about each architecture, and the code that reads and writes its keys.

The tensors of a file show its biases, gates, experts and mixers, and its keys the sizes. A `Graph` states the rest,
which is part of llama.cpp's source: the kind of norm, the wiring, the activation, which layers rotate. A written file
is read back and compared, so a model with any other setting is refused by the name of the field.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from archetype.convert.gguf.keys import FileKeys, Has, Keys, Layer, check_activations, has, unsupported, written_sizes
from archetype.convert.gguf.mixers import OtherMixer
from archetype.convert.gguf.rope import read_scaling, written_scaling
from archetype.convert.gguf.routing import Routing, read_experts, written_layers, written_router
from archetype.errors import CheckpointError
from archetype.families.keys import expect_kind, wrong_kind
from archetype.models.block.spec import Block, NoMixer, OutputNorm, ParallelResidual, PostNorm, PreNorm, SandwichNorm
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.models.spec import ModelSpec
from archetype.parts.activation.spec import SiLU
from archetype.parts.attention.spec import Attention, OutputGate, ProjectionBiases
from archetype.parts.embedding.spec import Embedding
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP, NoFeedForward
from archetype.parts.head.spec import LanguageModelHead, MaskedLogitsHead, NoHead
from archetype.parts.norm.spec import LayerNorm, NoNorm, RMSNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Learned, NoPosition, NoScaling, Rotary
from archetype.parts.together.spec import MixersTogether
from archetype.roles.activation import Activation
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition
from archetype.roles.wiring import Wiring
from archetype.spec.repeats import MAX_LAYERS

RMS_NORM, SILU, TABLE = RMSNorm(), SiLU(), Embedding()
MEAN = 1  # llama.cpp's number for mean pooling
SHIFTED = "diffusion.shift_logits"


@dataclass(frozen=True)
class Windows:
    """Sliding windows of an architecture.

    Attributes:
        period: every `period`-th layer has full attention where a file has no pattern (0: every file has a pattern).
        full_first: whether full attention begins each period instead of ending it.
        layers: number of layers with which llama.cpp reads windows (0: any).
        size: window of a file that does not say it (0: none).
        theta: base of rotations in layers with windows where a file has none (absent: that of the other layers).
        scaled: whether these rotations are scaled as those of the other layers.
        has_base: whether these rotations may have a base of their own.
    """

    period: int = 0
    full_first: bool = False
    layers: int = 0
    size: int = 0
    theta: float | None = None
    scaled: bool = True
    has_base: bool = True

    def usual(self, num_layers: int) -> list[bool]:
        """Return the layers with sliding windows if a file has no pattern."""
        end = 0 if self.full_first else self.period - 1
        return [not self.period or layer % self.period != end for layer in range(num_layers)]


@dataclass(frozen=True)
class Graph:
    """What llama.cpp computes for one architecture and neither keys nor tensors state.

    Attributes:
        norm: all norms, apart from their epsilon.
        encodes: whether the model is an encoder, which llama.cpp runs without a head, for vectors of texts.
        fills_masks: whether an encoder has a head for masked tokens nevertheless (masked diffusion).
        wiring: wiring of the layers; `parallel key` and `parallel tensor` are pre-norm unless the key
            `use_parallel_residual` is true, or the second norm is missing.
        second_norm: tensor of the parallel wiring's second norm.
        activation: activation of feed-forward parts and experts.
        gated: whether they have a gate.
        interleaved: whether rotary positions turn the pairs (2p, 2p + 1) of the model's features.
        whole: whether heads must be rotated as a whole, since the file has their rows in the order of pairs.
        rotates: (layer, whether it has a window, whether any layer has one) -> whether it has rotary positions.
        unrotated: whether `rope.scaling.finetuned: false` means that no layer has positions (Granite 4).
        truncate: whether the ramp of YaRN is rounded to whole pairs.
        every_yarn: whether the ramp's ends and the factor of YaRN are read (Ministral 3).
        qk_norm: norms of queries and keys: of each head, of all heads together, of each head after the rotation.
        has_qk_norm: whether there are these norms.
        gate: gate on the output of attention.
        sinks: whether attention has sinks.
        wide_values: whether values may have another width than keys.
        windows: sliding windows (None: full attention only).
        grouped: whether there may be fewer key heads than query heads.
        sections: whether rotary positions have three parts, which are equal for text.
        clip: whether `attention.clamp_kqv` bounds queries, keys and values.
        qkv_bias: whether queries, keys and values have biases.
        output_bias: whether the output projection of attention has a bias.
        mlp_bias: whether feed-forward parts have biases.
        embedding: embedding, apart from its scale.
        root: whether token vectors are multiplied by the square root of their width.
        head_bias: whether logits have a bias.
        scales: keys of factors: `embedding`, `residual` and `attention`.
        logits: whether `logit_scale` multiplies the logits, or divides them.
        routing: experts (None: no experts).
        both_eps: whether files have the epsilon of RMSNorm and of LayerNorm.
        mixers: mixers other than attention.
        marked: whether 0 key heads mark the layers that have another mixer.
        together: whether attention is parallel to the other mixer of a layer (Falcon-H1).
        apart: whether a layer may lack a mixer, and with Nemotron-H has either a mixer or a feed-forward part.
        usual: keys -> values of keys that a file may lack.
        finish: (keys, the model that everything else describes) -> the model (see `finish.py`).
        further: additional keys, which `finish` reads.
        stored: model -> the model with only the layers that a file stores; `finish` adds the others.
    """

    norm: Norm = RMS_NORM
    encodes: bool = False
    fills_masks: bool = False
    wiring: Literal["pre", "post", "output", "sandwich", "parallel", "parallel key", "parallel tensor"] = "pre"
    second_norm: str = "ffn_norm"
    activation: Activation = SILU
    gated: bool = True
    interleaved: bool = False
    whole: bool = False
    rotates: Callable[[Layer, bool, bool], bool] = lambda layer, local, windows: True
    unrotated: bool = False
    truncate: bool = True
    every_yarn: bool = False
    qk_norm: Literal["", "head", "all", "late"] = ""
    has_qk_norm: Has = "all"
    gate: OutputGate | None = None
    sinks: Has = "no"
    wide_values: bool = False
    windows: Windows | None = None
    grouped: bool = True
    sections: bool = False
    clip: bool = False
    qkv_bias: Has = "any"
    output_bias: Has = "no"
    mlp_bias: Has = "no"
    embedding: Embedding = TABLE
    root: bool = False
    head_bias: bool = False
    scales: tuple[str, ...] = ()
    logits: Literal["", "multiply", "divide"] = ""
    routing: Routing | None = None
    mixers: tuple[OtherMixer, ...] = ()
    both_eps: bool = False
    marked: bool = True
    together: bool = False
    apart: bool = False
    usual: Callable[[FileKeys], Keys] = lambda keys: {}
    finish: Callable[[FileKeys, Any], Any] = lambda keys, model: model
    further: Callable[[Any], Keys] = lambda model: {}
    stored: Callable[[Any], Any] = lambda model: model

    @property
    def eps_key(self) -> str:
        """Key of the norms' epsilon."""
        return f"attention.layer_norm_{'rms_' if isinstance(self.norm, RMSNorm) else ''}epsilon"

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Activations of feed-forward parts, and of experts that have another."""
        of_experts = None if self.routing is None else self.routing.expert.get("activation")
        return (self.activation,) if of_experts is None else (self.activation, of_experts)

    def misfits(self, model: ModelSpec) -> list[CheckpointError]:
        kind = Encoder if self.encodes else Decoder
        return [] if isinstance(model, kind) else [wrong_kind(kind, model, "kind")]

    def read(self, config: Any) -> Any:
        """Return the model that a file describes."""
        keys: FileKeys = config
        keys.values = self.usual(keys) | keys.values
        num_layers, sizes = keys.size("block_count", most=MAX_LAYERS), keys.sizes()
        d_model = sizes["d_model"]
        keys.used |= {"attention.head_count", "attention.head_count_kv"}  # of no layer, where none has attention
        norm = self.norm.replace(eps=keys.positive(self.eps_key))
        if self.both_eps:
            keys.used.add("attention.layer_norm_epsilon")
        windows = self._windows(keys, num_layers)
        factors = {name: self._factor(keys, name) for name in ("embedding", "residual")}
        blocks = tuple(
            self._block(Layer(keys, layer), d_model, norm, windows, factors["residual"]) for layer in range(num_layers)
        )
        body: dict[str, Any] = {**sizes, "layers": blocks}
        if self.encodes:
            return self.finish(keys, self._encoder(keys, norm, body))
        decoder = Decoder(
            **body,
            embedding=self.embedding.replace(scale=d_model**0.5 if self.root else factors["embedding"]),
            final_norm=norm,
            head=LanguageModelHead(
                tied="output.weight" not in keys.shapes, bias=self.head_bias, scale=self._logit_scale(keys)
            ),
        )
        return self.finish(keys, decoder)

    def _encoder(self, keys: FileKeys, norm: Norm, body: dict[str, Any]) -> Encoder:
        # which tables and norms there are is shown by the tensors
        keys.expect("attention.causal", False, "a causal mask")
        keys.expect("pooling_type", MEAN, "only mean pooling")
        if self.fills_masks:
            keys.used.add("expert_feed_forward_length")
            head = MaskedLogitsHead(tied="output.weight" not in keys.shapes, shifted=keys.flag(SHIFTED, True))
            return Encoder(**body, final_norm=norm, head=head)
        num_types = keys.count("tokenizer.ggml.token_type_count", 1)
        embedding = Embedding(
            position=Learned() if "position_embd.weight" in keys.shapes else NoPosition(),
            scale=body["d_model"] ** 0.5 if self.root else 1.0,
            num_token_types=num_types if "token_types.weight" in keys.shapes else 0,
            norm=norm if "token_embd_norm.weight" in keys.shapes else NoNorm(),
        )
        has_norm = any(f"{place}output_norm.weight" in keys.shapes for place in ("", "enc."))
        final = norm if has_norm else NoNorm()
        return Encoder(**body, embedding=embedding, final_norm=final, head=NoHead())

    def write(self, model: ModelSpec) -> Keys:
        """Return the keys of a model.

        Raises:
            CheckpointError: llama.cpp does not support a field.
        """
        if self.encodes:
            encoder = expect_kind(Encoder, model, "kind")
            if self.fills_masks:
                head = expect_kind(MaskedLogitsHead, encoder.head, "head")
                return self._write_body(encoder) | {"attention.causal": False, SHIFTED: head.shifted}
            if not encoder.head.is_absent:
                raise unsupported("head", f"a head of kind {encoder.head.kind} here, only embeddings")
            types = getattr(encoder.embedding, "num_token_types", 0)
            # llama.cpp needs a number of types
            own: Keys = {"attention.causal": False, "pooling_type": MEAN, "tokenizer.ggml.token_type_count": types or 1}
            return self._write_body(encoder) | own
        decoder = expect_kind(Decoder, model, "kind")
        if decoder.further_tokens is not None:
            raise unsupported("further_tokens", "multi-token prediction", "remove it, or keep the run directory")
        lm_head = expect_kind(LanguageModelHead, decoder.head, "head")
        keys = self._write_body(decoder)
        if "embedding" in self.scales:
            keys["embedding_scale"] = float(getattr(decoder.embedding, "scale", 1.0))
        if "residual" in self.scales:
            keys["residual_scale"] = decoder.layers[0].residual_scale
        if self.logits:
            keys["logit_scale"] = lm_head.scale if self.logits == "multiply" else 1.0 / lm_head.scale
        if self.wiring == "parallel key":
            keys["use_parallel_residual"] = isinstance(decoder.layers[0].wiring, ParallelResidual)
        return keys

    def _write_body(self, model: Decoder | Encoder) -> Keys:
        stored = self.stored(model)
        check_activations(stored.layers, self.activations)
        keys: Keys = {
            **written_sizes(stored),
            self.eps_key: float(getattr(model.final_norm, "eps", 0.0)) or _eps(model),
        }
        if self.both_eps:
            keys["attention.layer_norm_epsilon"] = keys[self.eps_key]
        return keys | self._write_layers(stored) | self._write_networks(stored) | self.further(model)

    def _factor(self, keys: FileKeys, name: str) -> float:
        # llama.cpp takes 0 for no factor
        return (keys.number(f"{name}_scale", 0.0) or 1.0) if name in self.scales else 1.0

    def _logit_scale(self, keys: FileKeys) -> float:
        if not self.logits:
            return 1.0
        scale = keys.positive("logit_scale", 1.0)
        return scale if self.logits == "multiply" else 1.0 / scale

    def _windows(self, keys: FileKeys, num_layers: int) -> list[int]:
        # size of the window of each layer; 0: full attention
        if self.windows is None:
            return [0] * num_layers
        size = keys.count("attention.sliding_window", self.windows.size)
        pattern = keys.get("attention.sliding_window_pattern")
        if isinstance(pattern, int) and not isinstance(pattern, bool):
            pattern = Windows(pattern, self.windows.full_first).usual(num_layers)
        local = self.windows.usual(num_layers) if pattern is None else pattern
        if not isinstance(local, list) or len(local) < num_layers:
            raise keys.error("attention.sliding_window_pattern", f"{local!r:.80} lacks layers", "fix the file")
        if self.windows.layers not in (0, num_layers):
            return [0] * num_layers
        return [size if local[layer] else 0 for layer in range(num_layers)]

    def _block(self, layer: Layer, d_model: int, norm: Norm, windows: list[int], scale: float) -> Block:
        eps = layer.keys.positive(self.eps_key)
        mixer: Mixer = NoMixer()
        for part in self.mixers:
            if layer.has(part.tensor):
                mixer = part.read(layer, eps)
        if self.together:
            mixer = MixersTogether(parts=(self._attention(layer, d_model, windows), mixer))
        elif mixer.is_absent and (layer.has("attn_output.weight") or not self.apart):
            mixer = self._attention(layer, d_model, windows)
        return Block(
            wiring=self._wiring(layer, norm), mixer=mixer, feedforward=self._network(layer), residual_scale=scale
        )

    def _wiring(self, layer: Layer, norm: Norm) -> Wiring:
        separate = layer.has(f"{self.second_norm}.weight")
        if self.encodes and self.wiring == "pre" and not layer.has("attn_norm.weight"):
            return PreNorm(norm=norm, mixer_norm=NoNorm())  # behind the norm of the embedding
        parallel = self.wiring == "parallel" or (self.wiring == "parallel tensor" and not separate)
        if parallel or (self.wiring == "parallel key" and layer.keys.flag("use_parallel_residual", True)):
            return ParallelResidual(norm=norm, shared_norm=not separate)
        kinds = {"post": PostNorm, "output": OutputNorm, "sandwich": SandwichNorm}
        return kinds.get(self.wiring, PreNorm)(norm=norm)

    def _attention(self, layer: Layer, d_model: int, windows: list[int]) -> Attention:
        keys = layer.keys
        num_heads = layer.count("attention.head_count")
        if not num_heads:
            raise keys.error("attention.head_count", f"is 0 for layer {layer.index}", "fix the file")
        num_kv_heads = layer.count("attention.head_count_kv", num_heads) if self.grouped else num_heads
        head_dim = keys.size("attention.key_length", max(1, d_model // num_heads))
        v_head_dim = keys.size("attention.value_length", head_dim)
        if not self.wide_values:
            keys.expect("attention.value_length", head_dim, "values of another width")
        norm: Norm = NoNorm()
        if self.qk_norm and has(self.has_qk_norm, layer.has("attn_q_norm.weight")):
            bias = {"bias": False} if isinstance(self.norm, LayerNorm) else {}
            norm = self.norm.replace(eps=keys.positive(self.eps_key), **bias)
        local = windows[layer.index]
        scale = keys.number("attention.scale", 0.0) if "attention" in self.scales else 0.0
        rotates = self.rotates(layer, bool(local), any(windows))
        fused = layer.has("attn_qkv.bias")
        biases = {name: has(self.qkv_bias, fused or layer.has(f"attn_{name}.bias")) for name in "qkv"}
        return Attention(
            num_heads=num_heads,
            num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
            head_dim=None if head_dim * num_heads == d_model else head_dim,
            v_head_dim=None if v_head_dim == head_dim else v_head_dim,
            bias=ProjectionBiases(**biases, o=has(self.output_bias, layer.has("attn_output.bias"))),
            scale=scale or None,
            clip_qkv=(keys.number("attention.clamp_kqv", 0.0) or None) if self.clip else None,
            qk_norm=norm,
            qk_norm_over="all" if self.qk_norm == "all" else "head",
            qk_norm_after_rope=self.qk_norm == "late" and rotates and not norm.is_absent,
            sinks=has(self.sinks, layer.has("attn_sinks.weight")),
            gate=self.gate,
            position=self._position(layer, head_dim, bool(local)) if rotates else NoPosition(),
            pattern=Window(size=local) if local else Full(),
        )

    def _position(self, layer: Layer, head_dim: int, local: bool) -> MixerPosition:
        keys = layer.keys
        finetuned = keys.flag("rope.scaling.finetuned", True) if self.unrotated else True
        dim = keys.size("rope.dimension_count", head_dim)
        if self.whole:
            keys.expect("rope.dimension_count", head_dim, "partially rotated heads")
        theta = keys.positive("rope.freq_base", 10_000.0)
        scaling = read_scaling(keys, theta, dim, self.truncate, self.every_yarn)
        if self.sections and keys.get("rope.dimension_sections", [0] * 4)[3:] != [0]:
            raise keys.error("rope.dimension_sections", "has a fourth part", "fix the file")
        if not finetuned:
            return NoPosition()
        local_theta = theta
        if self.windows is not None:  # some architectures do not use the key
            own = keys.positive("rope.freq_base_swa", self.windows.theta or theta)
            local_theta = own if self.windows.has_base else theta
        is_scaled = not local or self.windows is None or self.windows.scaled
        return Rotary(
            theta=local_theta if local else theta,
            dim=None if dim == head_dim else dim,
            interleaved=self.interleaved,
            scaling=scaling if is_scaled else NoScaling(),
        )

    def _network(self, layer: Layer) -> FeedForward:
        keys = layer.keys
        keys.used.add("feed_forward_length")
        if self.routing is not None:
            names = ("count", "used_count", "shared_count", "shared_feed_forward_length", "feed_forward_length")
            keys.used |= {
                "leading_dense_block_count",
                "interleave_moe_layer_step",
                *(f"expert_{name}" for name in names),
            }
            if layer.has("ffn_gate_inp.weight"):
                return read_experts(layer, self.routing, self._expert)
        down = layer.shape("ffn_down.weight")
        if down is None:
            return NoFeedForward()
        width = layer.count("feed_forward_length", down[-1])
        return self._expert(width, bias=has(self.mlp_bias, layer.has("ffn_down.bias")))

    def _expert(self, width: int, bias: bool = False, **fields: Any) -> MLP | GatedMLP:
        kind = GatedMLP if self.gated else MLP
        return kind(**{"d_ff": width, "activation": self.activation, "bias": bias, **fields})

    def _write_layers(self, decoder: Decoder | Encoder) -> Keys:
        # attention, recurrent mixers and windows
        mixers = [mixer for block in decoder.layers for mixer in block.mixer.each()]
        # a layer without attention has no heads
        keys: Keys = {"attention.head_count": 0}
        for part in self.mixers:
            chosen = next((mixer for mixer in mixers if isinstance(mixer, part.kind)), None)
            if chosen is not None:
                keys |= part.write(chosen, decoder)
        kinds: tuple[type[Mixer], ...] = (*(part.kind for part in self.mixers), NoMixer, Attention)
        for index, mixer in enumerate(mixers):
            if not isinstance(mixer, kinds):
                raise wrong_kind(kinds[-1], mixer, f"layers[{index}].mixer")
        attentions = [mixer for mixer in mixers if isinstance(mixer, Attention)]
        if not attentions:
            return keys
        first = attentions[0].sizes(decoder.d_model)
        sizes = [
            mixer.sizes(decoder.d_model) if isinstance(mixer, Attention) else first._replace(num_kv_heads=0)
            for mixer in (mixers if self.marked else attentions)
        ]
        keys["attention.head_count"] = _alike([size.num_heads for size in sizes])
        keys["attention.head_count_kv"] = _alike([size.num_kv_heads for size in sizes])
        v_head_dim = attentions[0].v_head_dim if self.wide_values else None
        keys |= {"attention.key_length": first.head_dim, "attention.value_length": v_head_dim or first.head_dim}
        if "attention" in self.scales and attentions[0].scale is not None:
            keys["attention.scale"] = attentions[0].scale
        if self.clip:
            keys["attention.clamp_kqv"] = attentions[0].clip_qkv or 0.0
        return keys | self._write_windows(decoder) | self._write_positions(attentions, first.head_dim)

    def _write_windows(self, decoder: Decoder | Encoder) -> Keys:
        if self.windows is None:
            return {}
        sizes = [_window(getattr(block.mixer, "pattern", Full())) for block in decoder.layers]
        if not any(sizes):
            return {}
        local = [size > 0 for size in sizes]
        keys: Keys = {"attention.sliding_window": max(sizes)}
        if local != self.windows.usual(decoder.num_layers) or not self.windows.period:
            keys["attention.sliding_window_pattern"] = local
        return keys

    def _write_positions(self, attentions: list[Attention], head_dim: int) -> Keys:
        rotated = [mixer for mixer in attentions if isinstance(mixer.position, Rotary)]
        keys: Keys = {"rope.scaling.finetuned": bool(rotated)} if self.unrotated else {}
        if not rotated:
            return keys
        # the keys describe the layers with full attention, or all if none of those rotates
        full = next((mixer for mixer in rotated if not _window(mixer.pattern)), rotated[0])
        local = next((mixer for mixer in rotated if _window(mixer.pattern)), full)
        position, local_position = (expect_kind(Rotary, mixer.position, "position") for mixer in (full, local))
        if self.whole and position.dim not in (None, head_dim):
            raise unsupported("layers[*].mixer.position.dim", "partially rotated heads here")
        keys |= {"rope.dimension_count": position.dim or head_dim, "rope.freq_base": position.theta}
        if self.sections:
            pairs = (position.dim or head_dim) // 2
            keys["rope.dimension_sections"] = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]
        if self.windows is not None and self.windows.has_base and _window(local.pattern):
            keys["rope.freq_base_swa"] = local_position.theta
        return keys | written_scaling(position.scaling, self.truncate, self.every_yarn)

    def _write_networks(self, decoder: Decoder | Encoder) -> Keys:
        parts = [block.feedforward for block in decoder.layers]
        sparse = [part for part in parts if isinstance(part, MixtureOfExperts)]
        widths = [part.width(decoder.d_model) if isinstance(part, MLP | GatedMLP) else 0 for part in parts]
        keys: Keys = {"feed_forward_length": _alike(widths)}
        if not sparse:
            if self.routing is not None and self.routing.dense == "first":
                # keys that llama.cpp needs nevertheless
                keys |= {"leading_dense_block_count": len(parts), "expert_feed_forward_length": 0}
                keys |= {"expert_shared_count": 0} if self.routing.shared == "expert_shared_count" else {}
            return keys
        if self.routing is None:
            raise unsupported("layers[*].feedforward", "experts in this architecture")
        first = sparse[0]
        width = first.expert.width(decoder.d_model)
        dense = next((size for size in widths if size), 0)
        is_sparse = [isinstance(part, MixtureOfExperts) for part in parts]
        if self.apart and dense:
            raise unsupported("layers[*].feedforward", "experts in some layers and none in others")
        widths = [width if there else size for there, size in zip(is_sparse, widths, strict=True)]
        keys["feed_forward_length"] = _alike(widths) if self.apart else dense or width
        keys |= {
            "expert_count": first.num_experts,
            "expert_used_count": first.experts_per_token,
            "expert_feed_forward_length": width,
        }
        if not self.apart:
            keys |= written_layers(is_sparse, self.routing.dense)
        return keys | written_router(first, self.routing, width, decoder.d_model)


def _eps(decoder: Decoder | Encoder) -> float:
    wiring = decoder.layers[0].wiring
    return float(getattr(getattr(wiring, "norm", None), "eps", 1e-5))


def _window(pattern: Pattern) -> int:
    return pattern.size if isinstance(pattern, Window) else 0


def _alike(values: list[int]) -> Any:
    # one number if all layers have the same, else a list
    return values[0] if len(set(values)) == 1 else values
