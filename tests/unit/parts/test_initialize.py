"""Initial weights: the scheme's distribution, the seed's numbers."""

import math

import pytest
import torch
from torch import Tensor

from archetype import spec
from archetype.model import build

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
    ).changed(**fields)  # fmt: skip


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
    found = matrices(spec.GPT2Initialization(std=0.05))
    assert sum(name.endswith(ADDED) for name in found) == 2 * LAYERS
    for name, parameter in found.items():
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
    found = list(matrices(spec.NormalInitialization()).values())
    for index, one in enumerate(found):
        assert not any(one.shape == two.shape and torch.equal(one, two) for two in found[index + 1 :])


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


def test_a_deeper_stack_begins_with_the_same_layers() -> None:
    shallow = decoder(spec.NormalInitialization())
    deep = dict(build(spec.assign(shallow, [f"num_layers={LAYERS + 2}"])).named_parameters())
    assert all(torch.equal(p, deep[name]) for name, p in build(shallow).named_parameters())
