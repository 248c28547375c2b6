"""Transplants between mixers: equal starts, each with a control that is not, and what other mixers take over."""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import archetype
from archetype.api.transplanting import rows_of
from archetype.inspection.inputs import Inputs
from archetype.inspection.trace import Tracer
from archetype.models.build import build
from archetype.nn.ledger import Ledger, Start
from archetype.nn.transfer import Cuts
from archetype.spec.edit import assign
from archetype.surgery.measure import moments_of
from archetype.surgery.operation import fill
from archetype.surgery.proof import Proof, compare
from tests.helpers.examples import every
from tests.helpers.specs import mixed
from tests.helpers.weights import randomize

Mixer = dict[str, Any]
LENGTH = 24  # context of the models
ROWS = [torch.randint(31, (1, 20), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
ROTARY = {"kind": "rotary"}
GROUPED = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "position": ROTARY}
UNORDERED = GROUPED | {"position": {"kind": "none"}}
DELTA = {"kind": "gated_delta_net", "num_heads": 4, "head_dim": 8, "v_head_dim": 8}
BESIDE: dict[str, Mixer] = {
    "delta": DELTA, "mamba": {"kind": "mamba"}, "linear": {"kind": "linear_attention", "num_heads": 4},
    "mamba2": {"kind": "mamba2", "num_heads": 4, "head_dim": 8, "state_size": 8}, "gru": {"kind": "gru"},
}  # fmt: skip


def transplanted(
    old: Mixer, new: Mixer, dtype: torch.dtype = torch.float32, choices: Mapping[str, str] | None = None
) -> tuple[Any, Any, Ledger, Proof]:
    donor = donor_of(json.dumps(old), dtype)
    model, ledger = filled(donor, new, choices)
    return donor, model, ledger, compare(donor, model, ROWS, [0, 1])


def filled(donor: Any, new: Mixer, choices: Mapping[str, str] | None = None) -> tuple[Any, Ledger]:
    return fill(donor, mixed(**new), Cuts(choices=choices or {}, moments=moments_of(donor, ROWS)))


@cache
def donor_of(mixer: str, dtype: torch.dtype = torch.float32) -> Any:
    return randomize(build(mixed(**json.loads(mixer)), dtype=dtype))


def check_start(old: Mixer, new: Mixer, control: Mixer) -> None:
    """The new mixer starts equal to rounding, which is promised; the control does not, which is promised as well."""
    _, _, ledger, proof = transplanted(old, new)
    assert ledger.start <= Start.ROUNDED, ledger.starts
    assert proof.start <= ledger.start and proof.difference < 1e-4, proof
    _, _, ledger, proof = transplanted(old, control)
    assert ledger.start == proof.start == Start.CHANGED, (ledger.starts, proof)
    assert proof.difference > 1e-3


def latent(**changes: Any) -> Mixer:
    """Latent attention that holds all keys and values of two heads of 8 features without positions."""
    sizes = {"num_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 2, "v_head_dim": 8}
    return {"kind": "latent", **sizes, "norm": "none", "position": "none"} | changes


def rotating(heads: int, features: int, **changes: Any) -> Mixer:
    """A shared key that rotates by the angles of `features` features as often as there are heads."""
    width = heads * features
    angles = [1e4 ** (-2 * pair / features) for pair in range(features // 2) for _ in range(heads)]
    factors = [1 / (angle * 1e4 ** (2 * pair / width)) for pair, angle in enumerate(angles)]
    scaling = {"kind": "longrope", "short_factors": factors, "long_factors": factors, "original_context_length": 8}
    return {"qk_rope_head_dim": width, "position": ROTARY | {"interleaved": True, "scaling": scaling}} | changes


YARN = ROTARY | {"scaling": {"kind": "yarn", "factor": 4.0, "original_context_length": 8}}
GATE = {"gate": {"per": "head"}, "sinks": True}
LATENTS = {
    "without positions": (UNORDERED, latent(), latent(kv_lora_rank=15)),  # of 16 features
    "all keys rotate": (GROUPED, latent(**rotating(2, 8, kv_lora_rank=16)), latent(**rotating(1, 8, kv_lora_rank=16))),
    "some features rotate": (
        GROUPED | {"position": ROTARY | {"dim": 4}}, latent(**rotating(2, 4, qk_nope_head_dim=4, kv_lora_rank=24)),
        latent(**rotating(2, 4, qk_nope_head_dim=3, kv_lora_rank=24)),
    ),
    "one key head, scaled and reversed": (
        GROUPED | {"num_kv_heads": 1, "position": YARN | {"reversed": True}},
        latent(qk_rope_head_dim=8, kv_lora_rank=8, qk_nope_head_dim=1, position=YARN),
        latent(qk_rope_head_dim=8, kv_lora_rank=8, qk_nope_head_dim=1, position=ROTARY),
    ),
    "biases, gate and sinks": (
        UNORDERED | GATE | {"bias": True}, latent(**GATE, bias=True, query={"kind": "low_rank", "rank": 32}),
        latent(**GATE, bias=True, query={"kind": "low_rank", "rank": 8}),
    ),
    "a gate that begins open": (
        UNORDERED, latent(gate={"per": "feature", "activation": "softplus"}), latent(sinks=True),
    ),
    "wider values": (UNORDERED, latent(v_head_dim=12), latent(v_head_dim=6)),
    "latents expanded to heads": (
        latent(qk_rope_head_dim=4, position=ROTARY),
        UNORDERED | {"num_kv_heads": 4, "head_dim": 12, "v_head_dim": 8, "position": ROTARY | {"dim": 4}},
        UNORDERED | {"num_kv_heads": 4, "head_dim": 12, "v_head_dim": 8, "position": ROTARY | {"dim": 6}},
    ),
    "latents that are normalized": (UNORDERED, latent(), latent(norm="rms")),
}  # fmt: skip


@pytest.mark.parametrize("name", every(2, LATENTS))
def test_attention_becomes_latent_attention_without_loss(name: str) -> None:
    check_start(*LATENTS[name])


def test_fewer_latents_lose_less_by_the_inputs_of_the_text() -> None:
    """Principal components of the outputs on the text, and not of the matrices alone (Meng 2025)."""
    start = {
        (rank, way): transplanted(UNORDERED, latent(kv_lora_rank=rank), choices={"latent": way})[3].divergence
        for rank in (4, 8, 12)
        for way in ("plain", "balanced", "whitened")
    }
    for way in ("plain", "balanced", "whitened"):
        assert start[4, way] > start[8, way] > start[12, way] > 0
    for rank in (4, 8, 12):
        assert start[rank, "whitened"] < min(start[rank, "plain"], start[rank, "balanced"])


def test_balanced_keys_and_values_lose_less_where_keys_are_larger() -> None:
    """Without balance, keys that are larger than values, as trained ones are, take all latents (Meng 2025)."""
    donor: Any = randomize(build(mixed(**UNORDERED)))
    with torch.no_grad():
        for block in donor.blocks:
            block.mixer.k.weight.mul_(20.0)
            block.mixer.q.weight.div_(20.0)
    far = {}
    for way in ("plain", "balanced"):
        model, _ = filled(donor, latent(kv_lora_rank=8), {"latent": way})
        far[way] = compare(donor, model, ROWS, [0, 1]).divergence
    assert far["balanced"] < far["plain"]


def test_a_rotation_that_is_left_out_matters_less_than_keys_that_are() -> None:
    """Principal components rotate, and the others lose their positions: nearer than without any positions."""
    half, wrong = latent(qk_rope_head_dim=8, position=ROTARY), latent(qk_rope_head_dim=8, position="none")
    near, far = (transplanted(GROUPED, new)[3].divergence for new in (half, wrong))
    assert near < far


SCALINGS: dict[str, Any] = {
    "linear": ({"kind": "linear", "factor": 1.0}, {"kind": "linear", "factor": 1.1}),
    "yarn": ({"kind": "yarn", "factor": 1.0, "original_context_length": 8}, YARN["scaling"]),
    "dynamic": tuple({"kind": "dynamic", "factor": 1.0, "original_context_length": length} for length in (LENGTH, 4)),
    "longrope": tuple(
        {"kind": "longrope", "short_factors": [1.0] * 4, "long_factors": [1.0, 1.0, 1.0, last],
         "original_context_length": 8}
        for last in (1.0, 9.0)
    ),
    "proportional": tuple({"kind": "proportional", "share": share} for share in (1.0, 0.5)),
}  # fmt: skip
TABLE: Mixer = {"value_embedding": {"gate": {}}}
INDEX = {"kind": "lightning", "top_k": LENGTH, "num_heads": 2, "head_dim": 8}
BLOCKS = {"kind": "blocks", "block": 5, "top_blocks": 5, "num_heads": 2, "head_dim": 8}
FIELDS: dict[str, Any] = {
    **{
        f"scaling {name}": ({}, {"position": ROTARY | {"scaling": one}}, {"position": ROTARY | {"scaling": other}})
        for name, (one, other) in SCALINGS.items()
    },
    "window": ({}, {"pattern": {"kind": "window", "size": LENGTH}}, {"pattern": {"kind": "window", "size": 12}}),
    "pattern": ({}, {"pattern": {"kind": "window", "size": 30}}, {"pattern": {"kind": "strided", "stride": 4}}),
    "index": ({}, {"index": INDEX}, {"index": INDEX | {"top_k": 4}}),
    "index dropped": ({"index": INDEX}, {}, {"index": BLOCKS | {"top_blocks": 1}}),
    "index of blocks": ({}, {"index": BLOCKS}, {"index": BLOCKS | {"top_blocks": 2}}),
    "value_scale": ({"value_scale": 3.0}, {"value_scale": 0.7}, {"value_scale": 0.7, "value_norm": {"kind": "rms"}}),
    "gate": ({}, {"gate": {"per": "head"}}, {"gate": {"per": "head"}, "heads_norm": {"kind": "rms"}}),
    "value_embedding": ({}, TABLE, TABLE | {"softcap": 1.0}),
    "query_scale": ({}, *({"query_scale": {"beta": 0.5, "length": length}} for length in (LENGTH, 6))),
    "bias": ({}, {"bias": True}, {"bias": True, "sinks": True}),
    "dim": ({}, {"position": ROTARY | {"dim": 8}}, {"position": ROTARY | {"dim": 4}}),
    "positions": ({}, {"dropout": 0.1}, {"position": {"kind": "alibi"}}),
    **{
        f"{kind} without positions before": (
            {"position": {"kind": "none"}}, {"position": {"kind": kind}}, {"position": ROTARY},
        )
        for kind in ("relative_bias", "relative_logits", "transformer_xl")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", every(3, FIELDS))
def test_a_field_of_attention_starts_equal(name: str) -> None:
    old, new, control = (GROUPED | changes for changes in FIELDS[name])
    check_start(old, new, control)


@pytest.mark.parametrize("name", every(3, BESIDE))
def test_a_mixer_beside_attention_starts_equal_and_learns(name: str) -> None:
    """Its output projection is zero and has a gradient, or its scale; attention goes on as before."""
    parts = [GROUPED, BESIDE[name]]
    together = {"kind": "together", "parts": parts}
    ways: list[tuple[Mixer, bool]] = [({}, True), ({"scales": "learned"}, True), ({"scales": [1.0, 0.0]}, False)]
    for scales, learns in ways:
        _, model, ledger, proof = transplanted(GROUPED, together | scales)
        assert ledger.start == proof.start == Start.SAME, ledger.starts
        model(ROWS[0]).logits.square().sum().backward()
        own = dict(model.blocks[0].mixer.named_parameters())
        moved = {path for path, x in own.items() if not path.startswith("parts.0.") and x.grad.any()}
        assert bool(moved) == learns
        assert moved <= ({"scales"} if scales else moved - {"scales"})
    assert transplanted(GROUPED, together | {"scales": [1.5, 1.0]})[3].start == Start.CHANGED


def test_a_decay_of_each_head_becomes_one_of_each_channel() -> None:
    """Gated DeltaNet to Kimi delta attention."""
    channels = DELTA | {"decay": "channel"}
    check_start(DELTA, channels, channels | {"decay_rank": 4})


def test_parts_side_by_side_are_added_and_their_scales_learned() -> None:
    parts = [GROUPED, DELTA]
    old = {"kind": "together", "parts": parts, "scales": [0.5, 2.0]}
    learned = old | {"scales": "learned"}
    donor, model, ledger, proof = transplanted(old, learned)
    assert ledger.start == proof.start == Start.SAME
    assert model.blocks[1].mixer.scales.tolist() == [0.5, 2.0]
    further = learned | {"parts": [*parts, BESIDE["mamba"]]}
    model, ledger = filled(model, further)
    assert ledger.start == Start.SAME and model.blocks[1].mixer.scales.tolist() == [0.5, 2.0, 0.0]
    assert compare(donor, model, ROWS, [0, 1]).start == Start.SAME
    check_start(old, learned, {"kind": "together", "parts": parts, "scales": [0.5, 1.0]})


def heads_of(module: Any, heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of a donor's attention, repeated to as many heads as it has queries."""
    matrices = (module.q.weight, module.k.weight, module.v.weight)
    q, k, v = (matrix.detach().unflatten(0, (-1, 8)) for matrix in matrices)
    return q, *(x.repeat_interleave(heads // 2, 0) for x in (k, v))


def test_linear_attention_computes_the_donors_products_without_softmax() -> None:
    """T2R's start (Kasai 2021): q, k, v and o carried over, grouped keys repeated, and no softmax."""
    new = {"kind": "linear_attention", "num_heads": 4, "head_dim": 8, "norm": "none"}
    donor, model, ledger, _ = transplanted(UNORDERED, new, torch.float64)
    taken = ledger.tensors["blocks.0.mixer.k.weight"]
    assert taken.how == "copied" and taken.sources == ("blocks.0.mixer.k.weight",)
    trace = Tracer(model, Inputs({"tokens": ROWS[0]}, (), ids=ROWS[0])).run()
    x = trace["blocks.0.mixer.in"][0]
    q, k, v = (torch.einsum("td,hpd->htp", x, matrix) for matrix in heads_of(donor.blocks[0].mixer, 4))
    y = (q @ k.mT / 8**0.5).tril() @ v  # (H, T, Q)
    expected = donor.blocks[0].mixer.o(y.transpose(0, 1).flatten(1))
    torch.testing.assert_close(trace["blocks.0.mixer.out"][0], expected)
    assert not torch.allclose(expected, donor.blocks[0].mixer.o(y.flip(0).transpose(0, 1).flatten(1)))


def test_recurrences_read_the_donors_queries_keys_and_values() -> None:
    """Each after its convolution, which begins with the newest position alone, and its activation."""
    mixers: dict[str, tuple[Mixer, Any]] = {
        "delta": (DELTA, {"q": 1, "k": 1, "v": 1}),
        "channels": (DELTA | {"decay": "channel", "decay_rank": 4, "gate_rank": 4}, {"q": 1, "k": 1, "v": 1}),
        "mamba2": (BESIDE["mamba2"] | {"num_groups": 4}, {"c": 1, "b": 1, "u": 1}),
    }
    for new, names in mixers.values():
        donor, model, ledger, _ = transplanted(GROUPED, new)
        trace = Tracer(model, Inputs({"tokens": ROWS[0]}, (), ids=ROWS[0])).run()
        x = trace["blocks.0.mixer.in"][0]
        for name, matrix in zip(names, heads_of(donor.blocks[0].mixer, 4), strict=True):
            expected = torch.nn.functional.silu(torch.einsum("td,hpd->thp", x, matrix))
            if name in ("q", "k"):
                expected = expected / expected.square().sum(-1, keepdim=True).add(1e-6).sqrt()
            torch.testing.assert_close(trace[f"blocks.0.mixer.{name}"][0], expected, atol=1e-5, rtol=1e-4)
        output = "out_proj" if new["kind"] == "mamba2" else "o"
        projection = model.blocks[0].mixer.get_submodule(output).weight
        assert torch.equal(projection, donor.blocks[0].mixer.o.weight)
        assert ledger.start == Start.CHANGED


@pytest.mark.parametrize("name", every(2, {"delta": DELTA | {"gate": "sigmoid"}, "mamba2": BESIDE["mamba2"]}))
def test_a_norm_begins_with_the_size_of_the_donors_outputs(name: str) -> None:
    """Nearer to the donor than gains of 1, since averages of values are small."""
    donor = donor_of(json.dumps(GROUPED))
    new = {"delta": DELTA | {"gate": "sigmoid"}, "mamba2": BESIDE["mamba2"]}[name]
    squares = torch.stack([
        Tracer(donor, Inputs({"tokens": row}, (), ids=row)).run()["blocks.1.mixer.heads"].square().mean((0, 2, 3))
        for row in ROWS
    ]).mean(0)  # fmt: skip
    model, _ = filled(donor, new)
    gains = squares.repeat_interleave(8).sqrt() if name == "mamba2" else squares.mean().sqrt().expand(8)
    torch.testing.assert_close(model.blocks[1].mixer.norm.weight, gains)
    plain = fill(donor, mixed(**new), Cuts())[0]
    assert plain.blocks[1].mixer.norm.weight.eq(1).all()  # type: ignore[index, union-attr]
    near, far = (compare(donor, each, ROWS, [0, 1]).divergence for each in (model, plain))  # type: ignore[arg-type]
    assert near < far


@pytest.mark.parametrize(("heads", "keys"), [(4, 2), (8, 8), (2, 1)])
def test_heads_are_repeated_or_averaged(heads: int, keys: int) -> None:
    new = DELTA | {"num_heads": heads, "num_key_heads": keys}
    donor, model, _, _ = transplanted(GROUPED | {"num_kv_heads": 4}, new)
    old, ours = donor.blocks[0].mixer, model.blocks[0].mixer
    for name, count in (("q", keys), ("v", heads)):
        before = getattr(old, name).weight.unflatten(0, (4, 8))
        after = getattr(ours, name).weight.unflatten(0, (count, 8))
        if count >= 4:
            torch.testing.assert_close(after, before.repeat_interleave(count // 4, 0))
        else:
            torch.testing.assert_close(after, before.unflatten(0, (count, -1)).mean(1))
    # what is repeated or averaged is read as often as before: equal heads give the donor's output
    total = ours.o.weight.unflatten(1, (heads, 8)).sum(1)
    torch.testing.assert_close(total, old.o.weight.unflatten(1, (4, 8)).sum(1))


def test_a_norm_of_queries_and_keys_begins_with_their_size() -> None:
    """Scores depend on lengths, which the norm takes away, so that it starts changed."""
    donor: Any = randomize(build(mixed(**GROUPED)))
    with torch.no_grad():
        for block in donor.blocks:
            block.mixer.q.weight.mul_(3.0)
    for norm in ({"kind": "rms"}, {"kind": "rms", "unit_offset": True}):
        model, ledger = filled(donor, GROUPED | {"qk_norm": norm})
        mixer, offset = model.blocks[1].mixer, float("unit_offset" in norm)
        trace = [Tracer(donor, Inputs({"tokens": row}, (), ids=row)).run() for row in ROWS]
        x = torch.cat([each["blocks.1.mixer.in"][0] for each in trace])
        squares = (x @ donor.blocks[1].mixer.q.weight.T).square().mean()
        torch.testing.assert_close(mixer.q_norm.weight + offset, squares.sqrt().expand(8))
        assert ledger.start is Start.CHANGED and "qk_norm differs" in str(ledger.starts)


def test_a_norm_of_queries_and_keys_is_nearer_with_their_size(shared: Path) -> None:
    """Of a trained model, whose scores are far from those of gains of 1."""
    lm: Any = archetype.load(shared / "stories260K")
    text = (shared / "stories260K" / "expected_greedy.txt").read_text()
    spec = assign(lm.spec, ["layers[*].mixer.qk_norm={kind: rms}"])
    rows = rows_of(lm, spec, text)
    starts = [
        compare(lm.model, fill(lm.model, spec, cuts)[0], rows, range(5))  # type: ignore[arg-type]
        for cuts in (Cuts(moments=moments_of(lm.model, rows)), Cuts())
    ]
    assert starts[0].divergence < 0.3 * starts[1].divergence


def test_a_sink_that_starts_equal_would_not_learn() -> None:
    """A weight of zero has no gradient, so that a sink begins with the weight of an average score."""
    donor, model, ledger, proof = transplanted(GROUPED, GROUPED | {"sinks": True})
    assert ledger.start is proof.start is Start.CHANGED
    sinks = model.blocks[1].mixer.sinks
    assert not sinks.any()

    def gradient() -> Tensor:
        model.zero_grad()
        model(ROWS[0]).logits.square().sum().backward()
        return sinks.grad

    assert gradient().abs().min() > 0
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.sinks.fill_(-math.inf)
    assert compare(donor, model, ROWS, [0, 1]).start <= Start.ROUNDED
    assert not gradient().any()


def test_an_index_begins_with_the_keys_of_attention_if_asked_for() -> None:
    small = GROUPED | {"index": BLOCKS | {"top_blocks": 2}}
    donor, model, ledger, _ = transplanted(GROUPED, small, choices={"index": "keys"})
    old, index = donor.blocks[0].mixer, model.blocks[0].mixer.index
    torch.testing.assert_close(index.k.weight, old.k.weight.unflatten(0, (2, 8)).mean(0))
    torch.testing.assert_close(index.q.weight, old.q.weight.unflatten(0, (2, 2, 8)).mean(1).flatten(0, 1))
    assert ledger.tensors["blocks.0.mixer.index.k.weight"].how == "merged"
    assert transplanted(GROUPED, small)[2].tensors["blocks.0.mixer.index.k.weight"].how == "new"
