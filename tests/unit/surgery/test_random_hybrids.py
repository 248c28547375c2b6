"""Random changes of models with every kind of mixer, of encoders, pairs and pictures: what is said of them is true."""

import json
import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from archetype.nn.ledger import Start
from archetype.nn.transfer import Cuts
from archetype.spec import parse
from archetype.spec.edit import assign
from archetype.surgery.operation import fill
from tests.helpers.examples import every
from tests.helpers.inputs import example_inputs
from tests.helpers.passes import logits_or_hidden
from tests.helpers.specs import LATENT, PICTURE, RWKV7, decoder, encoder, pair
from tests.helpers.transplants import check_said
from tests.helpers.weights import distance, randomize
from tests.unit.surgery.test_random_changes import HEAD_NORMS, NORMS, either, mixture, network

ROTARY = {"kind": "rotary"}
EXACT = 1e-9  # of the largest output, in float64


def mixer(draw: random.Random) -> dict[str, Any]:
    bias = either(draw, False, True)
    heads = draw.choice([2, 4])
    of_kinds: list[dict[str, Any]] = [
        {"kind": "attention", "num_heads": heads, "num_kv_heads": draw.choice([1, heads]), "bias": bias,
         "head_dim": draw.choice([4, 6]), "position": either(draw, ROTARY, {"kind": "alibi"}, {"kind": "none"}),
         "qk_norm": either(draw, {"kind": "none"}, *HEAD_NORMS), "value_scale": either(draw, 1.0, 0.5),
         "pattern": either(draw, {"kind": "full"}, {"kind": "window", "size": 5}, {"kind": "chunked", "size": 4}),
         "gate": either(draw, None, {"bias": True}), "clip_qkv": either(draw, None, 1.0)},
        {"kind": "mamba", "state_size": 3, "bias": bias, "norm": either(draw, {"kind": "none"}, {"kind": "rms"})},
        {"kind": "mamba2", "num_heads": 4, "head_dim": 6, "state_size": 5, "num_groups": draw.choice([1, 2]),
         "norm": draw.choice(["after_gate", "before_gate", "none"]), "bias": bias},
        LATENT | {"norm": either(draw, {"kind": "rms"}, {"kind": "none"}), "bias": bias,
                  "query": either(draw, {"kind": "direct"}, {"kind": "low_rank", "rank": 7}),
                  "gate": either(draw, None, {}, {"bias": True, "per": "head"}), "sinks": either(draw, False, True)},
        {"kind": "gated_delta_net", "num_heads": 4, "num_key_heads": draw.choice([2, 4]), "head_dim": 5,
         "v_head_dim": 6, "decay": draw.choice(["head", "channel", "none"])},
        {"kind": "linear_attention", "num_heads": heads, "feature_map": draw.choice(["none", "elu"]), "head_dim": 4,
         "norm": either(draw, {"kind": "rms"}, {"kind": "none"}), "gate": draw.choice(["none", "silu"]),
         "decay": draw.choice(["none", "per_head", "per_channel"]), "conv_kernel": either(draw, None, 3)},
        {"kind": "rg_lru", "num_heads": 2, "width": draw.choice([16, 24])},
        {"kind": "mlstm", "num_heads": 2, "head_dim": 5, "bias": bias},
        {"kind": "short_convolution", "bias": bias}, {"kind": "gru"}, RWKV7, {"kind": "rwkv4"},
        {"kind": "mamba3", "num_heads": 4, "head_dim": 6, "state_size": 8, "num_groups": 2},
    ]  # fmt: skip
    return draw.choice(of_kinds)


def block(draw: random.Random, contents: list[dict[str, Any]], wiring: dict[str, Any]) -> dict[str, Any]:
    one = draw.choice(contents)
    if draw.random() < 0.2:
        parts = [one, draw.choice(contents)]
        scales = draw.choice([None, "learned", [1.0, 0.5]])
        one = {"kind": "together", "parts": parts} | ({} if scales is None else {"scales": scales})
    feedforward = mixture(draw) if draw.random() < 0.3 else network(draw)
    return {"wiring": wiring, "mixer": one, "feedforward": feedforward, "output_scale": draw.random() < 0.1}


def donors(draw: random.Random) -> ModelSpec:
    norm = draw.choice(NORMS)
    wiring = {"kind": draw.choice(["pre_norm", "pre_norm", "sandwich", "output_norm", "parallel"]), "norm": norm}
    ends = {"final_norm": draw.choice(NORMS)}
    contents = [mixer(draw), mixer(draw)]
    match draw.choice(["decoder", "decoder", "decoder", "encoder", "pair", "picture"]):
        case "decoder":
            layers = [block(draw, contents, wiring) for _ in range(draw.choice([2, 3, 4]))]
            if draw.random() < 0.2:
                layers[-1] = layers[0] | {"weights_of": 0}
            return decoder(*layers, **ends, head={"tied": draw.random() < 0.5, "bias": draw.random() < 0.3})
        case "encoder":
            heads: list[Any] = [
                {"kind": "masked_language_model", "tied": draw.random() < 0.5, "norm": {"kind": "layer"}},
                {"kind": "masked_logits", "tied": draw.random() < 0.5, "bias": True, "shifted": draw.random() < 0.3},
                {"kind": "classification", "num_classes": 3}, {"kind": "token_classification", "num_classes": 4},
                {"kind": "none"},
            ]  # fmt: skip
            layers = [block(draw, contents, wiring) for _ in range(2)]
            return encoder(layers=layers, head=draw.choice(heads), pooler=draw.random() < 0.3, **ends)
        case "pair":
            sides = {
                "encoder": {"layers": [block(draw, contents, wiring) for _ in range(2)]} | ends,
                "decoder": {"layers": [block(draw, contents, wiring) | {"cross_attention": {
                    "kind": "attention", "num_heads": 2, "head_dim": 4}} for _ in range(2)]} | ends,
            }  # fmt: skip
            two = draw.random() < 0.5
            tables = {"embedding": {"shared": False}, "source_vocab_size": 17} if two else {}
            return pair(**sides, **tables)
        case _:
            layers = [block(draw, contents, wiring)]
            head = either(draw, {"kind": "classification", "num_classes": 5}, {"kind": "none"})
            return parse(PICTURE | {"layers": layers, "head": head, "pooler": draw.random() < 0.3} | ends)


def changes(draw: random.Random, spec: ModelSpec) -> list[str]:
    side = draw.choice(["encoder.", "decoder."]) if len(spec.stacks) > 1 else ""
    layers = spec.stacks[side == "decoder."].layers if side else spec.stacks[0].layers
    index = draw.randrange(len(layers))
    part = f"{side}layers[{draw.choice(['*', str(index)])}]"
    old, other = layers[index].mixer, mixer(draw)
    beside = f"{json.dumps(old.dump())}, {json.dumps(other)}"
    inside = draw.choice(["mixer", "mixer", "mixer.parts[0]"])
    sizes = [
        "num_heads=2", "num_heads=4", "num_heads=6", "num_heads=8", "num_kv_heads=2", "num_kv_heads=4", "head_dim=4",
        "head_dim=8", "v_head_dim=4", "v_head_dim=8", "scale=0.5", "state_size=4", "state_size=8", "expand=3",
        "conv_kernel=6", "conv_kernel=2", "num_groups=2", "num_groups=4", "dt_rank=4", "width=32", "kv_lora_rank=12",
        "kv_lora_rank=4", "qk_nope_head_dim=8", "qk_rope_head_dim=6", "query={kind: low_rank, rank: 9}", "bias=true",
        "num_key_heads=4", "decay=channel", "gate={}", "gate={bias: true}", "gate=null", "gate=sigmoid", "sinks=true",
        "value_scale=0.25", "value_scale=1.0", "clip_qkv=0.5", "pattern={kind: window, size: 24}",
        "pattern={kind: full}",
        "position={kind: rotary, theta: 500.0}", "position={kind: none}", "qk_norm={kind: rms}", "norm={kind: rms}",
        "norm={kind: none}", "decay_rank=4", "gate_rank=5", "value_rank=4", "dropout=0.1", "chunk_size=4",
        "value_embedding={}",
        "parts[1]={kind: gru}", "scales=learned", "scales=[1.0, 0.0]", "keys_from=0", "keys_as_values=true",
        "index={kind: lightning, num_heads: 2, head_dim: 4, top_k: 24}",
    ]  # fmt: skip
    known = [
        *[f"{part}.{inside}.{size}" for size in draw.sample(sizes, 12)], f"{part}.mixer={json.dumps(other)}",
        f"{part}.mixer={{kind: together, parts: [{beside}]}}",
        f"{part}.mixer={{kind: together, parts: [{beside}], scales: learned}}",
        f"{part}.mixer={{kind: together, parts: [{json.dumps(other)}, {json.dumps(old.dump())}], scales: [0.0, 1.0]}}",
        f"{part}.wiring.norm={json.dumps(draw.choice(NORMS))}", f"{part}.wiring.norm.weight=false",
        f"{part}.wiring.norm.unit_offset=true", f"{side}final_norm={json.dumps(draw.choice(NORMS))}",
        f"{side}final_norm.weight=false", f"{part}.output_scale=true", f"{part}.feedforward.d_ff=24",
        f"{part}.feedforward.d_ff=10", f"{part}.feedforward.num_experts={draw.choice([2, 4, 8])}",
        f"{part}.feedforward.shared={{kind: gated, d_ff: 12, activation: silu}}", f"{part}.feedforward.bias=true",
        f"{part}.feedforward.experts_per_token={draw.choice([1, 2, 4])}",
        f"{part}.feedforward={json.dumps(network(draw))}",
        f"{part}.feedforward={json.dumps(mixture(draw))}", f"{part}.cross_attention.num_heads=4",
        f"{part}.weights_of=0",
        f"{part}.weights_of=null", f"{side}num_layers={draw.choice([1, 2, 4, 6])}", "d_model=24", "d_model=12",
        "vocab_size=40", "source_vocab_size=20", "head.tied=true", "head.tied=false", "head.bias=false",
        "head.num_classes=7", "head.num_classes=2", "context_length=30", "image_size=16", "embedding.num_token_types=3",
        "head.transform={}", "embedding.shared=false", "pooler=true", "pooler=false", "embedding.norm={kind: rms}",
        "name=other",
    ]  # fmt: skip
    return draw.sample(known, draw.choice([1, 1, 2, 3]))


def drawn(seed: int) -> tuple[ModelSpec, list[str], ModelSpec]:
    draw = random.Random(seed)
    while True:
        try:
            old = donors(draw)
        except SpecError:
            continue
        for _ in range(20):
            assignments = changes(draw, old)
            try:
                return old, assignments, assign(old, assignments)
            except SpecError:
                continue


@torch.no_grad()
def outputs(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Logits of the classes and tokens that both models have."""
    arguments = {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in inputs.items()}
    return logits_or_hidden(model(**arguments))


@cache
def check(seed: int) -> Start:
    old, assignments, new = drawn(seed)
    donor = randomize(build(old, dtype=torch.float64))
    model, ledger = fill(donor, new, Cuts())
    check_said(donor, model, ledger)
    if old.image_shape != new.image_shape:
        return Start.CHANGED
    inputs = example_inputs(old)
    before, after = (outputs(each, inputs) for each in (donor, model))
    width = min(before.shape[-1], after.shape[-1])
    if before.shape[:-1] != after.shape[:-1] or (width != before.shape[-1] and not old.head.predicts_next):
        assert ledger.start is Start.CHANGED, (assignments, old.dump())
        return ledger.start
    before, after = before[..., :width], after[..., :width]
    far = distance(after, before)
    measured = Start.SAME if torch.equal(before, after) else Start.ROUNDED if far < EXACT else Start.CHANGED
    assert measured <= ledger.start, (assignments, far, old.dump(), ledger.starts)
    return ledger.start


@pytest.mark.parametrize("seed", every(200, range(3000)))
def test_a_start_is_as_good_as_promised(seed: int) -> None:
    check(seed)
