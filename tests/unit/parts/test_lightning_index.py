"""The lightning index: what it chooses, written out; dense attention where it chooses all; and how it learns."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.cost import total_parameters
from archetype.errors import SpecError
from archetype.estimate.memory import MemoryCost
from archetype.estimate.report import cost_report
from archetype.generate.step import DecodeStep
from archetype.models.causal import CausalModel
from archetype.models.cost import model_cost
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.selection import Choice, IndexedKVCache
from archetype.nn.state import State
from archetype.parts.attention.module import Attention
from archetype.parts.latent_attention.module import LatentAttention
from archetype.parts.lightning_index.module import LightningIndex, best_keys, relevances
from archetype.training.block_execution import recompute_blocks
from tests.helpers.examples import every
from tests.helpers.kernels import kernels
from tests.helpers.passes import forward_step
from tests.helpers.specs import INDEX, LATENT, attending, block, decoder, experts, mixed
from tests.helpers.weights import distance, randomize

D, T, TOP = 16, 14, 5
LOW_RANK = LATENT | {"query": {"kind": "low_rank", "rank": 7}}
MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "position": {"kind": "rotary"}},
    "alibi": {"kind": "attention", "num_heads": 4, "position": {"kind": "alibi"}, "sinks": True, "softcap": 3.0},
    "dynamic": {"kind": "attention", "num_heads": 4, "position": {"kind": "rotary", "scaling": {
        "kind": "dynamic", "factor": 2.0, "original_context_length": 64}}},
    "latent": LATENT,
    "latent, low rank": LOW_RANK,
}  # fmt: skip


def model(mixer: dict[str, Any], dtype: torch.dtype = torch.float64, **index: Any) -> CausalModel:
    built = archetype.build(mixed(**mixer, index=INDEX | index), dtype=dtype)
    assert isinstance(built, CausalModel)
    return randomize(built).requires_grad_(False).eval()


def dense(chosen: CausalModel) -> CausalModel:
    """The same weights without an index."""
    without = spec.parse(spec.assign(chosen.spec, ["layers[*].mixer.index=null"]).dump())
    built = archetype.build(without, dtype=chosen.dtype)
    built.load_state_dict({name: x for name, x in chosen.state_dict().items() if ".index." not in name})
    assert isinstance(built, CausalModel)
    return built.requires_grad_(False).eval()


def tokens(rows: int = 2, length: int = T, seed: int = 0) -> Tensor:
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(seed))


def in_steps(model: CausalModel, texts: Tensor, cuts: list[int], capacity: int) -> Tensor:
    state, pieces = model.new_state(len(texts), capacity), []
    for start, end in pairwise([0, *cuts, texts.shape[1]]):
        piece, state = forward_step(model, texts[:, start:end], state)
        pieces.append(piece)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mixer", every(2, MIXERS))
def test_all_keys_are_dense_attention_to_the_bit(mixer: str, dtype: torch.dtype) -> None:
    chosen = model(MIXERS[mixer], dtype, top_k=T)
    plain, texts, lengths = dense(chosen), tokens(), torch.tensor([T, 6])
    assert torch.equal(chosen(texts).logits, plain(texts).logits)
    assert torch.equal(chosen(texts, num_tokens=lengths).logits, plain(texts, num_tokens=lengths).logits)
    for cuts in ([5, 6, 11], list(range(1, T))):
        assert torch.equal(in_steps(chosen, texts, cuts, T), in_steps(plain, texts, cuts, T))
    for one, other in zip(recorded(chosen, T), recorded(plain, T), strict=True):
        assert torch.equal(one, other)


def recorded(model: CausalModel, capacity: int, is_recorded: bool = True) -> list[Tensor]:
    """The logits of decoding steps."""
    kernels("native")
    texts = tokens()
    _, state = forward_step(model, texts[:, :3], model.new_state(2, capacity))
    step = DecodeStep(model, state)
    if not is_recorded:
        step._library = None
    logits = [step(texts[:, place : place + 1]).clone() for place in range(3, T)]
    assert (step.replay is not None) == (is_recorded and model.dtype != torch.float64)
    return logits


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "dynamic"])
def test_recorded_steps_choose_the_same_keys(mixer: str) -> None:
    chosen = model(MIXERS[mixer], torch.float32, top_k=TOP)
    for ours, theirs in zip(recorded(chosen, 24), recorded(chosen, 24, is_recorded=False), strict=True):
        assert distance(ours, theirs) < 1e-5


def turned(x: Tensor, position: int, dim: int) -> Tensor:
    """A vector with the halves of its first features turned by its position."""
    half = dim // 2
    y = x.clone()
    for pair in range(half):
        angle = position * 10_000.0 ** (-2 * pair / dim)
        a, b = x[pair], x[pair + half]
        y[pair], y[pair + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return y


def naive_choice(index: LightningIndex, x: Tensor, queries: Tensor) -> list[set[int]]:
    """The keys of each query of one text: all scores one by one, and sorted."""
    heads, size, dim, count = index.spec.num_heads, index.spec.head_dim, index.spec.sizes.rotary_dim, index.spec.top_k
    keys = nn.functional.layer_norm(x @ index.k.weight.T, (size,), index.k_norm.weight, index.k_norm.bias, 1e-6)
    keys = torch.stack([turned(key, place, dim) for place, key in enumerate(keys)])
    chosen = []
    for t, (vector, query) in enumerate(zip(x, queries, strict=True)):
        q = [turned(head, t, dim) for head in (index.q.weight @ query).view(heads, size)]
        w = index.weights.weight @ vector
        scores = [sum(float(w[j]) * max(0.0, float(q[j] @ keys[s])) for j in range(heads)) for s in range(t + 1)]
        chosen.append(set(sorted(range(t + 1), key=lambda s: (-scores[s], s))[:count]))
    return chosen


def naive_attention(attention: Attention, x: Tensor) -> Tensor:
    """One text, each query's softmax over its chosen keys alone."""
    assert attention.index is not None
    chosen, heads, size = naive_choice(attention.index, x, x), attention.sizes.num_heads, attention.sizes.head_dim
    q, k, v = ((x @ own.weight.T).unflatten(-1, (-1, size)) for own in (attention.q, attention.k, attention.v))
    shared, outputs = heads // k.shape[1], []
    for t, keys in enumerate(chosen):
        places, mixed = sorted(keys), []
        for head in range(heads):
            scores = [float(q[t, head] @ k[s, head // shared]) / math.sqrt(size) for s in places]
            weights = torch.tensor(scores, dtype=x.dtype).softmax(0)
            mixed.append(sum(w * v[s, head // shared] for w, s in zip(weights, places, strict=True)))
        outputs.append(attention.o.weight @ torch.cat(mixed))
    return torch.stack(outputs)


def naive_latent(attention: LatentAttention, x: Tensor) -> Tensor:
    """The same of latent attention, from its own queries, keys and values."""
    assert attention.index is not None
    batch, context = x[None], ForwardContext.of(x[None])
    low = attention.q_norm(attention.q_down(batch))
    chosen = naive_choice(attention.index, x, low[0])
    q = torch.cat(attention._queries(low, context), dim=-1)[0]
    k, v = (part[0] for part in attention.keys_and_values(attention._latents(batch, context)))
    outputs = []
    for t, keys in enumerate(chosen):
        places = sorted(keys)
        weights = (torch.einsum("hp,hsp->hs", q[:, t], k[:, places]) * attention.scale).softmax(-1)
        outputs.append(attention.o(torch.einsum("hs,hsq->hq", weights, v[:, places]).flatten()))
    return torch.stack(outputs)


@pytest.mark.parametrize("position", [None, {"kind": "rotary", "dim": 2}, {"kind": "rotary"}])
def test_each_query_sees_its_best_keys(position: dict[str, Any] | None) -> None:
    index = INDEX | {"position": position}
    x = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = spec.Attention.parse({"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "index": index})
    attention = randomize(Attention(own, Place(D)).double()).eval()
    latent = randomize(LatentAttention(spec.LatentAttention.parse(LOW_RANK | {"index": index}), Place(D)).double())
    for module, naive in ((attention, naive_attention), (latent.eval(), naive_latent)):
        together = module.requires_grad_(False)(x, ForwardContext.of(x))
        for row in range(2):
            assert distance(together[row], naive(module, x[row])) < 1e-12  # type: ignore[operator]


def test_products_of_bfloat16_are_not_rounded() -> None:
    index = randomize(LightningIndex(spec.LightningIndex.parse(INDEX), Place(D), D)).requires_grad_(False)
    x = torch.randn(1, 64, D, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    context = ForwardContext.of(x)
    index = index.to(torch.bfloat16)
    q = index.rotated(index.q(x).unflatten(-1, (3, 4)).transpose(1, 2), context)
    keys = index.rotated(index.heads(index.k(x), index.k_norm), context)
    weights = index.weights(x).float().transpose(1, 2)[..., None] / math.sqrt(3 * 4)
    exact = (weights * (q.double() @ keys.double().transpose(2, 3)).relu()).sum(1)
    assert distance(relevances(q, keys, index.weights(x)).double(), exact) < 1e-6
    rounded = (weights * (q @ keys.transpose(2, 3)).relu()).sum(1)
    assert distance(rounded.double(), exact) > 1e-4


def test_of_equal_scores_the_first_keys_are_chosen_whatever_follows() -> None:
    scores = torch.tensor([[[0.0, -0.0, 2.0, 0.0, -1.0, 0.0]]])
    for length in range(4, 7):
        assert best_keys(scores[..., :length], 3)[0, 0].tolist() == [True, True, True, *[False] * (length - 3)]


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_scores_that_rounding_alone_tells_apart_tie(size: float) -> None:
    """Keys of the same token, computed in passes of other lengths, differ in the last bits, and so do their scores."""
    scores, later = torch.tensor([[[0.5, 1.0, 0.7, 1.0]]]) * size, torch.tensor([0.0, 0.0, 0.0, 1.0]) * size
    for noise, expected in ((2e-7, 1), (-2e-7, 1), (1e-4, 3), (-1e-4, 1)):
        assert best_keys(scores + noise * later, 1)[0, 0].nonzero().item() == expected


@pytest.mark.shapes
@pytest.mark.parametrize("mixer", every(2, MIXERS))
def test_a_text_in_pieces_is_the_whole_text(mixer: str) -> None:
    """Also where every score is zero, and where a step gathers its keys from a longer buffer."""
    chosen, texts = model(MIXERS[mixer], top_k=TOP), tokens()
    for blind in (False, True):
        if blind:
            for block in chosen.blocks:
                block.mixer.index.weights.weight.zero_()
        whole = chosen(texts).logits
        assert distance(whole, dense(chosen)(texts).logits) > 1e-3
        for cuts in ([4, 5, 9], list(range(1, T))):
            assert distance(in_steps(chosen, texts, cuts, 24), whole) < 1e-12


def test_the_state_has_keys_values_and_the_keys_of_the_index() -> None:
    chosen = model(MIXERS["attention"], torch.float32, top_k=TOP)
    texts = tokens(3, 10)
    _, state = forward_step(chosen, texts, chosen.new_state(3, 24))
    layer = state.layers[0]
    assert isinstance(layer, IndexedKVCache) and state.can_shorten
    assert state.nbytes == cost_report(chosen.spec, 3, 24, "float32").state["bytes"]
    assert state.nbytes == 2 * 3 * 24 * (2 * 2 * 4 + 4) * 4
    assert layer.to(torch.bfloat16).nbytes == layer.nbytes // 2
    newest = tokens(3, 1, seed=7)
    expected = forward_step(chosen, newest, state.select(torch.arange(3)))[0]
    for other in (state.narrow(12), state.select(torch.arange(3)).rows(0, 3)):
        assert distance(forward_step(chosen, newest, other)[0], expected) < 1e-5
    joined: State = state.select(torch.tensor([2, 2, 1]))
    joined.insert(torch.tensor([0]), state.select(torch.tensor([0])))
    copied = state.select(torch.tensor([0, 0, 0]))
    for row in (1, 2):
        copied.insert(torch.tensor([row]), state.select(torch.tensor([row])))
    copied.copy_rows(torch.tensor([0, 0, 2]), torch.tensor([0, 0, 0]))
    short = chosen.new_state(3, 24)
    short.insert(torch.arange(3), state.shorten(6))
    assert distance(forward_step(chosen, newest[[0, 2, 1]], joined)[0], expected[[0, 2, 1]]) < 1e-5
    assert distance(forward_step(chosen, newest[[0, 0, 2]], copied)[0], expected[[0, 0, 2]]) < 1e-5
    again = forward_step(chosen, texts[:, 6:7], short)[0]
    assert distance(again, chosen(texts[:, :7]).logits[:, -1:]) < 1e-5


def loss_of(built: nn.Module, texts: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
    output = built.train()(texts, **options)
    return output.logits.square().mean(), output.aux_loss


@pytest.mark.parametrize("mixer", ["alibi", "latent, low rank"])
@pytest.mark.parametrize("top_k", [TOP, T])
def test_the_index_learns_from_attention_and_attention_not_from_it(mixer: str, top_k: int) -> None:
    built = model(MIXERS[mixer], top_k=top_k).requires_grad_(True)
    main, own = loss_of(built, tokens())
    assert own is not None and own > 0
    names = [name for name, _ in built.named_parameters()]
    for loss, is_index in ((main, False), (own, True)):
        gradients = torch.autograd.grad(loss, list(built.parameters()), retain_graph=True, allow_unused=True)
        reached = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
        assert reached == {name for name in names if (".index." in name) == is_index}
    silent = archetype.build(mixed(**MIXERS[mixer], index=INDEX | {"top_k": top_k, "loss_weight": 0.0}))
    assert loss_of(silent, tokens())[1] is None and not silent.spec.layers[0].mixer.adds_to_loss
    assert built.spec.layers[0].mixer.adds_to_loss and built.eval()(tokens()).aux_loss is None


def test_the_loss_is_the_divergence_from_attention_over_the_chosen_keys() -> None:
    part = spec.LightningIndex.parse(INDEX | {"loss_weight": 0.5})
    index = randomize(LightningIndex(part, Place(D), D).double()).requires_grad_(False)
    x = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    context = ForwardContext.of(x, num_tokens=torch.tensor([T, 6]))
    choice = index.train()(x, x, torch.ones(1, 1, T, T, dtype=torch.bool).tril(), context)
    assert isinstance(choice, Choice) and choice.keys is not None and choice.scores is not None
    attended = torch.rand(2, T, T, dtype=torch.float64) * choice.keys[:, 0]
    attended /= attended.sum(-1, keepdim=True)
    expected, count = 0.0, 0
    for row, length in enumerate((T, 6)):
        for t in range(length):
            seen = choice.keys[row, 0, t].nonzero().flatten()
            assert len(seen) == min(t + 1, TOP)
            p, q = attended[row, t, seen], choice.scores[row, t, seen].softmax(0)
            expected, count = expected + float((p * (p / q).log()).sum()), count + 1
    assert float(index.loss(choice, attended, context)) == pytest.approx(0.5 * expected / count, rel=1e-12)


REFUSALS = [
    ({"kind": "attention", "num_heads": 4, "pattern": {"kind": "window", "size": 4}},
     "layers[0].mixer.index: an index selects among all earlier keys, but the pattern is window; "
     "remove index, or use pattern full"),
    ({"kind": "attention", "num_heads": 4, "score": "additive"},
     "layers[0].mixer.index: additive scores do not support an index; remove index, or use score dot"),
]  # fmt: skip


@pytest.mark.parametrize(("mixer", "message"), REFUSALS)
def test_what_keys_are_not_chosen_for_is_refused(mixer: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        mixed(**mixer, index=INDEX)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"head_dim": 5, "position": {"kind": "rotary"}}, "head_dim: 5 features cannot be paired"),
        ({"position": {"kind": "rotary", "dim": 6}}, "position.dim: 6 is more than head_dim 4"),
        ({"position": {"kind": "rotary", "scaling": {"kind": "dynamic", "factor": 2, "original_context_length": 8}}},
         "position.scaling: dynamic scaling depends on the sequence length, which is not supported here"),
    ],
)  # fmt: skip
def test_rotations_that_do_not_fit_are_refused(fields: dict[str, Any], cause: str) -> None:
    with pytest.raises(SpecError, match=cause):
        spec.LightningIndex.parse(INDEX | fields)


def test_cross_attention_sees_the_whole_source() -> None:
    with pytest.raises(
        SpecError, match=r"cross_attention\.index: cross-attention always attends to the whole source; remove"
    ):
        spec.Block.parse(
            {"wiring": {"kind": "plain"}, "mixer": {"kind": "lstm"},
             "cross_attention": {"kind": "attention", "num_heads": 4, "index": INDEX}}
        )  # fmt: skip


def test_what_is_chosen_is_counted() -> None:
    """A step looks at the chosen keys alone; of a whole text the allowed pairs are those that are chosen."""
    length, heads = 20, 2 * 4 * 4  # features of all heads of both layers
    chosen, plain = (attending(**{"index": index} if index else {}) for index in (INDEX, None))

    def pairs(model: spec.ModelSpec, phase: str, attention: Any) -> int:
        rows = cost_report(model, 1, length, "float32", attention=attention).rows
        return sum(getattr(row, phase) for row in rows if row.module.endswith("mixer.scores")) // heads

    assert [pairs(chosen, "decode", kind) for kind in ("computed", "allowed")] == [2 * TOP, 2 * TOP]
    assert pairs(plain, "decode", "computed") == 2 * length
    assert pairs(chosen, "forward", "allowed") == 2 * sum(min(t + 1, TOP) for t in range(length))
    report = cost_report(chosen, 1, length, "float32")
    scores = sum(row.forward for row in report.rows if row.module.endswith("index.scores"))
    assert scores == 2 * 2 * length**2 * 3 * 4


def test_a_decoder_like_deepseek_v32_learns_and_writes() -> None:
    """Latent attention with an index, and experts: the index's loss falls while the tokens are learned."""
    mixer = LOW_RANK | {"index": INDEX | {"position": {"kind": "rotary", "dim": 4}}}
    layer = {"wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}}, "mixer": mixer}
    routed = layer | {
        "feedforward": experts(
            router={"kind": "sigmoid", "renormalize": True, "scale": 2.5, "expert_bias": True},
            groups={"num_groups": 3, "groups_per_token": 2, "top_k_in_group": 2},
            shared={"kind": "gated", "d_ff": 44, "activation": "silu"},
        )
    }
    dense_layer = layer | {"feedforward": {"kind": "gated", "d_ff": 44, "activation": "silu"}}
    sizes = {"kind": "decoder", "vocab_size": 31, "context_length": 24, "d_model": D, "final_norm": {"kind": "rms"}}
    described = spec.parse(sizes | {"layers": [dense_layer, {"repeat": 2, "block": routed}]})
    assert spec.parse(described.dump()) == described
    built = randomize(archetype.build(described))
    texts = tokens(8, 20)
    optimizer = torch.optim.Adam(built.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        output = built.train()(texts[:, :-1])
        predicted = nn.functional.cross_entropy(output.logits.flatten(0, 1), texts[:, 1:].flatten())
        losses.append((predicted.item(), output.aux_loss.item()))
        optimizer.zero_grad()
        (predicted + output.aux_loss).backward()
        optimizer.step()
    assert losses[-1][0] < 0.8 * losses[0][0] and losses[-1][1] < losses[0][1]
    assert isinstance(built.eval(), CausalModel)
    with torch.no_grad():
        whole = built(texts).logits
        assert distance(in_steps(built, texts, list(range(1, 20)), 24), whole) < 1e-5


def sharing(mixer: dict[str, Any], *sources: int | None, **index: Any) -> spec.ModelSpec:
    """One layer for each source, which is the layer whose selection it uses (None: its own)."""
    lightning = INDEX | {"top_k": TOP} | index
    return decoder(*(block(mixer=mixer | {"index": lightning | {"from_layer": source}}) for source in sources))


def shared(mixer: dict[str, Any], dtype: torch.dtype = torch.float64, **index: Any) -> CausalModel:
    """Two layers with their own indexes, and two that use those."""
    built = archetype.build(sharing(mixer, None, -1, None, 0, **index), dtype=dtype)
    assert isinstance(built, CausalModel)
    return randomize(built).requires_grad_(False).eval()


@pytest.mark.parametrize("mixer", MIXERS)
def test_layers_use_the_keys_that_an_earlier_layer_selects(mixer: str) -> None:
    built, texts = shared(MIXERS[mixer]), tokens()
    chosen: dict[int, Tensor] = {}
    for layer, part in enumerate(built.blocks):
        part.mixer.index.register_forward_hook(lambda _, __, choice, layer=layer: chosen.update({layer: choice.keys}))
    whole = built(texts).logits
    assert torch.equal(chosen[1], chosen[0]) and torch.equal(chosen[3], chosen[0])
    assert not torch.equal(chosen[2], chosen[0])
    assert {name.split(".")[1] for name, _ in built.named_parameters() if ".index." in name} == {"0", "2"}
    assert distance(whole, dense(built)(texts).logits) > 1e-3
    for cuts in ([4, 5, 9], list(range(1, T))):
        assert distance(in_steps(built, texts, cuts, 24), whole) < 1e-12
    every, plain = (change(shared(MIXERS[mixer], top_k=T)) for change in (lambda model: model, dense))
    assert torch.equal(every(texts).logits, plain(texts).logits)


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "dynamic"])
def test_recorded_steps_share_the_keys(mixer: str) -> None:
    built = shared(MIXERS[mixer], torch.float32)
    for ours, theirs in zip(recorded(built, 24), recorded(built, 24, is_recorded=False), strict=True):
        assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize("mixer", ["attention", "latent, low rank"])
def test_a_layer_that_shares_costs_its_attention_alone(mixer: str) -> None:
    built = shared(MIXERS[mixer], torch.float32)
    report = cost_report(built.spec, 3, 24, "float32")
    assert total_parameters(built.spec) == sum(p.numel() for p in built.parameters())
    _, state = forward_step(built, tokens(3, 10), built.new_state(3, 24))
    assert [isinstance(layer, IndexedKVCache) for layer in state.layers] == [True, False, True, False]
    assert state.nbytes == report.state["bytes"]
    own = cost_report(sharing(MIXERS[mixer], *4 * [None]), 3, 24, "float32")
    for phase in ("forward", "decode"):
        of_index, of_scores = (
            [sum(getattr(row, phase) for row in one.rows if name in row.module) for one in (own, report)]
            for name in (".index.", "mixer.scores")
        )
        assert of_index[0] == 2 * of_index[1] > 0 and of_scores[0] == of_scores[1]


@pytest.mark.parametrize("mixer", ["alibi", "latent, low rank"])
def test_a_shared_index_learns_from_its_own_layer_alone(mixer: str) -> None:
    built = shared(MIXERS[mixer]).requires_grad_(True)
    _, own = loss_of(built, tokens())
    assert own is not None and own > 0
    gradients = torch.autograd.grad(own, list(built.parameters()), retain_graph=True, allow_unused=True)
    names = [name for name, _ in built.named_parameters()]
    reached = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    assert reached == {name for name in names if ".index." in name}
    assert [block.mixer.adds_to_loss for block in built.spec.layers] == [True, False, True, False]
    assert spec.parse(built.spec.dump()) == built.spec


@pytest.mark.parametrize("mixer", ["attention", "latent, low rank"])
def test_recomputed_blocks_share_the_same_keys(mixer: str) -> None:
    gradients = []
    for recompute in ("none", "blocks", 2):
        built = shared(MIXERS[mixer], torch.float32).requires_grad_(True)
        recompute_blocks(built, recompute)  # type: ignore[arg-type]
        main, own = loss_of(built, tokens())
        assert own is not None
        (main + own).backward()
        gradients.append({name: parameter.grad for name, parameter in built.named_parameters()})
    for other in gradients[1:]:
        assert all(torch.equal(gradient, other[name]) for name, gradient in gradients[0].items())
    inputs = [
        MemoryCost(model_cost(sharing(MIXERS[mixer], *sources)), "float32").saved_activations(3, 20).block_inputs
        for sources in ((None, -1, None, 0), 4 * [None])
    ]
    assert inputs[0] - inputs[1] == 3 * 20 * 20  # the mask of the first layer


SHARED_REFUSALS = [
    ([0], "layers[0].mixer: reads layer 0, which is not before layer 0; name an earlier layer"),
    ([None, -1, -1], "layers[2].mixer.index.from_layer: the referenced layer does not select keys; name a "),
]  # fmt: skip


@pytest.mark.parametrize(("sources", "message"), SHARED_REFUSALS)
@pytest.mark.parametrize("mixer", ["attention", "latent"])
def test_a_selection_that_no_earlier_layer_makes_is_refused(mixer: str, sources: list[int], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        sharing(MIXERS[mixer], *sources)
    assert message in str(refused.value)


def test_an_index_must_equal_the_one_that_it_uses() -> None:
    mixer = MIXERS["latent"]
    first, reader = (block(mixer=mixer | {"index": INDEX | more}) for more in ({}, {"from_layer": 0, "top_k": 3}))
    with pytest.raises(SpecError, match=r"from_layer: top_k differs from the referenced layer's index; make them"):
        decoder(first, reader)
    with pytest.raises(SpecError, match=r"index\.from_layer: the referenced layer does not select keys"):
        decoder(block(mixer=mixer), reader)
