"""Parameters of every module of a model, under the names that the built model gives them.

A parameter that belongs to no projection or norm has its own name here (`mixer.A_log`). What is stored but not trained,
such as the running statistics of a batch norm, is no parameter.
"""

from itertools import pairwise
from typing import Literal, assert_never

from archetype import spec
from archetype.cost import sizes
from archetype.cost.formula import Formula, formula, symbol

Counts = dict[str, Formula]
Experts = Literal["all", "chosen"]  # whether to count every expert, or those that one token is sent to

NOTHING = formula(0)


def outside(model: spec.ModelSpec) -> tuple[Counts, Counts]:
    """Parameters of the modules before the stacks, and of those after them."""
    match model:
        case spec.Decoder():
            d = symbol("d", model.d_model)
            return _below("embedding", embedding(model.embedding, model, d)), language_model_head(model.head, model, d)
        case spec.Encoder():
            d = symbol("d", model.d_model)
            before = _below("embedding", embedding(model.embedding, model, d))
            return before, pooler(model.pooler, d) | encoder_head(model, d)
        case spec.EncoderDecoder():
            d = symbol("d", model.d_model)
            before = _below("embedding", embedding(model.embedding, model, d))
            if not model.embedding.shared:
                source = embedding(model.embedding, model, d)
                source["token"] = symbol("V_s", model.source_vocab_size or model.vocab_size) * d
                before |= _below("source_embedding", source)
            return before, language_model_head(model.head, model, d)
        case spec.NGram():
            d = symbol("d", model.d_model)
            widths = sizes.hidden_widths(model)
            hidden = {
                f"hidden.{i}": linear(inputs, outputs, True) for i, (inputs, outputs) in enumerate(pairwise(widths))
            }
            before = {"embedding.token": symbol("V", model.vocab_size) * d} | hidden
            return before, language_model_head(model.head, model, widths[-1])
        case spec.MegaByte():
            return _megabyte(model)
        case spec.VisionEncoder():
            d = symbol("d", model.d_model)
            parts = {
                "patch": linear(sizes.patch_numbers(model), d, True),
                "class_token": d if model.class_token else NOTHING,
                "position": position_table(model.embedding.position, model.context_length, d),
                "norm": norm(model.embedding.norm, d),
            }
            return _below("embedding", parts), pooler(model.pooler, d) | vision_head(model.head, d)
        case _:
            assert_never(model)


def _megabyte(model: spec.MegaByte) -> tuple[Counts, Counts]:
    """A byte's vector is 1 / p of the global width: p such vectors are one patch's."""
    wide, narrow = (sizes.width(stack) for stack in model.stacks)
    share = sizes.byte_width(model)
    vocabulary = symbol("V", model.vocab_size)
    before = {
        "global_embedding.token": vocabulary * share,
        "global_embedding.position": symbol("N", model.context_length) * share,
        "global_embedding.start": wide,
        "local_embedding.token": vocabulary * narrow,
        "local_embedding.start": narrow,
        "projection": linear(share, narrow, True),
    }
    return before, language_model_head(model.head, model, narrow)


def embedding(part: spec.Embedding, model: spec.Decoder | spec.Encoder | spec.EncoderDecoder, d: Formula) -> Counts:
    """Parameters of what turns tokens into vectors, by module."""
    return {
        "token": symbol("V", model.vocab_size) * d,
        "position": position_table(part.position, model.context_length, d),
        "token_type": symbol("t", part.num_token_types) * d if part.num_token_types else NOTHING,
        "norm": norm(part.norm, d),
    }


def position_table(part: spec.EmbeddingPosition, context_length: int, d: Formula) -> Formula:
    """Parameters of positions that are added to embeddings."""
    match part:
        case spec.Learned():
            return symbol("N", context_length) * d + part.offset * d
        case spec.Sinusoidal() | spec.NoPosition():
            return NOTHING
        case _:
            assert_never(part)


def language_model_head(
    head: spec.LanguageModelHead,
    model: spec.Decoder | spec.EncoderDecoder | spec.NGram | spec.MegaByte,
    features: Formula,
) -> Counts:
    """Parameters of the logits; a tied head has no table of its own."""
    vocabulary = symbol("V", model.vocab_size)
    logits = {"lm_head": (NOTHING if head.tied else vocabulary * features) + (vocabulary if head.bias else 0)}
    if head.transform is None:
        return logits
    before = {"dense": linear(features, features, True), "norm": norm(head.transform.norm, features)}
    return _below("lm_head", before) | logits


def encoder_head(model: spec.Encoder, d: Formula) -> Counts:
    """Parameters of what an encoder ends in."""
    match model.head:
        case spec.MaskedLanguageModelHead() as head:
            vocabulary = symbol("V", model.vocab_size)
            logits = (NOTHING if head.tied else vocabulary * d) + (vocabulary if head.bias else 0)
            return {"lm_head.dense": linear(d, d, True), "lm_head.norm": norm(head.norm, d), "lm_head": logits}
        case spec.ClassificationHead() | spec.NoHead() as head:
            return vision_head(head, d)
        case _:
            assert_never(model.head)


def vision_head(head: spec.VisionHead, d: Formula) -> Counts:
    """Parameters of classes, or of nothing."""
    match head:
        case spec.ClassificationHead():
            return {"classifier": linear(d, symbol("Y", head.num_classes), True)}
        case spec.NoHead():
            return {}
        case _:
            assert_never(head)


def pooler(present: bool, d: Formula) -> Counts:
    """Parameters of the layer on the vector that stands for the whole."""
    return {"pooler": linear(d, d, True)} if present else {}


def stack_ends(stack: spec.StackView) -> Counts:
    """Parameters that a stack has beside its blocks."""
    table = stack.relative_bias
    shared = {"position_bias": symbol("t", table[0].num_buckets) * symbol("h", table[1])} if table else {}
    return _below(stack.prefix, shared | {"final_norm": norm(stack.final_norm, sizes.width(stack))}, joint="")


def block(layer: spec.Block, d: Formula, experts: Experts = "all") -> Counts:
    """Parameters of one layer, by module."""
    contents = {"mixer": mixer(layer.mixer, d)}
    if layer.cross_attention is not None:
        contents["cross"] = attention(layer.cross_attention, d)
    if not isinstance(layer.feedforward, spec.NoFeedForward):
        contents["feedforward"] = feedforward(layer.feedforward, d, experts)
    counts: Counts = {}
    for name, content in contents.items():
        before, after = norms_around(layer.wiring, name, d)
        counts |= {f"{name}_norm": before} | _below(name, content) | {f"{name}_post_norm": after}
    return counts


def norms_around(wiring: spec.Wiring, content: str, d: Formula) -> tuple[Formula, Formula]:
    """Parameters of the norm that is called after a content, and of the one after it in sandwich wiring."""
    match wiring:
        case spec.PreNorm() | spec.PostNorm() | spec.OutputNorm():
            return norm(wiring.norm, d), NOTHING
        case spec.SandwichNorm():
            return norm(wiring.norm, d), norm(wiring.norm, d)
        case spec.ParallelResidual():
            return (NOTHING if wiring.shared_norm and content == "feedforward" else norm(wiring.norm, d)), NOTHING
        case spec.Plain():
            return NOTHING, NOTHING
        case _:
            assert_never(wiring)


def mixer(part: spec.Mixer, d: Formula) -> Counts:
    """Parameters of a mixer, by projection."""
    match part:
        case spec.Attention():
            return attention(part, d)
        case spec.LatentAttention():
            return latent_attention(part, d)
        case spec.RNN() | spec.LSTM() | spec.GRU():
            hidden, directions = sizes.hidden_features(part, d)
            return {"cell": sizes.gates(part) * directions * hidden * (d + hidden + 2)}
        case spec.Mamba():
            inner, state, rank = sizes.mamba_sizes(part, d)
            return {
                "in_proj": linear(d, 2 * inner, part.bias),
                "conv": symbol("c", part.conv_kernel) * inner + (inner if part.conv_bias else 0),
                "x_proj": linear(inner, rank + 2 * state, False),
                "dt_proj": linear(rank, inner, True),
                "A_log": inner * state,
                "D": inner,
                "out_proj": linear(inner, d, part.bias),
            }
        case _:
            assert_never(part)


def attention(part: spec.Attention, d: Formula) -> Counts:
    """Parameters of attention, by projection."""
    heads, wide, narrow = sizes.head_sizes(part, d)
    features = symbol("P", part.sizes(d.value).head_dim)
    biases = part.bias
    q, k, v = linear(d, wide, biases.q), linear(d, narrow, biases.k), linear(d, narrow, biases.v)
    counts = {"q": q, "k": k, "v": v, "o": linear(wide, d, biases.o)}
    normed = (wide, narrow) if part.qk_norm_over == "all" else (features, features)
    counts |= {name: norm(part.qk_norm, width) for name, width in zip(("q_norm", "k_norm"), normed, strict=True)}
    if part.score == "additive":
        counts["score"] = heads * features
    if isinstance(part.pattern, spec.GlobalWindow) and part.pattern.global_projections:
        counts |= {"q_global": q, "k_global": k, "v_global": v}
    return counts


def latent_attention(part: spec.LatentAttention, d: Formula) -> Counts:
    """Parameters of latent attention, by projection."""
    heads, plain, turned, value, latent = sizes.latent_sizes(part)
    match part.query:
        case spec.DirectQuery():
            query = {"q": linear(d, heads * (plain + turned), False)}
        case spec.LowRankQuery():
            rank = symbol("r", part.query.rank)
            query = {
                "q_down": linear(d, rank, part.bias),
                "q_norm": norm(part.norm, rank),
                "q_up": linear(rank, heads * (plain + turned), False),
            }
        case _:
            assert_never(part.query)
    return query | {
        "kv_down": linear(d, latent + turned, part.bias),
        "kv_norm": norm(part.norm, latent),
        "kv_up": linear(latent, heads * (plain + value), False),
        "o": linear(heads * value, d, part.bias),
    }


def feedforward(part: spec.FeedForward, d: Formula, experts: Experts = "all") -> Counts:
    """Parameters of a feed-forward part, by projection."""
    match part:
        case spec.MLP() | spec.GatedMLP():
            return projections(part, d)
        case spec.MixtureOfExperts():
            number = symbol("E", part.num_experts)
            counted = number if experts == "all" else sizes.chosen(part)
            counts = {"router": number * d}
            counts |= {f"experts.{name}": counted * one for name, one in weights_and_biases(part.expert, d).items()}
            if part.shared is not None:
                counts |= _below("shared", projections(part.shared, d))
                counts |= {"shared_gate": d} if part.shared_gate else {}
            return counts
        case spec.NoFeedForward():
            return {}
        case _:
            assert_never(part)


def projections(part: spec.Expert, d: Formula) -> Counts:
    """Parameters of one feed-forward network, by projection."""
    inner = sizes.inner_width(part, d)
    up, down = linear(d, inner, part.bias), linear(inner, d, part.bias)
    match part:
        case spec.MLP():
            return {"up": up, "down": down}
        case spec.GatedMLP():
            return {"gate": up, "up": up, "down": down}
        case _:
            assert_never(part)


def weights_and_biases(part: spec.Expert, d: Formula) -> Counts:
    """Parameters of one expert, whose biases are tensors of their own in the stack of all experts."""
    inner = sizes.inner_width(part, d)
    weights = dict.fromkeys(projections(part, d), d * inner)
    biases = {f"{name}_bias": d if name == "down" else inner for name in weights}
    return weights | (biases if part.bias else {})


def norm(part: spec.Norm, features: Formula) -> Formula:
    """Parameters of a norm."""
    match part:
        case spec.LayerNorm():
            return features * (part.weight + part.bias) if part.weight or part.bias else NOTHING
        case spec.RMSNorm():
            return features if part.weight else NOTHING
        case spec.BatchNorm():
            return 2 * features
        case spec.NoNorm():
            return NOTHING
        case _:
            assert_never(part)


def linear(inputs: Formula, outputs: Formula, bias: bool) -> Formula:
    """Parameters of a projection."""
    return inputs * outputs + (outputs if bias else 0)


def _below(name: str, counts: Counts, joint: str = ".") -> Counts:
    return {f"{name}{joint}{inner}": count for inner, count in counts.items()}
