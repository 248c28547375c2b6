"""Initial weights: the scheme's distribution, the seed's numbers."""

import math

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.models.build import build
from archetype.models.initialization import initialize
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward
from archetype.weights.linear import Linear, Table

D, LAYERS, VOCAB = 128, 4, 500


def decoder(scheme: spec.Initialization, **fields: object) -> spec.Decoder:
    block = spec.Block(
        wiring=spec.PreNorm(norm=spec.LayerNorm()),
        mixer=spec.Attention(num_heads=4, bias=spec.ProjectionBiases(q=True, k=True, v=True, o=True)),
        feedforward=spec.GatedMLP(d_ff=256, activation="silu", bias=True),
    )
    return spec.Decoder(
        vocab_size=VOCAB, context_length=64, d_model=D, layers=spec.repeat(LAYERS, block), final_norm=spec.RMSNorm(),
        embedding=spec.Embedding(position=spec.Learned()), initialization=scheme,
    ).replace(**fields)  # fmt: skip


def matrices(scheme: spec.Initialization, seed: int = 0) -> dict[str, Tensor]:
    return {name: p for name, p in build(decoder(scheme), seed).named_parameters() if p.dim() > 1}


def standard_error(parameter: Tensor) -> float:
    """Of the estimated standard deviation of normal numbers, relative."""
    return 1 / math.sqrt(2 * parameter.numel())


ADDED = ("mixer.o.weight", "feedforward.down.weight")


def test_normal_has_one_standard_deviation_everywhere() -> None:
    for name, parameter in matrices(spec.NormalInitialization(std=0.05)).items():
        assert parameter.std().item() == pytest.approx(0.05, rel=5 * standard_error(parameter)), name
        assert abs(parameter.mean().item()) < 5 * 0.05 / math.sqrt(parameter.numel()), name


def test_gpt2_shrinks_what_is_added_to_the_residual_stream() -> None:
    drawn = matrices(spec.GPT2Initialization(std=0.05))
    assert sum(name.endswith(ADDED) for name in drawn) == 2 * LAYERS
    for name, parameter in drawn.items():
        std = 0.05 / math.sqrt(2 * LAYERS) if name.endswith(ADDED) else 0.05
        assert parameter.std().item() == pytest.approx(std, rel=5 * standard_error(parameter)), name


def test_xavier_is_uniform_between_its_bounds() -> None:
    for name, parameter in matrices(spec.XavierInitialization()).items():
        if name.startswith("embedding."):
            assert parameter.std().item() == pytest.approx(D**-0.5, rel=5 * standard_error(parameter)), name
        else:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.99 * bound < parameter.abs().max().item() <= bound, name
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02), name


@pytest.mark.parametrize(
    "scheme",
    [spec.NormalInitialization(), spec.GPT2Initialization(), spec.XavierInitialization()],
    ids=lambda scheme: scheme.kind,
)
def test_norms_start_at_one_and_biases_at_zero(scheme: spec.Initialization) -> None:
    vectors = {name: p for name, p in build(decoder(scheme)).named_parameters() if p.dim() == 1}
    assert len(vectors) == LAYERS * (4 + 7) + 1
    for name, parameter in vectors.items():
        assert torch.equal(parameter, torch.full_like(parameter, 0.0 if name.endswith("bias") else 1.0)), name


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    first, again, other = (matrices(spec.GPT2Initialization(), seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_the_global_generator_neither_matters_nor_moves() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = matrices(spec.GPT2Initialization())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    again = matrices(spec.GPT2Initialization())
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_no_two_tensors_of_one_shape_are_alike() -> None:
    drawn = list(matrices(spec.NormalInitialization()).values())
    for index, one in enumerate(drawn):
        assert not any(one.shape == two.shape and torch.equal(one, two) for two in drawn[index + 1 :])


@pytest.mark.parametrize(
    "change",
    [
        {"head": spec.LanguageModelHead(tied=True)},
        {"embedding": spec.Embedding(norm=spec.LayerNorm())},
        {"final_norm": spec.NoNorm()},
        {"vocab_size": VOCAB, "context_length": 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_part_leaves_all_other_numbers_as_they_were(change: dict[str, object]) -> None:
    scheme = spec.NormalInitialization()
    before = dict(build(decoder(scheme)).named_parameters())
    after = dict(build(decoder(scheme, **change)).named_parameters())
    alike = {name for name in before if name in after and before[name].shape == after[name].shape}
    assert len(alike) > 40
    assert all(torch.equal(before[name], after[name]) for name in alike)


SIDES: dict[str, dict[str, object]] = {"encoder": {"cross_attention": None}, "decoder": {}}


def test_what_is_added_by_every_content_is_shrunk() -> None:
    """Cross-attention and experts add to the residual stream too; a bias for each expert starts at zero."""
    experts = spec.MixtureOfExperts(
        num_experts=4,
        experts_per_token=2,
        expert=spec.GatedMLP(d_ff=96, activation="silu", bias=True),
        shared=spec.MLP(d_ff=96, activation="silu"),
    )
    block = spec.Block(
        wiring=spec.PreNorm(norm=spec.RMSNorm()),
        mixer=spec.Attention(num_heads=4, score="additive", position=spec.RelativeBias()),
        cross_attention=spec.Attention(num_heads=4),
        feedforward=experts,
    )
    end = spec.NoNorm()
    stacks = {
        side: spec.Stack(layers=spec.repeat(2, block.replace(**of)), final_norm=end) for side, of in SIDES.items()
    }
    model = spec.EncoderDecoder(
        vocab_size=VOCAB, context_length=64, d_model=D, initialization=spec.GPT2Initialization(std=0.05), **stacks
    )
    added = ("mixer.o.weight", "cross.o.weight", "experts.down", "shared.down.weight")
    parameters, shrunk = dict(build(model).named_parameters()), set()
    assert {"encoder.position_bias.weight", "decoder.blocks.1.cross.o.weight"} <= set(parameters)
    for name, parameter in parameters.items():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() > 1:
            std = 0.05 / math.sqrt(2 * 4) if name.endswith(added) else 0.05
            shrunk |= {end for end in added if name.endswith(end)}
            assert parameter.std().item() == pytest.approx(std, rel=5 * standard_error(parameter)), name
    assert shrunk == set(added)


def test_xavier_takes_the_sizes_of_one_expert_and_not_their_number() -> None:
    mixture = spec.MixtureOfExperts(
        num_experts=7, experts_per_token=2, expert=spec.MLP(d_ff=96, activation="silu")
    )  # fmt: skip
    part = build_feedforward(mixture, Place(D))
    initialize(part, spec.XavierInitialization(), 1, seed=0)
    bound = math.sqrt(6 / (D + 96))
    for name in ("up", "down"):
        assert 0.99 * bound < getattr(part.experts, name).abs().max().item() <= bound


class Own(nn.Module):
    """A module that draws one of its tensors itself, and has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = nn.Parameter(torch.zeros(40, 40))
        self.bias = nn.Parameter(torch.ones(40))
        self.register_buffer("seen", torch.full((3,), 5.0))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        if name == "seen":
            tensor.zero_()
        elif name == "mine":
            tensor.uniform_(3.0, 4.0, generator=generator)
        return name in ("seen", "mine")


def test_a_module_draws_its_own_distribution_and_leaves_the_rest_to_the_scheme() -> None:
    model = nn.Sequential(nn.Linear(40, 40), Own())
    initialize(model, spec.NormalInitialization(), 1, seed=0)
    own = model[1]
    assert (own.mine >= 3).all() and own.mine.std().item() == pytest.approx(12**-0.5, rel=0.1)
    assert not own.bias.any()
    assert model[0].weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_what_a_module_draws_follows_the_seed_and_its_name() -> None:
    def drawn(seed: int, *before: nn.Module) -> Tensor:
        model = nn.Sequential(*before, Own())
        initialize(model, spec.NormalInitialization(), 1, seed)
        return model[-1].mine.detach()

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    assert not torch.equal(drawn(0), drawn(0, nn.Identity()))  # another name


def test_buffers_are_drawn_too() -> None:
    own = Own()
    initialize(own, spec.NormalInitialization(), 1, seed=0)
    assert torch.equal(own.seen, torch.zeros(3))


def test_a_model_without_storage_is_drawn_without_a_generator() -> None:
    with torch.device("meta"):
        own = Own()
    initialize(own, spec.NormalInitialization(), 1, seed=0)
    assert own.mine.is_meta


def test_matrices_and_tables_without_storage_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for name in ("kaiming_uniform_", "normal_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *options, **named: drawn.append(tensor.device.type))
    with torch.device("meta"):
        _ = Linear(2, 3, bias=False), Table(2, 3)
    assert drawn == []
    _ = Linear(2, 3, bias=False), Table(2, 3)
    assert drawn == ["cpu", "cpu"]


def test_a_deeper_stack_begins_with_the_same_layers() -> None:
    shallow = decoder(spec.NormalInitialization())
    deep = dict(build(spec.assign(shallow, [f"num_layers={LAYERS + 2}"])).named_parameters())
    assert all(torch.equal(p, deep[name]) for name, p in build(shallow).named_parameters())
