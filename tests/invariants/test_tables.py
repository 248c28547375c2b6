"""Tables that are read by token id: tables of zeros, or of one expert, are the model without; decoding reads each
step's own tokens; and what reads vectors alone refuses them.
"""

from typing import Any

import pytest
import torch
from torch import nn

from archetype import spec
from archetype.errors import CheckpointError, SpecError
from archetype.estimate.report import cost_report
from archetype.estimate.roofline import weights_read
from archetype.families.registry import family_for
from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from archetype.training.block_execution import recompute_blocks
from archetype.training.parallel.layout import Parallel
from archetype.training.recipe import Recipe
from archetype.weights.packed import PackedMatrix
from archetype.weights.packing import pack_model
from tests.helpers.combinations import GATED, combined, text
from tests.helpers.inspected import inputs, inspection
from tests.helpers.kernels import kernels
from tests.helpers.passes import forward_step
from tests.helpers.specs import DECODERS, PICTURE, READER, attending, block, decoder, experts, pair
from tests.helpers.strategies import CONTEXT, VOCABULARY
from tests.helpers.weights import distance, randomize

BASE = combined({"position": "rotary"})
BLOCK = BASE.layers[0]
GATE = spec.ValueEmbedding(gate=spec.ValueGate(features=3))
LAMBDA = spec.ValueEmbedding()
TABLES = ("value table", "value table, gated", "hash", "hash, weighed", "per-layer inputs")


def valued(embedding: spec.ValueEmbedding | None, **changes: Any) -> spec.Decoder:
    """The base with a table of values."""
    mixer = BLOCK.mixer.replace(value_embedding=embedding, **changes)
    return BASE.replace(layers=(BLOCK.replace(mixer=mixer), BLOCK))


def hashed(num_experts: int, chosen: int, **router: Any) -> spec.Decoder:
    """The base with experts that token ids choose."""
    part = spec.MixtureOfExperts(
        num_experts=num_experts, experts_per_token=chosen, expert=GATED, router=spec.HashRouter(**router)
    )
    return BASE.replace(layers=(BLOCK.replace(feedforward=part),))


# identities


def are_one(first: nn.Module, second: nn.Module) -> None:
    """Logits of whole texts, and of texts in pieces with a state, equal to the bit."""
    tokens = text(2, CONTEXT)
    with torch.no_grad():
        assert torch.equal(first(tokens).logits, second(tokens).logits)
        states = [model.new_state(2) for model in (first, second)]
        for piece in tokens.split([5, 1, 1, 9], dim=1):
            (one, states[0]), (other, states[1]) = (
                forward_step(model, piece, state) for model, state in zip((first, second), states, strict=True)
            )
            assert torch.equal(one, other)


@pytest.mark.parametrize("embedding", [GATE, LAMBDA])
def test_a_value_table_of_zeros_is_none(embedding: spec.ValueEmbedding) -> None:
    first, second = randomize(build(valued(embedding))).eval(), build(valued(None)).eval()
    first.blocks[0].mixer.value_embedding.weight.data.zero_()
    second.load_state_dict({name: t for name, t in first.state_dict().items() if "value_" not in name})
    are_one(first, second)


def test_a_hash_of_one_expert_is_dense() -> None:
    first, second = randomize(build(hashed(1, 1))).eval(), build(BASE).eval()
    held = {}
    for name, tensor in first.state_dict().items():
        if ".experts." in name:
            held[f"{name.replace('.experts.', '.')}.weight"] = tensor[0]
        elif "router" not in name:
            held[name] = tensor
    second.load_state_dict(held)
    are_one(first, second)


def test_layers_whose_own_vectors_are_zero_are_left_out() -> None:
    """A table and a projection of zeros: a reading layer adds the norm of nothing."""
    reader = spec.Block.parse(READER)
    layers, embedding = (BLOCK, reader, BLOCK, reader), spec.Embedding(per_layer=spec.PerLayerEmbedding(features=6))
    first = randomize(build(BASE.replace(layers=layers, embedding=embedding))).eval()
    second = build(BASE.replace(layers=(BLOCK, BLOCK))).eval()
    for table in (first.embedding.per_layer.token, first.embedding.per_layer.projection):
        table.weight.data.zero_()
    held = {name.replace("blocks.2.", "blocks.1."): t for name, t in first.state_dict().items()
            if not name.startswith(("blocks.1.", "blocks.3.", "embedding.per_layer"))}  # fmt: skip
    second.load_state_dict(held)
    are_one(first, second)


def test_each_reading_layer_has_a_share_of_the_table() -> None:
    """Also layers that share their weights; what one layer gets changes that layer alone."""
    reader = spec.Block.parse(READER)
    layers = (BLOCK, reader, BLOCK.replace(weights_of=0), reader.replace(weights_of=1))
    embedding = spec.Embedding(per_layer=spec.PerLayerEmbedding(features=6))
    model = randomize(build(BASE.replace(layers=layers, embedding=embedding))).eval()
    assert model.embedding.per_layer.token.weight.shape == (VOCABULARY, 2 * 6)
    tokens, seen = text(1, CONTEXT), []
    model.blocks[1].register_forward_hook(lambda module, inputs, output: seen.append(output - inputs[0]))
    with torch.no_grad():
        model(tokens)
        model.embedding.per_layer.token.weight[:, 6:] += 1
        model(tokens)
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[1], seen[3])


# what is computed, by hand


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_values_are_those_of_nanochat(kv_heads: int) -> None:
    """V + 2 sigmoid(x[..., :n] W) * row of each head, then attention as it is written there."""
    heads, size, width = 4, 6, 24
    part = spec.Attention(num_heads=heads, num_kv_heads=kv_heads, value_embedding=spec.ValueEmbedding(
        gate=spec.ValueGate(features=5)))  # fmt: skip
    ours = randomize(Attention(part, Place(width, vocab_size=11)).double()).eval()
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 9, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q = ours.q(x).view(2, 9, heads, size)
    k, v = (projection(x).view(2, 9, kv_heads, size) for projection in (ours.k, ours.v))
    rows = ours.value_embedding.weight[tokens].view(2, 9, kv_heads, size)
    v = v + 2 * torch.sigmoid(x[..., :5] @ ours.value_gate.weight.T)[..., None] * rows
    k, v = (one.repeat_interleave(heads // kv_heads, dim=2) for one in (k, v))
    scores = torch.einsum("bthp,bshp->bhts", q, k) / size**0.5
    weights = scores.masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshp->bthp", weights, v).flatten(2) @ ours.o.weight.T
    with torch.no_grad():
        assert distance(ours(x, ForwardContext.of(tokens)), expected) < 1e-12
        assert distance(ours(x, ForwardContext.of(tokens.roll(1, 1))), expected) > 1e-3  # a wrong id would show


def test_equal_experts_are_those_of_the_id() -> None:
    model = randomize(build(hashed(5, 2, renormalize=True)).double()).eval()
    mixture, tokens = model.blocks[0].feedforward, text(2, CONTEXT)
    x = torch.randn(2, CONTEXT, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    each = [mixture.experts.sorted_by_expert(x.flatten(0, 1), torch.full((2 * CONTEXT, 1), e))[:, 0] for e in range(5)]
    chosen = mixture.router.table[tokens.flatten()]
    expected = torch.stack([each[e][row] for row, pair in enumerate(chosen.tolist()) for e in pair])
    expected = expected.unflatten(0, (-1, 2)).mean(1).view_as(x)
    with torch.no_grad():
        assert distance(mixture(x, ForwardContext.of(tokens)), expected) < 1e-12


def test_a_hash_gives_each_id_different_experts_and_every_expert_its_share() -> None:
    part = spec.MixtureOfExperts(num_experts=8, experts_per_token=3, expert=GATED, router=spec.HashRouter())
    model = build(BASE.replace(vocab_size=4000, layers=(BLOCK.replace(feedforward=part),) * 2))
    one, other = (block.feedforward.router.table for block in model.blocks)
    assert not torch.equal(one, other)
    assert (one.sort(-1).values.diff(dim=-1) > 0).all()
    shares = torch.bincount(one.flatten(), minlength=8) / one.numel()
    assert (shares - 1 / 8).abs().max() < 0.01
    again = build(model.spec)
    assert torch.equal(again.blocks[1].feedforward.router.table, other)


# every way of computing


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_step_reads_the_token_of_its_own_step(name: str) -> None:
    """The steps of a text by a recording are those of whole texts, and those of another text are others."""
    kernels("native")
    model = randomize(build(DECODERS[name])).eval()
    tokens = torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(3))
    step = DecodeStep(model, model.new_state(2, 12))
    logits = torch.stack([step(tokens[:, place : place + 1]).clone() for place in range(12)], dim=1)
    assert step.replay is not None
    with torch.no_grad():
        assert distance(logits, model(tokens).logits) < 1e-5
        assert distance(logits, model((tokens + 1) % 31).logits) > 1e-2


@pytest.mark.parametrize("name", TABLES)
def test_recomputed_blocks_have_the_gradients_of_kept_ones(name: str) -> None:
    gradients = []
    for recomputes in (False, True):
        model = randomize(build(DECODERS[name])).train()
        if recomputes:
            recompute_blocks(model, "blocks")
        model(torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))).logits.square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("name", ["value table, gated", "per-layer inputs"])
def test_tables_are_packed_as_all_matrices_are(name: str) -> None:
    """Of 64 numbers in a row: read from 8 bits they are within a hundredth, also in a recorded step."""
    wide = {"d_model": 64}
    if name == "per-layer inputs":
        reader = READER | {"feedforward": {"kind": "per_layer_input", "features": 32}}
        model_spec = decoder(block(), reader, embedding={"per_layer": {"features": 32}}, **wide)
    else:
        model_spec = DECODERS[name].replace(**wide)
    tokens = torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(3))
    model = randomize(build(model_spec)).eval()
    with torch.no_grad():
        before = model(tokens).logits
        pack_model(model, "int8")
        table = (
            model.embedding.per_layer.token
            if name == "per-layer inputs"
            else model.blocks[0].mixer.value_embedding
        )  # fmt: skip
        assert isinstance(table.weight, PackedMatrix)
        assert distance(model(tokens).logits, before) < 0.05
        step = DecodeStep(model, model.new_state(2, 12))
        logits = torch.stack([step(tokens[:, place : place + 1]).clone() for place in range(12)], dim=1)
        assert distance(logits, model(tokens).logits) < 1e-2


def test_rows_of_tables_are_no_traffic_and_no_flops() -> None:
    """A pass reads the projections and gates, and of tables no more than of the embedding."""
    plain, valued_too = cost_report(attending()), cost_report(DECODERS["value table"])
    assert valued_too.parameters["total"] - plain.parameters["total"] == 2 * (31 * 8 + 1)
    assert valued_too.parameters["embedding"] - plain.parameters["embedding"] == 2 * 31 * 8
    assert valued_too.flops == plain.flops
    assert weights_read(valued_too, 1, "decode") - weights_read(plain, 1, "decode") == 2 * 2  # two scales of bfloat16


def test_an_inspection_shows_the_experts_of_an_id() -> None:
    model = randomize(build(DECODERS["hash"])).eval()
    (routing,) = inspection(model).experts().routings
    tokens = inputs(model).ids
    assert torch.equal(routing.chosen, model.blocks[0].feedforward.router.table[tokens[0]])


# refusals


def refused(place: str, **fields: Any) -> None:
    with pytest.raises(SpecError) as error:
        spec.parse(fields)
    assert str(error.value).startswith(place) and "\n" not in str(error.value), str(error.value)


VALUES = block(mixer={"kind": "attention", "num_heads": 4, "value_embedding": {}})
HASH = block(feedforward=experts(router={"kind": "hash"}))


@pytest.mark.parametrize(
    ("layer", "field"),
    [(VALUES, "mixer.value_embedding"), (HASH, "feedforward.router"), (READER, "feedforward.features")],
)
def test_layers_of_vectors_alone_refuse_tables(layer: dict[str, Any], field: str) -> None:
    side = {"layers": [layer], "final_norm": {"kind": "rms"}}
    plain = {"layers": [block()], "final_norm": {"kind": "rms"}}
    sides = {"global_model": {"d_model": 16} | side, "local_model": {"d_model": 16} | plain}
    refused(f"global_model.layers[0].{field}", kind="megabyte", context_length=16, patch_size=4, **sides)
    refused(f"layers[0].{field}", **PICTURE | {"layers": [layer], "head": {"kind": "none"}})
    text_model = {"kind": "decoder", "vocab_size": 9, "context_length": 8, "d_model": 16} | plain
    refused(f"further_tokens.block.{field}", **text_model, further_tokens={"block": layer})


def test_what_no_layer_reads_and_what_nothing_gives_is_refused() -> None:
    sizes = {"kind": "decoder", "vocab_size": 9, "context_length": 8, "d_model": 16, "final_norm": {"kind": "rms"}}
    refused("embedding.per_layer", **sizes, layers=[block()], embedding={"per_layer": {"features": 6}})
    refused("layers[1].feedforward.features", **sizes, layers=[block(), READER])
    refused(
        "layers[1].feedforward.features", **sizes, layers=[block(), READER], embedding={"per_layer": {"features": 5}}
    )
    refused("embedding.per_layer", **pair().dump() | {"embedding": {"per_layer": {"features": 6}}})
    refused("embedding.per_layer", **PICTURE | {"head": {"kind": "none"}, "embedding": {"per_layer": {"features": 6}}})


def test_what_a_hash_has_decided_cannot_be_said_again() -> None:
    sizes = {"kind": "decoder", "vocab_size": 9, "context_length": 8, "d_model": 16, "final_norm": {"kind": "rms"}}
    groups = {"num_groups": 2, "groups_per_token": 1}
    for field, changes in {
        "feedforward.groups": {"groups": groups}, "feedforward.balance_loss": {"balance_loss": 0.1},
        "feedforward.router.expert_bias": {"router": {"kind": "hash", "expert_bias": True}},
    }.items():  # fmt: skip
        layer = block(feedforward=experts(**{"router": {"kind": "hash"}} | changes))
        refused(f"layers[0].{field}", **sizes, layers=[layer])
    wide = block(mixer={"kind": "attention", "num_heads": 4, "value_embedding": {"gate": {"features": 17}}})
    refused("layers[0].mixer.value_embedding.gate.features", **sizes, layers=[wide])


@pytest.mark.parametrize("name", TABLES)
def test_pipeline_stages_refuse_what_reads_ids(name: str) -> None:
    with pytest.raises(SpecError, match=r"parallel\.pipeline: layers\[\d\]\.\S+ reads token ids"):
        Parallel(pipeline=2).check(DECODERS[name], Recipe())


@pytest.mark.parametrize("name", TABLES)
def test_published_formats_refuse_tables_in_one_line(name: str) -> None:
    with pytest.raises(CheckpointError) as error:
        family_for(DECODERS[name])
    assert "\n" not in str(error.value)
