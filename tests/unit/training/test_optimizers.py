"""Optimizers: their arithmetic, their groups, and their state."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from archetype import spec
from archetype.errors import SpecError
from archetype.models.build import Model, build
from archetype.training.optimizers import (
    SGD,
    Adafactor,
    AdamW,
    Lion,
    Muon,
    Optimizer,
    ParameterGroup,
    algorithms,
    optimizer_tensors,
    restore_optimizer,
    roles_of,
)
from archetype.training.optimizers.algorithms import MuonOptimizer, orthogonalize
from archetype.training.recipe import Recipe
from archetype.training.schedules import set_learning_rate
from archetype.training.setup import start
from tests.helpers.recipes import ENCODER, NEXT, recurrent_pair, transformer_pair

EVERY: list[Optimizer] = [AdamW(), Muon(), Adafactor(), Lion(), SGD(), SGD(nesterov=True), SGD(momentum=0.0)]


def model(name: str = "experts") -> Model:
    specs = NEXT | {"encoder": ENCODER, "pair": transformer_pair(), "recurrent pair": recurrent_pair()}
    return build(spec.parse({"vocab_size": 40} | specs[name]), seed=1)


def gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def take(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        gradients(model, step)
        set_learning_rate(optimizer, 1e-2 / (step + 1))
        optimizer.step()


def test_lion_is_chens_algorithm() -> None:
    """Two steps by hand, in float64, of a matrix with weight decay and of a vector without."""
    built = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        built.weight.copy_(torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]]))
        built.bias.copy_(torch.tensor([1.0, -1.0]))
    optimizer = Lion(learning_rate=0.1, weight_decay=0.5, betas=(0.9, 0.99)).build(built)
    steps = [([[1.0, -1.0, 0.0], [2.0, 3.0, -4.0]], [1.0, -2.0]), ([[-0.05, 1.0, 0.0], [-9.0, 1.0, 1.0]], [-0.05, 9.0])]
    for weight, bias in steps:
        built.weight.grad = torch.tensor(weight, dtype=torch.float64)
        built.bias.grad = torch.tensor(bias, dtype=torch.float64)
        optimizer.step()
    # first: x (1 - 0.1 * 0.5) - 0.1 sign(0.1 g), m = 0.01 g; then: sign(0.9 m + 0.1 g)
    expected, momentum = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], dtype=torch.float64), 0.0
    for weight, _ in steps:
        gradient = torch.tensor(weight, dtype=torch.float64)
        expected = expected * 0.95 - 0.1 * torch.sign(0.9 * momentum + 0.1 * gradient)
        momentum = 0.99 * momentum + 0.01 * gradient
    torch.testing.assert_close(built.weight.detach(), expected, rtol=0, atol=1e-12)
    # 0.9 * 0.01 * 1 - 0.1 * 0.05 is above 0: the momentum decides; -0.9 * 0.02 + 0.1 * 9 too: the gradient does
    assert built.bias.tolist() == pytest.approx([1.0 - 0.1 - 0.1, -1.0 + 0.1 - 0.1])


@pytest.mark.parametrize("optimizer", EVERY, ids=lambda optimizer: repr(optimizer)[:30])
def test_a_restored_state_goes_on_to_the_bit(optimizer: Optimizer) -> None:
    for name in ("experts", "mamba", "recurrent pair"):
        whole, first, second = model(name), model(name), model(name)
        take(whole, optimizer.build(whole), 0, 5)
        begun = optimizer.build(first)
        take(first, begun, 0, 3)
        second.load_state_dict(first.state_dict())
        resumed = optimizer.build(second)
        restore_optimizer(second, resumed, [(k, v.clone()) for k, v in optimizer_tensors(first, begun).items()])
        take(second, resumed, 3, 5)
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True)), name
        assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_every_parameter_has_the_role_that_its_name_says() -> None:
    expected = {
        "*norm.weight": "norm", "*norm.bias": "norm", "*embedding.*.weight": "embedding", "lm_head.weight": "head",
        "*.mixer.?.weight": "hidden", "*.cross.?.weight": "hidden", "*.experts.*": "hidden", "*A_log": "vector",
        "*.router.weight": "hidden", "*.weight_hh_l0": "hidden", "*.bias_ih_l0": "bias", "*conv.weight": "vector",
        "*conv.bias": "bias", "lm_head.bias": "bias", "lm_head.dense.weight": "head", "*cross.score": "vector",
    }  # fmt: skip
    seen = set()
    for name in (*NEXT, "encoder", "pair", "recurrent pair"):
        for parameter, role in roles_of(model(name)).items():
            for pattern, expected_role in expected.items():
                if fnmatchcase(parameter, pattern):
                    seen.add(pattern)
                    assert role == expected_role, parameter
    assert seen == set(expected)


def test_groups_by_role_and_by_pattern_have_their_rate_and_decay() -> None:
    groups = (
        ParameterGroup(parameters="embedding", learning_rate_ratio=0.5, weight_decay=0.0),
        ParameterGroup(parameters="blocks.*.q.weight", learning_rate_ratio=2.0),
        ParameterGroup(parameters="blocks.1.mixer.q.weight", weight_decay=0.7),
    )
    for kind in (AdamW, Muon, Adafactor, Lion, SGD):
        built = model()
        optimizer = kind(weight_decay=0.3, groups=groups).build(built)
        set_learning_rate(optimizer, 0.01)
        names = {id(parameter): name for name, parameter in built.named_parameters()}
        settings = {
            names[id(p)]: (group["lr"], group["weight_decay"])
            for group in optimizer.param_groups
            for p in group["params"]
        }
        assert len(settings) == len(names)
        assert settings["embedding.token.weight"] == (0.005, 0.0)
        assert settings["blocks.0.mixer.q.weight"] == (0.02, 0.3)
        assert settings["blocks.1.mixer.q.weight"] == (0.01, 0.7)  # the last group that matches
        assert settings["blocks.0.mixer.k.weight"] == (0.01, 0.3)
        assert settings["final_norm.weight"] == (0.01, 0.0)


def test_what_requires_no_gradient_is_not_trained() -> None:
    for kind in (AdamW, Muon, Adafactor, Lion, SGD):
        built = model()
        for name, parameter in built.named_parameters():
            parameter.requires_grad_(".mixer." in name)
        before = {name: parameter.clone() for name, parameter in built.named_parameters()}
        take(built, kind(weight_decay=0.3).build(built), 0, 2)
        changed = {name for name, parameter in built.named_parameters() if not torch.equal(parameter, before[name])}
        assert changed == {name for name in before if ".mixer." in name}


def test_muon_has_the_hidden_matrices_and_adamw_the_rest() -> None:
    built = model()
    optimizer = Muon().build(built)
    take(built, optimizer, 0, 1)
    moments = {name: set(optimizer.state[p]) for name, p in built.named_parameters()}
    assert moments["blocks.0.mixer.q.weight"] == {"momentum_buffer"}
    for name in ("embedding.token.weight", "lm_head.weight", "final_norm.weight", "blocks.0.feedforward.experts.down"):
        assert moments[name] == {"step", "exp_avg", "exp_avg_sq"}, name


def test_muon_is_torchs_where_there_is_bfloat16_and_as_orthogonal_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, options = ((24, 24), (40, 16), (24, 24), (16, 40)), dict[str, Any](lr=0.01, weight_decay=0.1, momentum=0.9)
    for nesterov in (True, False):
        ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
        muon = MuonOptimizer(ours, options | {"nesterov": nesterov, "num_iterations": 5})
        torchs = torch.optim.Muon(theirs, **options, nesterov=nesterov, adjust_lr_fn="match_rms_adamw")
        monkeypatch.setattr(algorithms, "has_bfloat16", lambda device: True)
        for _ in range(3):
            for a, b in zip(ours, theirs, strict=True):
                a.grad = torch.randn(a.shape)
                b.grad = a.grad.clone()
            muon.step()
            torchs.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    monkeypatch.setattr(algorithms, "has_bfloat16", lambda device: False)
    for shape in shapes:
        u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
        matrix = u @ torch.diag(torch.linspace(0.1, 1.0, min(shape))) @ v  # the iteration lifts smaller values less
        direction = orthogonalize(torch.stack([matrix, -2 * matrix]), 5)[0]
        values = torch.diagonal(u.T @ direction @ v.T)  # in the same singular vectors
        assert direction.dtype == torch.float32
        assert (u @ torch.diag(values) @ v - direction).abs().max() < 1e-4
        assert values.min() > 0.6 and values.max() < 1.3


def test_a_group_that_matches_nothing_is_refused_before_a_run_is_written(tmp_path: Path, recipe: Recipe) -> None:
    groups = [{"parameters": "head"}, {"parameters": "block.*", "learning_rate_ratio": 2.0}]
    wrong = Recipe.parse(recipe.dump() | {"optimizer": {"kind": "lion", "groups": groups}})
    with pytest.raises(
        SpecError, match=r"optimizer.groups\[1\].parameters: 'block\.\*' matches no parameter; the nearest"
    ):
        start(tmp_path / "run", wrong, torch.device("cpu"))
    frozen = Recipe.parse(recipe.dump() | {"optimizer": {"groups": groups[:1]}, "trainable": ["blocks"]})
    with pytest.raises(SpecError, match=r"optimizer.groups\[0\].parameters: 'head' matches no trainable parameter"):
        start(tmp_path / "run", frozen, torch.device("cpu"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # torchao compiles its step
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # of torch's own compiler
def test_a_state_of_8_bits_takes_a_quarter_and_goes_on_to_the_bit() -> None:
    pytest.importorskip("torchao")

    def built() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 128))

    whole, first, second, optimizer = built(), built(), built(), AdamW(state_bits=8)
    take(whole, optimizer.build(whole), 0, 4)
    begun = optimizer.build(first)
    take(first, begun, 0, 2)
    tensors = optimizer_tensors(first, begun)
    assert tensors["0.weight:exp_avg.codes"].dtype == torch.uint8
    second.load_state_dict(first.state_dict())
    resumed = optimizer.build(second)
    restore_optimizer(second, resumed, [(name, tensor.clone()) for name, tensor in tensors.items()])
    take(second, resumed, 2, 4)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))
