"""Mixture of experts against a loop over tokens and experts, written out."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward
from archetype.parts.activation.module import activation
from archetype.parts.experts.module import MixtureOfExperts, group_limited_mask, load_balancing_loss
from tests.helpers.weights import randomize

D, E, B, T = 6, 8, 2, 5
PLAIN = spec.MLP(d_ff=7, activation="relu")
GATED = spec.GatedMLP(d_ff=7, activation="silu")
X = torch.randn(B, T, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GROUPS = spec.ExpertGroups(num_groups=4, groups_per_token=2)

CASES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "not renormalized": {"router": spec.SoftmaxRouter(scale=2.5)},
    "sigmoid": {"router": spec.SigmoidRouter()},
    "sigmoid renormalized": {"router": spec.SigmoidRouter(renormalize=True, scale=0.5)},
    "groups": {"groups": GROUPS},
    "sigmoid groups": {"groups": GROUPS, "router": spec.SigmoidRouter()},
    "one of many": {"experts_per_token": 1, "router": spec.SoftmaxRouter()},
    "all of all": {"experts_per_token": E},
    "plain": {"expert": PLAIN},
    "plain with biases": {"expert": PLAIN.replace(bias=True)},
    "gated with biases": {"expert": GATED.replace(bias=True)},
    "shared": {"shared": GATED.replace(d_ff=9, bias=True)},
    "plain beside gated": {"expert": PLAIN, "shared": GATED},
    "corrected": {"router": spec.SigmoidRouter(renormalize=True, expert_bias=True)},
    "corrected softmax": {"router": spec.SoftmaxRouter(scale=1.5, expert_bias=True)},
    "groups by their two best": {
        "groups": GROUPS.replace(top_k_in_group=2),
        "experts_per_token": 3,
        "router": spec.SigmoidRouter(expert_bias=True),
    },
    "shared behind a gate": {"shared": GATED.replace(d_ff=9), "shared_gate": True},
    "swish": {"expert": spec.GatedMLP(d_ff=5, activation=spec.Swish(beta=1.7))},
}


def build(**fields: Any) -> MixtureOfExperts:
    chosen = {"num_experts": E, "experts_per_token": 2, "expert": GATED} | fields
    part = MixtureOfExperts(spec.MixtureOfExperts(**chosen), Place(D)).double()
    randomize(part)
    return part


def context(x: Tensor = X, num_tokens: Tensor | None = None) -> ForwardContext:
    return ForwardContext.of(x, num_tokens=num_tokens)


def network(x: Tensor, expert: spec.Expert, tensors: dict[str, Tensor]) -> Tensor:
    """One feed-forward network on one token, from its formula."""

    def project(name: str, y: Tensor) -> Tensor:
        y = tensors[name] @ y
        return y + tensors[f"{name}_bias"] if expert.bias else y

    f = activation(expert.activation)
    if isinstance(expert, spec.GatedMLP):
        return project("down", f(project("gate", x)) * project("up", x))
    return project("down", f(project("up", x)))


def naive(part: MixtureOfExperts, x: Tensor) -> Tensor:
    """Token by token: rank the experts, take the best, add up what they say."""
    chosen, stacks = part.spec, dict(part.experts.named_parameters())
    out = []
    for token in x.flatten(0, 1):
        logits = part.router.weight @ token
        if isinstance(chosen.router, spec.SoftmaxRouter):
            affinity = logits.exp() / logits.exp().sum()
        else:
            affinity = 1 / (1 + (-logits).exp())
        worth = [affinity[e].item() + (part.correction[e].item() if chosen.router.expert_bias else 0) for e in range(E)]
        ranked = sorted(range(chosen.num_experts), key=lambda e: -worth[e])
        if chosen.groups is not None:
            size, best = chosen.num_experts // chosen.groups.num_groups, chosen.groups.top_k_in_group
            worths = {g: sum(sorted(worth[g * size : (g + 1) * size])[-best:]) for g in range(chosen.groups.num_groups)}
            groups = sorted(worths, key=lambda g: -worths[g])[: chosen.groups.groups_per_token]
            ranked = [e for e in ranked if e // size in groups]
        ranked = ranked[: chosen.experts_per_token]
        whole = sum(affinity[e] for e in ranked) if chosen.router.renormalize else 1.0
        y = torch.zeros_like(token)
        for e in ranked:
            own = {name: stack[e] for name, stack in stacks.items()}
            y = y + chosen.router.scale * affinity[e] / whole * network(token, chosen.expert, own)
        if chosen.shared is not None:
            named = {name.replace(".weight", "").replace(".", "_"): p for name, p in part.shared.named_parameters()}
            gate = 1 / (1 + (-part.shared_gate.weight @ token).exp()) if chosen.shared_gate else 1.0
            y = y + gate * network(token, chosen.shared, named)
        out.append(y)
    return torch.stack(out).view_as(x)


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_it_is_the_loop_over_tokens_and_experts(fields: dict[str, Any]) -> None:
    part = build(**fields)
    torch.testing.assert_close(part(X, context()), naive(part, X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_gradients_are_those_of_the_loop(fields: dict[str, Any]) -> None:
    part = build(**fields)
    weights = torch.randn(X.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def gradients(y: Tensor, x: Tensor) -> dict[str, Tensor]:
        named = {"x": x} | dict(part.named_parameters())
        loss, inputs = (weights * y).sum(), list(named.values())
        gradient_list = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
        return dict(zip(named, gradient_list, strict=True))

    x = X.clone().requires_grad_()
    ours, expected = gradients(part(x, context()), x), gradients(naive(part, x), x)
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-10, atol=1e-12, msg=name)
    assert expected["experts.up"].abs().sum() > 0


WHOLE = GATED.replace(activation="relu")


@pytest.mark.parametrize("expert", [PLAIN, WHOLE, PLAIN.replace(bias=True), WHOLE.replace(bias=True)])
def test_one_expert_is_its_dense_block_exactly(expert: spec.Expert) -> None:
    """Of whole numbers, whose sums are exact in whatever order a processor's kernels add them."""
    whole = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (B, T, D), generator=whole).float()
    for router in (spec.SoftmaxRouter(), spec.SigmoidRouter(renormalize=True)):
        part = build(num_experts=1, experts_per_token=1, expert=expert, router=router).float()
        for weight in part.parameters():
            weight.data = torch.randint(-2, 3, weight.shape, generator=whole).float()
        dense = build_feedforward(expert, Place(D))
        stacks = dict(part.experts.named_parameters())
        names = {name: name.replace(".weight", "").replace(".", "_") for name in dense.state_dict()}
        dense.load_state_dict({name: stacks[ours][0] for name, ours in names.items()})
        y = dense(x, context(x))
        torch.testing.assert_close(part(x, context(x)), y, rtol=0, atol=0)
        assert y.unique().numel() > B * T


@pytest.mark.parametrize("fields", [{}, {"shared": GATED}, {"router": spec.SigmoidRouter(scale=2.5)}])
def test_experts_in_a_space_as_wide_as_the_model_are_plain_ones_if_both_maps_are_identities(
    fields: dict[str, Any],
) -> None:
    plain, latent = build(**fields), build(latent_width=D, **fields)
    maps = dict.fromkeys(("latent_down.weight", "latent_up.weight"), torch.eye(D, dtype=torch.float64))
    latent.load_state_dict(plain.state_dict() | maps)
    assert torch.equal(latent(X, context()), plain(X, context()))
    latent.latent_up.weight.data *= 1.001
    assert not torch.equal(latent(X, context()), plain(X, context()))


@pytest.mark.parametrize(
    "fields",
    [
        {"shared": PLAIN},
        {"experts_per_token": 1, "idle": 6, "expert": PLAIN.replace(bias=True)},
        {
            "experts_per_token": 1,
            "idle": 6,
            "expert": PLAIN.replace(bias=True),
            "weighs": "inputs",
        },  # an input of zeros has a bias, too
    ],
)
def test_a_token_gives_alone_what_it_gives_among_others(fields: dict[str, Any]) -> None:
    part = build(**fields)
    together = part(X, context())
    for row in range(B):
        for t in range(T):
            one = X[row : row + 1, t : t + 1]
            torch.testing.assert_close(part(one, context(one))[0, 0], together[row, t], rtol=1e-12, atol=1e-12)


def test_an_expert_that_nobody_chooses_is_not_computed() -> None:
    """Its weights are never looked at: not even no number in them shows. Its gradient is zero."""
    part = build()
    _, chosen = part._choose(part.router.affinities(part.router(X.flatten(0, 1)[:3])), part.router(X.flatten(0, 1)[:3]))
    idle = [e for e in range(E) if e not in chosen]
    assert idle
    few = X[:1, :3]
    expected = part(few, context(few))
    with torch.no_grad():
        for stack in part.experts.parameters():
            stack[idle] = math.nan
    y = part(few, context(few))
    assert torch.equal(y, expected)
    y.sum().backward()
    assert (part.experts.gate.grad[idle] == 0).all()
    assert (part.experts.gate.grad[chosen.unique()] != 0).any(-1).any(-1).all()


def test_a_crowded_expert_drops_no_token() -> None:
    part = build(experts_per_token=1, router=spec.SigmoidRouter())
    with torch.no_grad():
        part.router.weight.zero_()
        part.router.weight[3] = 1.0
    x = X.abs()
    _, chosen = part._choose(part.router.affinities(part.router(x.flatten(0, 1))), part.router(x.flatten(0, 1)))
    assert (chosen == 3).all()
    torch.testing.assert_close(part(x, context(x)), naive(part, x), rtol=1e-12, atol=1e-12)


def test_groups_are_ranked_by_their_best_expert() -> None:
    affinities = torch.tensor([[0.1, 0.9, 0.5, 0.6, 0.0, 0.2, 0.7, 0.7]])
    within = group_limited_mask(affinities, GROUPS)  # the second group's sum is larger than the first's
    assert within.tolist() == [[True, True, False, False, False, False, True, True]]


def test_weights_that_are_renormalized_sum_to_the_scale() -> None:
    for router in (spec.SoftmaxRouter(renormalize=True, scale=3.0), spec.SigmoidRouter(renormalize=True, scale=3.0)):
        part = build(router=router, groups=GROUPS)
        weights, _ = part._choose(part.router.affinities(part.router(X.flatten(0, 1))), part.router(X.flatten(0, 1)))
        torch.testing.assert_close(weights.sum(-1), torch.full((B * T,), 3.0, dtype=torch.float64))


@pytest.mark.parametrize("router", [spec.SoftmaxRouter(renormalize=True), spec.SigmoidRouter(renormalize=True)])
def test_the_router_is_exact_when_the_rest_is_not(router: spec.Router) -> None:
    part = build(router=router).float()
    x = X.float()
    exact = part.router.affinities(part.router(x.flatten(0, 1)))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(part.router.affinities(part.router(x.flatten(0, 1))), exact)
        y = part(x, context(x))
    torch.testing.assert_close(y.float(), part(x, context(x)), rtol=0.05, atol=0.05)
    assert part.bfloat16()(x.bfloat16(), context(x)).dtype == torch.bfloat16


def test_sigmoids_that_are_all_zero_give_no_nan() -> None:
    part = build(router=spec.SigmoidRouter(renormalize=True)).float()
    with torch.no_grad():
        part.router.weight.fill_(-1e4)
    x = X.float().abs()
    assert part(x, context(x)).isfinite().all()


# the load-balancing loss


def test_the_balance_loss_is_written_out() -> None:
    part = build(balance_loss=0.25, groups=GROUPS).train()
    passed = context()
    part(X, passed)
    affinities = (X.flatten(0, 1) @ part.router.weight.T).softmax(-1)
    _, chosen = part._choose(affinities, affinities)
    expected = 0.0
    for e in range(E):
        share = sum(int(c) == e for c in chosen.flatten()) / chosen.numel()
        expected += E * share * affinities[:, e].mean().item()
    (loss,) = passed.aux_losses
    assert loss.item() == pytest.approx(0.25 * expected, rel=1e-12)
    part(X, passed)  # another layer, whose loss is added
    assert passed.aux_loss.item() == pytest.approx(0.5 * expected, rel=1e-12)
    loss.backward()
    assert part.router.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("router", [spec.SoftmaxRouter(), spec.SigmoidRouter()])
def test_the_balance_loss_is_its_weight_where_all_experts_are_chosen_alike(router: spec.Router) -> None:
    """Token n ranks expert n first and n + 1 second, so every expert is chosen twice."""
    mixture = spec.MixtureOfExperts(num_experts=6, experts_per_token=2, expert=PLAIN, router=router, balance_loss=0.3)
    part = MixtureOfExperts(mixture, Place(6)).double()
    randomize(part).train()
    with torch.no_grad():
        part.router.weight.copy_(torch.eye(6) * 2 + torch.eye(6).roll(1, 0))
    x = torch.eye(6, dtype=torch.float64)[None]
    passed = context(x)
    part(x, passed)
    assert passed.aux_losses[0].item() == pytest.approx(0.3, rel=1e-12)


def test_the_balance_loss_is_largest_where_all_choose_one_expert() -> None:
    affinities = torch.zeros(5, E)
    affinities[:, 2] = 1.0
    assert load_balancing_loss(affinities, torch.full((5, 1), 2)).item() == E


def test_padding_does_not_count_in_the_balance_loss() -> None:
    part = build(balance_loss=1.0).train()
    num_tokens = torch.tensor([3, 0])
    padded, alone = context(num_tokens=num_tokens), context(X[:1, :3])
    part(X, padded)
    part(X[:1, :3], alone)
    assert padded.aux_losses[0].item() == pytest.approx(alone.aux_losses[0].item(), rel=1e-12)
    everything = context()
    part(X, everything)
    assert padded.aux_losses[0].item() != pytest.approx(everything.aux_losses[0].item(), rel=1e-3)


def test_of_padding_alone_the_balance_loss_is_zero() -> None:
    part = build(balance_loss=1.0).train()
    passed = context(num_tokens=torch.tensor([0, 0]))
    part(X, passed)
    assert passed.aux_losses[0].item() == 0.0


def test_there_is_a_balance_loss_in_training_only_and_where_it_weighs_something() -> None:
    for weight, training, number in ((0.1, True, 1), (0.1, False, 0), (0.0, True, 0)):
        part = build(balance_loss=weight).train(training)
        passed = context()
        part(X, passed)
        assert len(passed.aux_losses) == number
        assert (passed.aux_loss is None) == (number == 0)


def test_names_and_shapes_are_the_file_format() -> None:
    part = build(expert=GATED.replace(bias=True), shared=PLAIN)
    assert {name: tuple(p.shape) for name, p in part.named_parameters()} == {
        "router.weight": (E, D),
        "experts.gate": (E, 7, D),
        "experts.gate_bias": (E, 7),
        "experts.up": (E, 7, D),
        "experts.up_bias": (E, 7),
        "experts.down": (E, D, 7),
        "experts.down_bias": (E, D),
        "shared.up.weight": (7, D),
        "shared.down.weight": (D, 7),
    }
    assert {name for name, _ in build(expert=PLAIN).experts.named_parameters()} == {"up", "down"}


def test_a_correction_changes_who_is_chosen_and_no_weight() -> None:
    plain = build(router=spec.SigmoidRouter())
    corrected = build(router=spec.SigmoidRouter(expert_bias=True))
    corrected.load_state_dict(plain.state_dict() | {"correction": torch.zeros(E).double()})
    assert torch.equal(corrected(X, context()), plain(X, context()))
    corrected.correction[3] = 10.0  # every token now has it
    affinities = corrected.router.affinities(corrected.router(X.flatten(0, 1)))
    weights, chosen = corrected._choose(affinities, affinities.logit())
    assert (chosen == 3).any(-1).all()
    assert torch.equal(weights, affinities.gather(-1, chosen))


def test_a_correction_may_be_added_to_logits() -> None:
    part = build(router=spec.SigmoidRouter(expert_bias=True, expert_bias_on="logits"))
    logits = part.router(X.flatten(0, 1))
    weights, chosen = part._choose(logits.sigmoid(), logits)
    assert torch.equal(chosen, (logits + part.correction).topk(part.spec.experts_per_token).indices)
    assert torch.equal(weights, logits.sigmoid().gather(-1, chosen))


def test_a_correction_starts_at_zero_and_training_leaves_it() -> None:
    part = MixtureOfExperts(
        spec.MixtureOfExperts(
            num_experts=E, experts_per_token=2, expert=GATED, router=spec.SigmoidRouter(expert_bias=True)
        ),
        Place(D),
    )
    initialize(part, spec.NormalInitialization(), 1, seed=0)
    assert torch.equal(part.correction, torch.zeros(E))
    assert "correction" not in dict(part.named_parameters()) and "correction" in part.state_dict()


@pytest.mark.parametrize("weighs", ["outputs", "inputs"])
def test_experts_that_choose_compute_equally_many_tokens_of_each_text(weighs: str) -> None:
    router = spec.ExpertChoiceRouter(scale=1.5)
    part = build(num_experts=3, experts_per_token=2, router=router, weighs=weighs, shared=PLAIN)
    lengths = torch.tensor([T, 3])
    captured: dict[str, Tensor] = {}
    part.experts.register_forward_pre_hook(lambda module, inputs: captured.update(chosen=inputs[1]))
    y = part(X, context(num_tokens=lengths))
    assert part.shared is not None
    for row, length in enumerate(lengths.tolist()):
        x = X[row, :length]
        affinities = part.router.affinities(part.router(x))  # (T, E)
        expected = part.shared(x[None], context(x[None]))[0]
        for expert in range(3):
            best = affinities[:, expert].topk(-(-2 * length // 3)).indices
            weight = 1.5 * affinities[best, expert, None]
            alone = torch.full((len(best), 1), expert)
            if weighs == "outputs":
                outputs = part.experts(x[best], alone) * weight
            else:
                outputs = part.experts(x[best] * weight, alone)
            expected = expected.index_add(0, best, outputs)
        torch.testing.assert_close(y[row, :length], expected, rtol=1e-12, atol=1e-12)


def test_experts_that_choose_are_loaded_alike() -> None:
    part = build(num_experts=3, experts_per_token=2, router=spec.ExpertChoiceRouter())
    chosen: list[Tensor] = []
    part.experts.register_forward_pre_hook(lambda module, inputs: chosen.append(inputs[1]))
    part(X, context())
    counts = chosen[0].flatten().bincount(minlength=3)
    assert counts.tolist() == [B * 4] * 3  # of 5 tokens, 2 / 3 rounded up
