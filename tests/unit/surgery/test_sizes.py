"""Changes of size that start equal: measured in two types, and with a control each that must not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype.models.build import build
from archetype.models.spec import ModelSpec
from archetype.nn.ledger import Ledger, Start
from archetype.nn.transfer import Cuts
from archetype.spec.edit import assign
from archetype.surgery.layers import origins
from archetype.surgery.operation import fill
from archetype.surgery.proof import Proof, compare
from tests.helpers.specs import ATTENTION, GATED, attending, block, decoder, experts
from tests.helpers.transplants import check_said
from tests.helpers.weights import randomize

ROWS = [torch.randint(31, (1, 20), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
EPS = 1e-5 * 16 / 24  # of the norms of a model that grows from 16 to 24 features
LARGEST = {torch.float32: 1e-4, torch.float64: 1e-12}  # difference that is rounding
ROTARY = {"kind": "rotary"}
Model = Any


@dataclass
class Change:
    """A transplant that starts equal, and what must change its start.

    Attributes:
        control: a similar transplant that changes the output, as (old, changes, prepare); or the name of a tensor and
            the entries of it that the transplant set, which are redrawn.
        prepare: sets tensors of the donor to what the change needs.
        counts: what becomes of some tensors, by name.
    """

    old: ModelSpec
    changes: Sequence[str]
    control: tuple[str, Any] | tuple[ModelSpec, Sequence[str], Callable[[Model], None] | None]
    start: Start = Start.ROUNDED
    prepare: Callable[[Model], None] | None = None
    layers: Sequence[int] | None = None
    tensors: dict[str, str] = field(default_factory=dict)


def transplanted(
    old: ModelSpec, changes: Sequence[str], prepare: Callable[[Model], None] | None, dtype: torch.dtype, cuts: Cuts
) -> tuple[Model, Model, Ledger]:
    donor = randomize(build(old, dtype=dtype))
    if prepare is not None:
        with torch.no_grad():
            prepare(donor)
    model, ledger = fill(donor, assign(old, list(changes)), cuts)
    return donor, model, ledger


def proof(donor: Model, model: Model, layers: Sequence[int] | None = None) -> Proof:
    return compare(donor, model, ROWS, origins(donor.spec.stacks[0], model.spec.stacks[0], layers))


def same_heads(model: Model) -> None:
    """Make the key heads of each group equal."""
    for layer in model.blocks:
        for tensor in (layer.mixer.k.weight, layer.mixer.v.weight):
            tensor.copy_(tensor.view(2, 2, 4, -1)[:, :1].expand(2, 2, 4, tensor.shape[1]).reshape(tensor.shape))


def same_layers(model: Model) -> None:
    model.blocks[1].load_state_dict(model.blocks[0].state_dict())


def first_is_silent(model: Model) -> None:
    same_layers(model)
    model.blocks[0].mixer.o.weight.zero_()
    model.blocks[0].feedforward.down.weight.zero_()


def tied_table(model: Model) -> None:
    model.lm_head.weight.copy_(model.embedding.token.weight)


def into_experts(
    expert: str = "{kind: gated, d_ff: 44, activation: silu}",
    router: str = "{kind: softmax, renormalize: true}",
    count: int = 4,
    chosen: int = 2,
    others: str = "",
) -> str:
    """The change of a network into experts."""
    sizes = f"num_experts: {count}, experts_per_token: {chosen}"
    return f"layers[*].feedforward={{kind: experts, {sizes}, router: {router}, expert: {expert}{others}}}"


OF_REST = "{kind: gated, d_ff: 32, activation: silu}"
UPCYCLED = [into_experts()]
SHARED = "{kind: gated, d_ff: 12, activation: silu}"
WEIGHTLESS = "{kind: pre_norm, norm: {kind: rms, weight: false}}"
LAYERED = {"kind": "pre_norm", "norm": {"kind": "layer"}}
LOOPED = decoder(block(), block() | {"weights_of": 0})
READER = "layers[1].mixer.keys_from=0"
WIDER = [
    "d_model=24",
    "layers[*].mixer.head_dim=4",
    f"layers[*].wiring.norm.eps={EPS}",
    f"final_norm.eps={EPS}",
]


def mlp(activation: str) -> dict[str, Any]:
    return {"kind": "mlp", "d_ff": 44, "activation": activation, "bias": True}


def ways(**wiring: Any) -> ModelSpec:
    return decoder(*[block(wiring=wiring)] * 2)


def wide(**norm: Any) -> ModelSpec:
    """A decoder whose heads do not follow its width."""
    wiring = {"kind": "pre_norm", "norm": {"kind": "rms", **norm}}
    return decoder(*[block(mixer=ATTENTION | {"head_dim": 4}, wiring=wiring)] * 2)


CHANGES: dict[str, Change] = {
    "key heads repeated": Change(
        attending(bias=True), ["layers[*].mixer.num_kv_heads=4"], ("blocks.0.mixer.k.weight", slice(4, 8)),
        tensors={"blocks.0.mixer.k.weight": "copied", "blocks.0.mixer.q.weight": "kept"},
    ),
    "key heads merged that are equal": Change(
        attending(num_kv_heads=4), ["layers[*].mixer.num_kv_heads=2"],
        (attending(num_kv_heads=4), ["layers[*].mixer.num_kv_heads=2"], None), prepare=same_heads,
        tensors={"blocks.0.mixer.k.weight": "merged"},
    ),
    "query heads in each group": Change(
        attending(head_dim=4, sinks=True, gate={}), ["layers[*].mixer.num_heads=6"],
        ("blocks.0.mixer.o.weight", (slice(None), slice(8, 12))),
        tensors={"blocks.0.mixer.q.weight": "grown", "blocks.0.mixer.sinks": "grown"},
    ),
    "groups of heads": Change(
        attending(head_dim=4, position=ROTARY, qk_norm={"kind": "rms"}),
        ["layers[*].mixer.num_heads=6", "layers[*].mixer.num_kv_heads=3"],
        ("blocks.1.mixer.o.weight", (slice(None), slice(16, 24))),
    ),
    "wider heads": Change(
        attending(bias=True), ["layers[*].mixer.head_dim=6", "layers[*].mixer.scale=0.5"],
        (attending(bias=True), ["layers[*].mixer.head_dim=6"], None),
    ),
    "wider heads, rotated in part": Change(
        attending(position=ROTARY),
        ["layers[*].mixer.head_dim=6", "layers[*].mixer.scale=0.5", "layers[*].mixer.position.dim=4"],
        (attending(position=ROTARY), ["layers[*].mixer.head_dim=6", "layers[*].mixer.scale=0.5"], None),
    ),
    "wider values": Change(
        attending(), ["layers[*].mixer.v_head_dim=7"],
        (attending(value_norm={"kind": "rms"}), ["layers[*].mixer.v_head_dim=7"], None),
    ),
    "twice as many layers": Change(
        attending(bias=True), ["num_layers=4"], ("blocks.3.mixer.o.weight", slice(None)), Start.SAME,
        tensors={"blocks.1.mixer.o.weight": "new", "blocks.1.mixer.q.weight": "copied"},
    ),
    "more layers, some of them": Change(
        attending(), ["num_layers=3"], ("blocks.1.feedforward.down.weight", slice(None)), Start.SAME, layers=[0, 0, 1],
    ),
    "more layers with sandwich norms": Change(
        ways(kind="sandwich", norm={"kind": "layer"}), ["num_layers=4"], ("blocks.1.mixer_post_norm.bias", slice(None)),
        Start.SAME, tensors={"blocks.1.mixer_post_norm.weight": "new", "blocks.1.mixer.o.weight": "copied"},
    ),
    "more layers with norms of outputs": Change(
        ways(kind="output_norm", norm={"kind": "rms", "unit_offset": True}), ["num_layers=4"],
        (ways(kind="post_norm", norm={"kind": "rms"}), ["num_layers=4"], None), Start.SAME,
    ),
    "more layers with scales of outputs": Change(
        decoder(block(output_scale=True), final_norm={"kind": "none"}), ["num_layers=2"],
        ("blocks.1.output_scale", slice(None)), Start.SAME,
    ),
    "more layers with experts": Change(
        decoder(block(feedforward=experts(shared=GATED))), ["num_layers=2"],
        (decoder(block(feedforward=experts(idle=2))), ["num_layers=2"], None), Start.SAME,
    ),
    "wider feed-forward": Change(
        attending(), ["layers[*].feedforward.d_ff=60"],
        ("blocks.0.feedforward.down.weight", (slice(None), slice(44, None))),
        tensors={"blocks.0.feedforward.down.weight": "grown", "blocks.0.feedforward.up.weight": "grown"},
    ),
    "wider experts": Change(
        decoder(block(feedforward=experts(shared=GATED))),
        ["layers[*].feedforward.expert.d_ff=60", "layers[*].feedforward.shared.d_ff=50"],
        ("blocks.0.feedforward.experts.down", (slice(None), slice(None), slice(44, None))),
    ),
    "wider vectors": Change(
        attending(head_dim=4, bias=True), WIDER, (wide(eps=0.1), WIDER[:2], None),
        tensors={"blocks.0.mixer_norm.weight": "grown", "embedding.token.weight": "grown"},
    ),
    "wider vectors, tied": Change(
        attending(head_dim=4).replace(head={"kind": "language_model", "tied": True}), WIDER,
        ("embedding.token.weight", (slice(None), slice(16, None))),
    ),
    "wider vectors, learned positions and experts": Change(
        decoder(block(mixer=ATTENTION | {"head_dim": 4}, feedforward=experts(shared=GATED, shared_gate=True)),
                embedding={"position": {"kind": "learned", "offset": 2}, "num_token_types": 2}), WIDER,
        ("embedding.position.weight", (slice(None), slice(16, None))),
    ),
    "wider vectors with norms of length": Change(
        decoder(block(mixer=ATTENTION | {"head_dim": 4}, wiring={"kind": "pre_norm", "norm": {"kind": "l2"}}),
                final_norm={"kind": "l2"}), WIDER[:2],
        (decoder(block(mixer=ATTENTION | {"head_dim": 4}, wiring=LAYERED)), WIDER[:2], None),
    ),
    "a network in each expert": Change(
        attending(), UPCYCLED,
        (attending(), [into_experts(router="{kind: softmax}")], None),
        tensors={"blocks.0.feedforward.experts.up": "copied", "blocks.0.feedforward.router.weight": "new"},
    ),
    **{
        f"a network of {activation} in each expert": Change(
            decoder(block(feedforward=mlp(activation))),
            [into_experts(f"{{kind: mlp, d_ff: 44, activation: {activation}, bias: true}}",
                          "{kind: sigmoid, renormalize: true}")],
            ("blocks.0.feedforward.experts.down", slice(1)),
        )
        for activation in ("gelu_tanh", "relu2")
    },
    "a network in experts whose weights are scaled": Change(
        decoder(block()),
        [into_experts(router="{kind: softmax, scale: 2.5}", count=3, chosen=3)],
        (decoder(block()), [into_experts(router="{kind: softmax, scale: 2.5}", count=3)], None),
    ),
    "a shared expert split off": Change(
        attending(), [into_experts(OF_REST, others=f", shared: {SHARED}")],
        (attending(), [into_experts(others=f", shared: {SHARED}")], None),
        tensors={"blocks.0.feedforward.shared.up.weight": "cut", "blocks.0.feedforward.experts.up": "copied"},
    ),
    "a shared expert with a gate": Change(
        decoder(block(feedforward=GATED | {"bias": True})),
        [into_experts(f"{OF_REST[:-1]}, bias: true}}",
                      others=f", shared_gate: true, shared: {SHARED[:-1]}, bias: true}}")],
        ("blocks.0.feedforward.shared_gate.weight", slice(None)),
    ),
    "each expert twice": Change(
        decoder(block(feedforward=experts())),
        ["layers[*].feedforward.num_experts=12", "layers[*].feedforward.experts_per_token=4"],
        (decoder(block(feedforward=experts())), ["layers[*].feedforward.num_experts=12"], None),
    ),
    "an own head": Change(
        attending().replace(head={"kind": "language_model", "tied": True}), ["head.tied=false"],
        ("lm_head.weight", slice(None)), Start.SAME, tensors={"lm_head.weight": "copied"},
    ),
    "an equal head tied": Change(
        attending(), ["head.tied=true"], (attending(), ["head.tied=true"], None), Start.SAME, tied_table,
    ),
    "a larger vocabulary": Change(
        attending().replace(head={"kind": "language_model", "bias": True}), ["vocab_size=40"],
        ("lm_head.weight", slice(0, 5)), tensors={"embedding.token.weight": "grown", "lm_head.bias": "grown"},
    ),
    "keys of another layer in a layer that adds nothing": Change(
        attending(position=ROTARY), ["num_layers=4", READER, "layers[3].mixer.keys_from=-1"],
        (attending(position=ROTARY), [READER], None), Start.SAME,
    ),
    "keys of another layer that are equal": Change(
        attending(qk_norm={"kind": "rms"}), [READER], (attending(qk_norm={"kind": "rms"}), [READER], same_layers),
        Start.SAME, first_is_silent,
    ),
    "a loop of equal layers": Change(
        attending(), ["layers[1].weights_of=0"], (attending(), ["layers[1].weights_of=0"], None), Start.SAME,
        same_layers,
    ),
    "a loop unrolled": Change(
        LOOPED, ["layers[1].weights_of=null"], ("blocks.1.mixer.o.weight", slice(None)), Start.SAME,
    ),
    "further tokens": Change(
        attending(), ["further_tokens={count: 2}"], ("final_norm.weight", slice(None)), Start.SAME,
        tensors={"further_tokens.projections.0.weight": "new"},
    ),
    "gains folded": Change(
        attending(), [f"layers[*].wiring={WEIGHTLESS}", "final_norm.weight=false"],
        (ways(kind="output_norm", norm={"kind": "rms"}), ["layers[*].wiring.norm.weight=false"], None),
        tensors={"blocks.0.mixer.q.weight": "merged", "lm_head.weight": "merged", "blocks.0.mixer.o.weight": "kept"},
    ),
    "gains folded into experts and heads that are copied": Change(
        decoder(block(wiring={"kind": "pre_norm", "norm": {"kind": "rms", "unit_offset": True}}),
                head={"kind": "language_model", "tied": True}),
        [f"layers[*].wiring={WEIGHTLESS}", "final_norm.weight=false", "head.tied=false", *UPCYCLED,
         "layers[*].mixer.num_kv_heads=4"],
        (attending().replace(head={"kind": "language_model", "tied": True}), ["final_norm.weight=false"], None),
    ),
    "two norms folded and then one": Change(
        ways(kind="parallel", norm={"kind": "rms"}),
        ["layers[*].wiring={kind: parallel, shared_norm: true, norm: {kind: rms, weight: false}}"],
        (ways(kind="parallel", norm={"kind": "rms"}),
         ["layers[*].wiring={kind: parallel, shared_norm: true, norm: {kind: rms}}"], None),
    ),
    "gains of one": Change(
        ways(kind="pre_norm", norm={"kind": "rms", "weight": False}),
        ["layers[*].wiring.norm={kind: rms, unit_offset: true}"],
        ("blocks.0.mixer_norm.weight", slice(None)), tensors={"blocks.0.mixer_norm.weight": "new"},
    ),
    "gains stored as 1 + weight": Change(
        ways(kind="pre_norm", norm={"kind": "layer"}), ["layers[*].wiring.norm={kind: layer, unit_offset: true}"],
        (ways(kind="pre_norm", norm={"kind": "layer"}), ["layers[*].wiring.norm={kind: layer, bias: false}"], None),
    ),
    "one norm of two contents becomes two": Change(
        ways(kind="parallel", norm={"kind": "layer"}, shared_norm=True), ["layers[*].wiring.shared_norm=false"],
        ("blocks.0.feedforward_norm.weight", slice(None)), Start.SAME,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_starts_equal(name: str, dtype: torch.dtype) -> None:
    change = CHANGES[name]
    cuts = Cuts(change.layers)
    donor, model, ledger = transplanted(change.old, change.changes, change.prepare, dtype, cuts)
    measured = proof(donor, model, change.layers)
    assert ledger.start <= change.start, ledger.starts
    assert measured.start <= ledger.start and measured.difference < LARGEST[dtype]
    check_said(donor, model, ledger)
    assert {tensor: ledger.tensors[tensor].how for tensor in change.tensors} == change.tensors


@pytest.mark.parametrize("name", CHANGES)
def test_the_measure_sees_a_wrong_start(name: str) -> None:
    change = CHANGES[name]
    if len(change.control) == 3:
        old, changes, prepare = change.control
        donor, model, ledger = transplanted(old, changes, prepare, torch.float32, Cuts())
        assert ledger.start is Start.CHANGED
        assert any(why for start, why in ledger.starts.values() if start is Start.CHANGED)
    else:
        tensor, entries = change.control
        donor, model, _ = transplanted(change.old, change.changes, change.prepare, torch.float32, Cuts(change.layers))
        redraw(model.state_dict()[tensor][entries])
    assert proof(donor, model, change.layers).start is Start.CHANGED


def redraw(x: Tensor) -> None:
    x.normal_(generator=torch.Generator().manual_seed(3))
