"""Every change of a trained Llama that the guide promises: those that start equal, and those that are healed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.feedforward.spec import GatedMLP


@dataclass(frozen=True)
class Change:
    """A transplant.

    Attributes:
        name: what is changed.
        assignments: as for `archetype set`.
        test: test of the change, in tests/unit/surgery.
        source: where the change is described.
        options: other arguments of `archetype.transplant`.
        donor: changes of the model that make the donor, one transplant after the other.
        trains_donor: whether the donor is then trained, so that copies differ.
        is_equal: whether the change starts equal, and is not healed.
        exchanges: whether the tokenizer is another one.
    """

    name: str
    assignments: Sequence[str]
    test: str
    source: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    donor: Sequence[Sequence[str]] = ()
    trains_donor: bool = False
    is_equal: bool = False
    exchanges: bool = False


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Llama, and parts that follow from them."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    eps: float
    context: int
    tokens: int
    mixer: dict[str, Any]

    @classmethod
    def of(cls, spec: ModelSpec) -> "Sizes":
        stack = spec.stacks[0]
        block = stack.layers[0]
        mixer, feedforward, norm = cast(Attention, block.mixer), cast(GatedMLP, block.feedforward), stack.final_norm
        heads = mixer.sizes(stack.d_model)
        return cls(
            len(stack.layers), stack.d_model, heads.num_heads, heads.num_kv_heads, heads.head_dim,
            feedforward.width(stack.d_model), norm.dump(full=True)["eps"], spec.context_length,
            spec.input_vocab_size, mixer.dump(),
        )  # fmt: skip

    def network(self, d_ff: int) -> dict[str, Any]:
        return {"kind": "gated", "d_ff": d_ff, "activation": "silu"}

    def experts(self, d_ff: int, **more: Any) -> str:
        """Four experts, two for each token, instead of the feed-forward part."""
        router = {"kind": "softmax", "renormalize": True}
        sizes = {"num_experts": 4, "experts_per_token": 2, "router": router}
        return assigned("layers[*].feedforward", {"kind": "experts", **sizes, "expert": self.network(d_ff), **more})

    def recurrent(self, kind: str) -> dict[str, Any]:
        """A recurrence with the heads of attention."""
        states = {"state_size": self.head_dim, "num_groups": self.heads} if kind == "mamba2" else {}
        values = {"v_head_dim": self.head_dim} if kind != "mamba2" else {}
        return {"kind": kind, "num_heads": self.heads, "head_dim": self.head_dim, **values, **states}

    def latent(self, rank: int) -> str:
        """Latent attention whose shared key holds the rotated features of all key heads, each with its own angle."""
        pairs, width = self.head_dim // 2, self.head_dim * self.kv_heads
        angles = [1e4 ** (-pair / pairs) for pair in range(pairs) for _ in range(self.kv_heads)]
        factors = [1 / (angle * 1e4 ** (2 * pair / width)) for pair, angle in enumerate(angles)]
        scaling = {"kind": "longrope", "short_factors": factors, "long_factors": factors,
                   "original_context_length": self.context}  # fmt: skip
        return assigned("layers[*].mixer", {
            "kind": "latent", "num_heads": self.heads, "kv_lora_rank": rank, "qk_nope_head_dim": 1,
            "qk_rope_head_dim": width, "v_head_dim": self.head_dim, "norm": "none",
            "position": {"kind": "rotary", "interleaved": True, "scaling": scaling},
        })  # fmt: skip

    def beside(self, other: dict[str, Any], **more: Any) -> str:
        return assigned("layers[*].mixer", {"kind": "together", "parts": [self.mixer, other], **more})


def assigned(path: str, value: Any) -> str:
    return f"{path}={json.dumps(value)}"


def changes(spec: ModelSpec) -> list[Change]:
    """Return all transplants of a Llama."""
    sizes = Sizes.of(spec)
    return [Change("nothing", ["name=same"], "test_random_changes", is_equal=True), *_equal(sizes), *_changed(sizes)]


def _equal(of: Sizes) -> Iterator[Change]:
    def equal(name: str, assignments: Sequence[str], test: str, *donor: Sequence[str], source: str = "") -> Change:
        return Change(name, assignments, test, source, donor=donor, is_equal=True)

    mixer, norm = "layers[*].mixer", "layers[*].wiring.norm"
    index = {"kind": "lightning", "num_heads": 4, "head_dim": 8, "top_k": of.context}
    doubled, shared = [f"{mixer}.num_kv_heads={2 * of.kv_heads}"], of.d_ff // 3
    wide, eps = of.width * 3 // 2, of.eps * 2 / 3
    wider = [f"d_model={wide}", f"{mixer}.head_dim={of.head_dim}", f"layers[*].feedforward.d_ff={of.d_ff}",
             f"{norm}.eps={eps}", f"final_norm.eps={eps}"]  # fmt: skip
    folded = [f"{norm}.weight=false", "final_norm.weight=false", "head.tied=false"]
    unfolded = [f"{norm}.weight=true", "final_norm.weight=true"]
    learned = {"scales": "learned"}
    delta, mamba = of.recurrent("gated_delta_net"), {"kind": "mamba"}
    repeated = [f"num_layers={2 * of.layers}"]
    scaling = {"kind": "linear", "factor": 1.0}
    attention, sized = "test_mixers: FIELDS", "test_sizes"
    yield equal("an index of all keys", [assigned(f"{mixer}.index", index)], attention, source="DeepSeek-AI 2025")
    yield equal("a window of the whole context", [f"{mixer}.pattern={{kind: window, size: {of.context}}}"], attention)
    yield equal("each key head twice", doubled, f"{sized}: key heads repeated")
    yield equal("equal key heads merged", [f"{mixer}.num_kv_heads={of.kv_heads}"], f"{sized}: merged", doubled)
    yield equal("query heads added", [f"{mixer}.head_dim={of.head_dim}", f"{mixer}.num_heads={of.heads * 3 // 2}"],
                f"{sized}: query heads")  # fmt: skip
    yield equal(
        "wider heads",
        [f"{mixer}.head_dim={2 * of.head_dim}", f"{mixer}.scale={of.head_dim**-0.5}",
         f"{mixer}.position.dim={of.head_dim}"], f"{sized}: wider heads",
    )  # fmt: skip
    yield equal("twice as many layers", repeated, f"{sized}: layers", source="Wu 2024")
    yield equal("d_ff doubled", [f"layers[*].feedforward.d_ff={2 * of.d_ff}"], f"{sized}: wider", source="Chen 2016")
    yield equal("wider vectors", wider, f"{sized}: wider vectors", source="Chen 2016")
    upcycled = [of.experts(of.d_ff)]
    yield equal("experts from the feed-forward part", upcycled, f"{sized}: experts", source="Komatsuzaki 2023")
    split = [of.experts(of.d_ff - shared, shared=of.network(shared))]
    yield equal("a shared expert split off", split, f"{sized}: shared expert", source="Dai 2024")
    yield equal("a shared expert added", [of.experts(of.d_ff, shared=of.network(shared))], f"{sized}: shared", upcycled)
    twice = ["layers[*].feedforward.num_experts=8", "layers[*].feedforward.experts_per_token=4"]
    yield equal("each expert twice", twice, f"{sized}: each expert twice", upcycled)
    yield equal("an untied head", ["head.tied=false"], f"{sized}: own head", ["head.tied=true"])
    yield equal("a larger vocabulary", [f"vocab_size={of.tokens + 32}"], f"{sized}: vocabulary")
    reader = [*repeated, "layers[1].mixer.keys_from=0"]
    yield equal(
        "keys of the layer before, which adds nothing", reader, f"{sized}: keys of another", source="Brandon 2024"
    )
    loop, unrolled = ["layers[1].weights_of=0"], ["layers[1].weights_of=null"]
    yield equal("a loop of equal layers", loop, f"{sized}: loop", loop, unrolled)
    yield equal("a loop unrolled", unrolled, f"{sized}: unrolled", loop)
    yield equal("a delta net beside attention", [of.beside(delta, **learned)], "test_mixers: beside")
    yield equal("a Mamba beside attention", [of.beside(mamba)], "test_mixers: beside")
    full = [of.latent(of.kv_heads * of.head_dim)]
    yield equal("latent attention of full rank", full, "test_mixers: LATENTS", source="Meng 2025")
    yield equal("a further token", ["further_tokens={count: 1}"], f"{sized}: further tokens", source="Gloeckle 2024")
    yield equal("gains folded into matrices", folded, f"{sized}: gains folded", source="Ashkboos 2024")
    yield equal("gains taken out again", unfolded, f"{sized}: gains of one", folded)
    yield equal("positions scaled by 1", [assigned(f"{mixer}.position.scaling", scaling)], attention)
    yield equal("a gate of each head", [f"{mixer}.gate={{per: head}}"], attention, source="Qiu 2025")
    yield equal("a factor of values", [f"{mixer}.value_scale=0.5"], attention)
    yield equal("biases", [f"{mixer}.bias=true"], attention)
    yield equal("a table of values by token", [f"{mixer}.value_embedding={{}}"], attention)
    yield equal("queries scaled beyond the context", [f"{mixer}.query_scale={{beta: 0.1, length: {of.context}}}"],
                attention, source="Llama 4")  # fmt: skip


def _changed(of: Sizes) -> Iterator[Change]:
    mixer, last = "layers[*].mixer", of.layers - 1
    half = f"{mixer}.num_kv_heads={of.kv_heads // 2}"
    for share, name in ((2, "half"), (4, "a quarter")):
        fewer = [f"{mixer}.num_kv_heads={of.kv_heads // share}"]
        for way, words in (("mean", "their mean"), ("first", "the first of each group"), ("random", "drawn anew")):
            if of.kv_heads % share == 0:
                yield Change(f"{name} of the key heads, {words}", fewer, "test_transplant: merged heads",
                             "Ainslie 2023", {"choices": {"heads": way}})  # fmt: skip
    for way in ("balanced", "plain", "whitened"):
        yield Change(f"latent attention of half the rank, {way}", [of.latent(of.kv_heads * of.head_dim // 2)],
                     "test_mixers: fewer latents", "Meng 2025", {"choices": {"latent": way}})  # fmt: skip
    for kind, words, source in (
        ("gated_delta_net", "gated delta nets", "Wang 2024"), ("linear_attention", "linear attention", "Kasai 2021"),
        ("mamba2", "Mamba-2", "Wang 2024"),
    ):  # fmt: skip
        yield Change(f"{words} in every second layer", [assigned("layers[1::2].mixer", of.recurrent(kind))],
                     "test_mixers: recurrences", source)  # fmt: skip
    for way in ("influence", "first", "random"):
        yield Change(f"one layer less, by {way}", [f"num_layers={last}"], "test_pruning: least influence", "Men 2024",
                     {"layers": way})  # fmt: skip
    cuts = {
        "half of d_ff": [f"layers[*].feedforward.d_ff={of.d_ff // 2}"],
        "half of the heads": [f"{mixer}.head_dim={of.head_dim}", f"{mixer}.num_heads={of.heads // 2}", half],
        "three quarters of d_model": [f"d_model={of.width * 3 // 4}", f"{mixer}.head_dim={of.head_dim}"],
    }
    for what, assignments in cuts.items():
        for way in ("activation", "magnitude", "random"):
            yield Change(f"{what}, by {way}", assignments, "test_pruning: CUTS", "Muralidharan 2024",
                         {"choices": {"cut": way}})  # fmt: skip
    of_experts = partial(
        Change, assignments=["layers[*].feedforward.num_experts=2"], donor=[[of.experts(of.d_ff)]], trains_donor=True
    )
    yield of_experts("half of the experts", test="test_pruning: CUTS", source="Muralidharan 2024")
    yield of_experts("half of the experts, merged", test="test_pruning: merged", source="Li 2024",
                     options={"choices": {"experts": "merged"}})  # fmt: skip
    yield Change("another tokenizer", [], "test_vocabulary", "Gee 2022", exchanges=True)
    base = [f"{mixer}.position.theta=500000.0"]
    yield Change("base of the positions times 50", base, "test_transplant: changed start", "Xiong 2023")
    yarn = {"kind": "yarn", "factor": 4.0, "original_context_length": of.context}
    yield Change("positions scaled by YaRN, factor 4", [assigned(f"{mixer}.position.scaling", yarn)],
                 "test_mixers: FIELDS", "Peng 2023")  # fmt: skip
    window = "{kind: window, size: 32}"
    for name, layers in (("all layers but the last", f"0:{last}"), ("three of four layers", _three_of_four(of.layers))):
        yield Change(f"a window of 32 in {name}", [f"layers[{layers}].mixer.pattern={window}"],
                     "test_transplant: changed start", "Beltagy 2020")  # fmt: skip
    index = assigned(f"{mixer}.index", {"kind": "lightning", "num_heads": 4, "head_dim": 8, "top_k": 32})
    for way in ("drawn", "keys"):
        yield Change(f"an index of 32 keys, {way}", [index], "test_mixers: index", "DeepSeek-AI 2025",
                     {"choices": {"index": way}})  # fmt: skip
    yield Change("a norm of queries and keys", [f"{mixer}.qk_norm={{kind: rms}}"], "test_mixers: norm", "Henry 2020")
    yield Change("attention sinks", [f"{mixer}.sinks=true"], "test_mixers: sinks", "gpt-oss")


def _three_of_four(layers: int) -> str:
    return ",".join(str(layer) for layer in range(layers) if layer % 4 != 3)
