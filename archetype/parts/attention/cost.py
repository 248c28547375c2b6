"""Costs of self-attention and cross-attention."""

from collections.abc import Hashable, Mapping

from archetype.cost.formula import ZERO, Counts, Formula, Symbol, constant, prefixed, symbol
from archetype.cost.registry import Linear, MixerCost, NormCost, SelectionCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.attention import spec
from archetype.parts.convolutions.cost import ConvolutionsCost
from archetype.parts.gain.cost import GainCost
from archetype.parts.norm.spec import NoNorm
from archetype.parts.pattern.cost import COMPLEXITIES, PatternCost
from archetype.parts.pattern.spec import Full, GlobalWindow
from archetype.parts.position.cost import PositionCost
from archetype.roles.pattern import Shape


@cost_of(spec.Attention)
class AttentionCost(MixerCost[spec.Attention]):
    """Cost of the projections and two products over pairs of positions, without the tanh of additive attention."""

    divides_state = True

    state_name = "KV cache"

    def __init__(self, part: spec.Attention, d: Formula) -> None:
        super().__init__(part, d)
        self.sizes = part.sizes(d.value)
        heads, kv_heads, head_dim, *_ = self.sizes
        self.heads, self.head_dim = symbol("H", heads), symbol("P", head_dim)
        self.q_features = d if heads * head_dim == d.value else self.heads * self.head_dim
        self.kv_features = self.q_features if kv_heads == heads else symbol("K", kv_heads) * self.head_dim
        value_width = part.value_width(d.value)
        self.value_width = self.head_dim if value_width == head_dim else symbol("Q", value_width)
        # features of the weighted sums of all heads, and of all values
        self.o_features = self.q_features if value_width == head_dim else self.heads * self.value_width
        self.v_features = self.kv_features if value_width == head_dim else symbol("K", kv_heads) * self.value_width
        # features of the values that the weights multiply: both of a pair of heads
        self.mixed_width = self.value_width if part.differential is None else 2 * self.value_width
        self.pattern = PatternCost.of(part.pattern, d)
        self.position = PositionCost.of(part.position, d)
        self.index = None if part.index is None else SelectionCost.of(part.index, d, d)
        self.differs_by_layer = self.pattern.differs_by_layer
        q, kv, bias = self.q_features, self.kv_features, part.bias
        qkv = {"q": Linear(d, q, bias.q)}
        self.has_keys = part.keys_from is None
        if self.has_keys:
            qkv["k"] = Linear(d, kv, bias.k)
            if not part.keys_as_values:
                qkv["v"] = Linear(d, self.v_features, bias.v)
        self.projections = qkv | {"o": Linear(self.o_features, d, bias.o)}
        if part.projects_globally:
            self.projections |= {f"{name}_global": projection for name, projection in qkv.items()}
        if further := part.position.query_features:
            self.projections["position_query"] = Linear(d, self.heads * symbol("r", further, part.position))
        if part.gate is not None:  # one output per feature, or per head
            self.projections["gate"] = Linear(d, self.o_features if part.gate.per == "feature" else self.heads)
        if part.value_embedding is not None and (value_gate := part.value_embedding.gate) is not None:
            read = d if value_gate.features in (None, d.value) else constant(value_gate.features or 0)
            self.projections["value_gate"] = Linear(read, symbol("K", kv_heads))
        self.query_gain = GainCost(part.query_gain, q)
        self.gate_gain = GainCost(part.gate_gain, self.projections["gate"].outputs if part.gate is not None else ZERO)
        self.heads_norm = NormCost.of(part.heads_norm, self.o_features)
        pair_norm = NoNorm() if part.differential is None else part.differential.norm
        self.pair_norm = NormCost.of(pair_norm, 2 * self.value_width)
        widths = {"input": d, "q": q, "k": kv, "v": self.v_features, "output": d}
        self.convolutions = ConvolutionsCost(part.convolutions, widths)
        self.joint = JointConvolutionCost(part.joint_convolution, self)
        self.complexity = COMPLEXITIES[Full] if part.score == "additive" else self.pattern.complexity

    @property
    def symbols(self) -> dict[str, Symbol]:
        return (self.index.symbols if self.index else {}) | self.pattern.symbols | super().symbols

    def parameters(self) -> Counts:
        q_norm, k_norm = self._qk_norms()
        counts = self.projection_parameters()
        counts |= {"q_norm": q_norm.parameters(), "k_norm": k_norm.parameters()}
        counts["value_norm"] = self._value_norm().parameters()
        counts["heads_norm"] = self.heads_norm.parameters()
        counts |= {"query_gain": self.query_gain.parameters(), "gate_gain": self.gate_gain.parameters()}
        if self.part.differential is not None:
            counts |= {f"differential.{name}": self.head_dim for name in spec.LAMBDAS}
            counts["differential.norm"] = self.pair_norm.parameters()
        if score_parameters := self.position.mixer_parameters(self.sizes):
            counts["score_bias"] = score_parameters
        if self.part.score == "additive":
            counts["score"] = self.q_features
        counts |= {"sinks": self.heads} if self.part.sinks else {}
        counts |= {"gate_bias": self.heads} if self.part.gate is not None and self.part.gate.bias else {}
        if self.part.value_embedding is not None and self.part.value_embedding.gate is None:
            counts["value_scale"] = constant(1)
        counts |= {"key_factors": symbol("K", self.sizes.num_kv_heads)} if self.part.key_factors else {}
        if self.part.key_bias:
            counts["key_bias"] = symbol("K", self.sizes.num_kv_heads) + self._key_bias().parameters
        counts |= self.convolutions.parameters() | self.joint.parameters()
        return counts | (prefixed("index.", self.index.parameters()) if self.index else {})

    def _key_bias(self) -> Linear:
        return Linear(self.v_features, symbol("K", self.sizes.num_kv_heads), self.part.bias.v)

    def tables(self) -> Counts:
        # one row of the value embedding: the values of all heads
        return {} if self.part.value_embedding is None else {"value_embedding": self.v_features}

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        index = self.index.projection_sizes() if self.index else {}
        projections = {name: sizes[:2] for name, sizes in self.projections.items()}
        return projections | {f"index.{name}": sizes for name, sizes in index.items()}

    def flops(self, work: Work) -> Counts:
        per_feature, pattern = work.rows * self._pair_flops(work), self.part.pattern
        if isinstance(pattern, GlobalWindow) and pattern.global_projections and work.attention == "computed":
            # global queries are computed in both ways, and the second result is used
            global_tokens = symbol("g", min(pattern.num_global_tokens, work.length.value))
            per_feature = per_feature + 2 * work.rows * global_tokens * work.length
        pairs = self.q_features * per_feature
        counts = self.projection_flops(work.tokens)
        mixed = self.o_features if self.part.differential is None else 2 * self.o_features
        counts |= {"scores": pairs, "mixture": mixed * per_feature}
        if score_flops := self.position.score_flops(work, pairs, self.q_features, self.kv_features, self.heads):
            counts["score_bias"] = score_flops
        if self.part.key_bias:  # of all keys again, from their cached values
            keys = self.pattern.cache_length(work.length.value) if work.phase == "decode" else 0
            counts["key_bias"] = self._key_bias().flops(work.rows * keys if keys else work.tokens)
        counts |= self.convolutions.flops(work.tokens) | self.joint.flops(work)
        return counts | (prefixed("index.", self.index.flops(work)) if self.index else {})

    def _most_keys(self, length: int, decode: bool) -> int:
        most = length if self.index is None else self.index.most_keys(length)
        selections = 1 if self.part.index is None else self.part.index.num_selections
        # keys are not gathered for each query head
        return length if decode and selections not in (1, self.sizes.num_kv_heads) else most

    def _pair_flops(self, work: Work) -> Formula:
        # per feature of one head of one sequence
        length = work.length.value
        most = self._most_keys(length, work.phase == "decode")
        if (self.position.in_full or self.part.key_bias) and work.phase != "decode" and work.attention == "computed":
            return PatternCost.of(Full(), self.d).pair_flops(work)
        return self.pattern.chosen_pair_flops(work, most) if most < length else self.pattern.pair_flops(work)

    def state(self, length: int) -> int:
        # keys, values and the index's keys; nothing with `keys_from`
        if not self.has_keys:
            return 0
        per_layer = self.pattern.cache_length(length) * (self.kv_features + self.v_features).value
        return per_layer + (self.index.state(length) if self.index else 0) + self.recurrent_state(length)

    def unread_state(self, length: int) -> int:
        left_out = self.pattern.cache_length(length) - self._most_keys(length, decode=True)
        return max(0, left_out) * (self.kv_features + self.v_features).value if self.has_keys else 0

    def recurrent_state(self, length: int) -> int:
        return self.convolutions.state() + self.joint.state()

    def key_scales(self, length: int) -> int:
        return 2 * self.pattern.cache_length(length) * self.sizes.num_kv_heads if self.has_keys else 0

    def saved_activations(self, work: TrainingWork) -> int:
        # inputs, norms, rotary angles, and the products over pairs
        heads, kv_heads, head_dim, rotary_dim, _ = self.sizes
        saved = work.input_bytes(self.d.value) + self.convolutions.saved_activations(work)
        saved += self.joint.saved_activations(work)
        if self.part.key_factors:
            saved += work.tokens * self.kv_features.value * work.itemsize
        for norm, features in zip(self._qk_norms(), (heads * head_dim, kv_heads * head_dim), strict=True):
            saved += norm.saved_activations(work.tokens * features // norm.d.value)
        saved += self._value_norm().saved_activations(work.tokens * kv_heads)
        saved += self.heads_norm.saved_activations(work.tokens)
        saved += sum(gain.saved_activations(work.tokens, work) for gain in (self.query_gain, self.gate_gain))
        if self.part.differential is not None:  # lambda and its parts, the difference, and what is projected
            saved += 3 * FLOAT32
            saved += self.pair_norm.saved_activations(work.tokens * heads // 2)
            saved += work.tokens * self.o_features.value * work.itemsize
        if self.part.clip_qkv is not None:
            keys = (self.kv_features + self.v_features).value if self.has_keys else 0
            saved += work.tokens * (self.q_features.value + keys) * work.itemsize
        if work.compute_dtype == "bfloat16":
            saved += self.position.layer_activations(heads, rotary_dim, work)
        saved += self.position.score_activations(work, self.sizes)
        if self.part.key_bias:  # the values of all heads together; then steps, products and exponentials, and the mask
            saved += work.tokens * (self.v_features.value * work.itemsize + 3 * kv_heads * FLOAT32) + work.length**2
        if gate := self.projections.get("gate"):  # the gate, and the heads that it multiplies
            saved += work.tokens * (gate.outputs.value + self.o_features.value) * work.itemsize
        if self.part.value_embedding is not None:  # the added rows; with a gate, sigmoid and factors too
            saved += work.tokens * self.v_features.value * work.itemsize
            if value_gate := self.projections.get("value_gate"):
                saved += 2 * work.tokens * value_gate.outputs.value * work.itemsize
        if self.index is not None:
            saved += self.index.saved_activations(work) + self.index.saved_mask(work)
        return saved + self.pair_activations(work)

    def pair_activations(self, work: TrainingWork) -> int:
        """Return the bytes saved for queries, keys, values and the products over pairs."""
        shapes = [] if self.position.in_full or self.part.key_bias else self.pattern.tile_shapes(work)
        return self._tiled_attention(work, shapes) if shapes else self._dense_attention(work, work.length)

    def shared_activations(self, work: TrainingWork) -> Mapping[Hashable, int]:
        of_position = self.position.shared_activations(self.sizes.num_heads, self.sizes.rotary_dim, work)
        return {**of_position, **(self.index.shared_activations(work) if self.index else {})}

    def left_activations(self, work: TrainingWork) -> int:
        """Return the bytes of keys and values, or of the keys selected by an index, published for later layers."""
        if self.index is not None:
            return self.index.left_activations(work)
        return work.tokens * (self.kv_features + self.v_features).value * work.itemsize

    def _value_norm(self) -> NormCost:
        return NormCost.of(self.part.value_norm if self.has_keys else NoNorm(), self.value_width)

    def _qk_norms(self) -> tuple[NormCost, NormCost]:
        # over all heads together, or over each head
        norm, together = self.part.qk_norm, self.part.qk_norm_over == "all"
        q_features, k_features = (self.q_features, self.kv_features) if together else (self.head_dim, self.head_dim)
        return NormCost.of(norm, q_features), NormCost.of(norm if self.has_keys else NoNorm(), k_features)

    def _dense_attention(self, work: TrainingWork, keys: int) -> int:
        # Torch's fused kernel saves q, k, v, its output and a log-sum-exp per query. Without it the weights of all
        # pairs are saved in float32.
        part, tokens, itemsize = self.part, work.tokens, work.itemsize
        q, k = tokens * self.q_features.value, work.rows * keys * self.kv_features.value
        values = self.sizes.num_kv_heads * self.mixed_width.value
        y, v = tokens * part.num_heads * self.mixed_width.value, work.rows * keys * values
        pairs = tokens * part.num_heads * keys
        has_sinks = part.sinks or part.softmax == "off_by_one"
        if part.score == "additive" or part.softcap is not None or part.softmax == "softpick" or has_sinks:
            if part.score == "additive":  # the sums under tanh twice, once in the layout for the product with w
                scores = 2 * pairs * self.sizes.head_dim * itemsize
            else:
                scores = pairs * FLOAT32 * (part.softcap is not None) + (q + k) * itemsize
            if has_sinks:  # the weights of the sinks
                scores += tokens * part.num_heads * FLOAT32
            if part.softmax == "softpick":  # the exponentials, less 1, and whether they are masked; then rectified
                scores += pairs * ((3 - (itemsize == 2)) * FLOAT32 + 1)
            # scores before and after the clamp and the softmax; then dropped out, or cast
            changed = pairs * itemsize if itemsize == 2 or part.dropout else 0
            weights = 2 * pairs * FLOAT32 + changed
            return scores + weights + (v + y) * itemsize + (work.length * keys if work.causal else 0)
        # the kernel needs one width: the narrower of keys and values is padded, and its result cut
        width, is_padded = max(self.head_dim.value, self.mixed_width.value), k != v
        q, k = tokens * part.num_heads * width, work.rows * keys * self.sizes.num_kv_heads * width
        cut = y * itemsize if is_padded and part.differential is None else 0
        if (
            part.dropout or self.position.biases_scores or part.key_bias
        ):  # not supported by torch's fused kernel; products in float32
            return 3 * q * FLOAT32 + pairs * FLOAT32 * (3 if part.dropout else 1) + y * itemsize
        # keys and values of another layer are saved by that layer, unless they are padded here
        num_saved = 2 if self.has_keys else int(is_padded)
        return (2 * q + num_saved * k) * itemsize + tokens * part.num_heads * FLOAT32 + cut

    def _tiled_attention(self, work: TrainingWork, shapes: list[Shape]) -> int:
        # gathered inputs, two numbers per pair, and the output
        part, itemsize = self.part, work.itemsize
        heads, kv_heads, head_dim, *_ = self.sizes
        value_width = self.mixed_width.value
        # one piece is computed by the kernel, which needs one width
        width = max(head_dim, value_width) if len(shapes) == 1 else head_dim
        saved = 0
        for tiles, queries, keys in shapes:
            values = width if len(shapes) == 1 else value_width
            gathered = tiles * ((queries * heads + keys * kv_heads) * width + keys * kv_heads * values)
            pairs = tiles * queries * keys * heads
            per_pair = 2 + (part.softcap is not None) + 2 * bool(part.dropout) + 2 * (part.softmax == "softpick")
            log_sums = tiles * queries * heads * FLOAT32
            casts = 2 * pairs if itemsize == 2 else 0
            saved += work.rows * (gathered * itemsize + pairs * per_pair * FLOAT32 + log_sums + casts)
        result = work.tokens * heads * value_width * itemsize
        merged = len(shapes) * (result + work.tokens * heads * FLOAT32) if len(shapes) > 1 else 0
        return saved + merged + result


class JointConvolutionCost:
    """Cost of both convolutions over queries and keys; zero without them.

    Args:
        convolution: the convolutions (None: none).
        attention: cost of the attention that they belong to.
    """

    def __init__(self, convolution: spec.JointConvolution | None, attention: AttentionCost) -> None:
        self.kernels = convolution.kernels if convolution else (1, 1)
        self.channels = attention.q_features + attention.kv_features if convolution else ZERO
        self.head_dim = attention.head_dim
        self.delayed = attention.v_features.value // 2 if convolution else 0

    @property
    def _sizes(self) -> dict[str, Formula]:
        first, second = map(constant, self.kernels)
        return {"joint.depthwise": first * self.channels, "joint.grouped": second * self.head_dim * self.channels}

    def parameters(self) -> Counts:
        return {name: size + self.channels for name, size in self._sizes.items()} if self.delayed else {}

    def flops(self, work: Work) -> Counts:
        if not self.delayed:
            return {}
        # the second reads outputs of the first at earlier positions, which are computed again
        again = {"joint.depthwise": work.rows * (self.kernels[1] - 1)}
        return {name: 2 * (work.tokens + again.get(name, ZERO)) * size for name, size in self._sizes.items()}

    def state(self) -> int:
        return (self.channels.value + self.delayed) * (sum(self.kernels) - 2)

    def saved_activations(self, work: TrainingWork) -> int:
        # the inputs of both, with those before them
        reach = sum(self.kernels) - 2
        first = (work.tokens + work.rows * reach) * (self.channels.value + self.delayed)
        second = (work.tokens + work.rows * (self.kernels[1] - 1)) * self.channels.value
        return (first + second) * work.itemsize if self.delayed else 0


class CrossAttentionCost(AttentionCost):
    """Cost of cross-attention, whose keys and values are computed once per source."""

    def flops(self, work: Work) -> Counts:
        assert work.source is not None
        counts = {name: self.projections[name].flops(work.tokens) for name in ("q", "o")}
        for name in ("k", "v"):
            if projection := self.projections.get(name):
                # keys and values of the source were computed in the prefill
                is_known = work.phase == "decode"
                counts[name] = ZERO if is_known else projection.flops(work.rows * work.source)
        pairs = 2 * work.tokens * work.source
        return counts | {"scores": pairs * self.q_features, "mixture": pairs * self.o_features}

    def saved_activations(self, work: TrainingWork) -> int:
        # in float32 the source itself is saved once for all layers
        d = self.d.value
        cast = work.input_bytes(d, tokens=work.rows * work.source) if work.compute_dtype == "bfloat16" else 0
        normed = self.heads_norm.saved_activations(work.tokens)
        return work.input_bytes(d) + cast + normed + self._dense_attention(work, work.source)
