"""Routers of Phi-MoE and DeepSeek-V4, and idle experts of LongCat-Flash, against transformers; in training too."""

from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4TopKRouter
from transformers.models.longcat_flash.configuration_longcat_flash import LongcatFlashConfig
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashMoE
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from archetype import spec
from archetype.errors import SpecError
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.experts.module import MixtureOfExperts
from archetype.parts.router.module import SoftmaxRouter, SparseMixerRouter
from tests.helpers.weights import distance, randomize

E, D, N, JITTER = 6, 8, 40000, 0.2
# some close together, so that several compete
LOGITS = torch.randn(N, E, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
EXPERT = spec.GatedMLP(d_ff=7, activation="silu")


def router() -> SparseMixerRouter:
    return SparseMixerRouter(spec.SparseMixerRouter(jitter=JITTER), E, Place(D))


@torch.no_grad()
def test_a_soft_cap_of_logits_keeps_their_order_and_evens_out_the_weights() -> None:
    """As Grok 2.5's published code computes it, c tanh(z / c) before the softmax."""
    part = spec.SoftmaxRouter(softcap=0.5)
    capped, plain = (SoftmaxRouter(each, E, Place(D)).double() for each in (part, spec.SoftmaxRouter()))
    randomize(plain)
    capped.load_state_dict(plain.state_dict())
    x = 3 * torch.randn(20, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = plain(x)
    assert distance(capped(x), torch.tanh(z * 2) / 2) < 1e-12
    assert torch.equal(capped(x).argsort(-1), z.argsort(-1)) and distance(capped(x), z) > 1e-2
    assert (capped.affinities(capped(x)).amax(-1) < plain.affinities(z).amax(-1)).all()


def test_sparse_mixer_chooses_and_weighs_as_in_phi_moe() -> None:
    weights, chosen = router().eval().choose(LOGITS, 2)
    expected, experts = sparsemixer(LOGITS, JITTER, training=False)
    assert torch.equal(chosen, experts)
    assert distance(weights, expected) < 1e-12
    assert 0.1 < (weights[:, 0] < 1).float().mean() < 0.95  # some compete, some do not
    narrower = SparseMixerRouter(spec.SparseMixerRouter(jitter=0.01), E, Place(D)).eval()
    assert distance(narrower.choose(LOGITS, 2)[0], expected) > 1e-3


def means(weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The mean weight with which each expert is chosen first and second, and its gradient by the logits."""
    total = torch.zeros(2, E, dtype=torch.float64)
    for choice in range(2):
        total[choice] = torch.zeros(E, dtype=torch.float64).index_add(0, chosen[:, choice], weights[:, choice].detach())
    return total / N, chosen


def test_sparse_mixer_draws_experts_in_training_as_phi_moe_does() -> None:
    """The same distribution of choices, weights and gradients: means over 40,000 tokens of the same logits."""
    one = torch.tensor([1.0, 0.9, 0.7, 0.6, -0.5, 0.2], dtype=torch.float64)
    results = []
    for seed, draw in ((1, lambda x: router().train().choose(x, 2)), (2, lambda x: sparsemixer(x, JITTER, True))):
        torch.manual_seed(seed)
        logits = one.expand(N, E).clone().requires_grad_()
        weights, chosen = draw(logits)
        (weights * torch.tensor([1.0, -2.0])).sum().backward()
        assert logits.grad is not None
        total, _ = means(weights, chosen)
        pairs = torch.zeros(E, E, dtype=torch.float64).index_put(
            (chosen[:, 0], chosen[:, 1]), torch.ones(()).double(), True
        )
        results.append((total, pairs / N, logits.grad.mean(0)))
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).abs().max() < 0.006
        assert theirs.abs().max() > 0.02
    assert (results[0][1][4] == 0).all()  # far below the best one, an expert is never drawn first


def test_the_gradient_is_that_of_the_weights_as_if_none_were_divided() -> None:
    torch.manual_seed(0)
    logits = LOGITS.clone().requires_grad_()
    module = router().train()
    weights, chosen = module.choose(logits, 1)
    weights.sum().backward()
    again = LOGITS.clone().requires_grad_()
    best = again.detach().max(-1, keepdim=True).values
    far = (best - again.detach()) / again.detach().abs().clamp(min=best) > 2 * JITTER
    whole = again.masked_fill(far, -torch.inf).softmax(-1).gather(-1, chosen)
    whole.sum().backward()
    assert distance(logits.grad, again.grad) < 1e-12
    divided = weights.detach() / whole.detach()
    assert {round(float(share), 3) for share in divided.flatten()} == {0.333, 1.0}


@torch.no_grad()
@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_sqrt_softplus_is_that_of_deepseek_v4(scale: float) -> None:
    config = DeepseekV4Config(hidden_size=D, num_local_experts=E, num_experts_per_tok=2, routed_scaling_factor=scale)
    theirs = randomize(DeepseekV4TopKRouter(config))
    theirs.e_score_correction_bias.normal_(generator=torch.Generator().manual_seed(1))
    chosen = spec.SqrtSoftplusRouter(renormalize=True, expert_bias=True, scale=scale)
    part = spec.MixtureOfExperts(num_experts=E, experts_per_token=2, expert=EXPERT, router=chosen)
    ours = randomize(MixtureOfExperts(part, Place(D)))
    ours.router.weight.copy_(theirs.weight)
    ours.correction.copy_(theirs.e_score_correction_bias)
    x = torch.randn(1, 50, D, generator=torch.Generator().manual_seed(2))
    logits, weights, experts = theirs(x)
    our_logits = ours.router(x[0], ForwardContext.of(x))
    our_weights, our_experts = ours._choose(ours.router.affinities(our_logits), our_logits)
    assert distance(our_logits, logits) < 1e-6
    order, our_order = experts.argsort(-1), our_experts.argsort(-1)
    assert torch.equal(experts.gather(-1, order), our_experts.gather(-1, our_order))
    assert distance(our_weights.gather(-1, our_order), weights.gather(-1, order)) < 1e-6
    assert distance(our_logits.sigmoid().gather(-1, our_experts), our_weights) > 1e-2


class LongcatWithIdleExperts:
    """Experts of LongCat-Flash, of which the last three return their input."""

    def __init__(self) -> None:
        config = LongcatFlashConfig(hidden_size=D, num_layers=1, n_routed_experts=E, zero_expert_num=3, moe_topk=4,
                                    expert_ffn_hidden_size=7, routed_scaling_factor=1.5)  # fmt: skip
        self.theirs = randomize(LongcatFlashMoE(config))
        self.theirs.router.e_score_correction_bias.normal_(0.0, 0.05, generator=torch.Generator().manual_seed(1))
        chosen = spec.SoftmaxRouter(expert_bias=True, scale=1.5)
        part = spec.MixtureOfExperts(num_experts=E, experts_per_token=4, idle=3, expert=EXPERT, router=chosen)
        self.ours = MixtureOfExperts(part, Place(D)).eval()
        gate, up = self.theirs.experts.gate_up_proj[:E].chunk(2, dim=1)
        router, experts = self.theirs.router, self.theirs.experts
        self.ours.load_state_dict({
            "router.weight": router.classifier.weight, "correction": router.e_score_correction_bias,
            "experts.gate": gate, "experts.up": up, "experts.down": experts.down_proj,
        })  # fmt: skip


@torch.no_grad()
def test_idle_experts_return_their_input_as_in_longcat_flash() -> None:
    """Also where all of a token's experts are idle, or none, and in the form that a graph computes."""
    pair = LongcatWithIdleExperts()
    x = torch.randn(2, 40, D, generator=torch.Generator().manual_seed(2))
    context = ForwardContext.of(x)
    ours = pair.ours(x, context)
    assert distance(ours, pair.theirs(x)) < 1e-6
    logits = pair.ours.router(x.flatten(0, 1), context)
    _, chosen = pair.ours._choose(pair.ours.router.affinities(logits), logits)
    idle = (chosen >= E).sum(-1)
    assert {0, 1, 2, 3} == set(idle.tolist())
    with patch.object(torch.compiler, "is_compiling", return_value=True):
        assert distance(pair.ours(x, context), ours) < 1e-6
    pair.ours.correction[E:] += 9.0  # all three are chosen for every token
    pair.theirs.router.e_score_correction_bias[E:] += 9.0
    assert distance(pair.ours(x, context), pair.theirs(x)) < 1e-6
    assert distance(pair.ours(x, context), ours) > 1e-2


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"latent_width": 4}, "latent_width"),
        ({"router": {"kind": "hash"}}, "router"),
        ({"groups": {"num_groups": 2, "groups_per_token": 1}}, "groups"),
    ],
)
def test_idle_experts_are_refused_where_they_mean_nothing(fields: dict[str, object], place: str) -> None:
    with pytest.raises(SpecError, match=f"{place}: idle experts|{place}: a table"):
        spec.MixtureOfExperts.parse({"num_experts": 4, "experts_per_token": 2, "expert": EXPERT, "idle": 2} | fields)
