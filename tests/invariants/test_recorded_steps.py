"""A recorded step is the model's own: replayed beside torch's, for every preset and for drawn specifications."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from archetype import spec
from archetype.families import preset, presets
from archetype.generate.step import DecodeStep, prefill
from archetype.models.build import build
from archetype.models.causal import CausalModel
from archetype.weights.packed import is_packed
from archetype.weights.packing import pack_model
from archetype.weights.quantized import quantize_model
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.kernels import kernels
from tests.helpers.strategies import models
from tests.helpers.weights import distance, randomize

PRESETS = [name for name in presets() if name.endswith("-tiny") and isinstance(preset(name), spec.CausalSpec)]
ASKS_THE_HOST = {"megabyte-tiny"}  # whether a patch is complete decides what is computed


def steps(model: CausalModel, count: int, rows: int = 3, recorded: bool = True) -> tuple[list[Tensor], bool]:
    """The logits of steps after prompts of different lengths, and whether they were replayed."""
    capacity = min(model.spec.context_length, 9 + count)
    tokens = torch.randint(0, model.spec.vocab_size, (rows, 9 + count), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([9, 4, 7])[:rows].clamp(max=capacity - 1)
    state = model.new_state(rows, capacity)
    for row, length in enumerate(lengths.tolist()):  # each alone: torch's products of several rows differ in last bits
        _, fresh = prefill(model, [tokens[row, :length].tolist()], model.new_state(1, length))
        with torch.inference_mode():
            state.insert(torch.tensor([row]), fresh)
    step = DecodeStep(model, state)
    if not recorded:
        step._library = None
    count = min(count, capacity - int(lengths.max()))
    return [step(tokens[:, place : place + 1]).clone() for place in range(9, 9 + count)], step.replay is not None


@pytest.mark.parametrize("name", every(8, PRESETS))
def test_thirty_replayed_steps_of_every_preset_are_as_torch_computes_them(name: str) -> None:
    """Past the windows of 32."""
    kernels("native")
    model = randomize(build(preset(name)))
    assert isinstance(model, CausalModel)
    (replayed, recorded), (plain, _) = steps(model, 30), steps(model, 30, recorded=False)
    assert recorded == (name not in ASKS_THE_HOST)
    for ours, theirs in zip(replayed, plain, strict=True):
        assert distance(ours, theirs) < 1e-5
        assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_bfloat16_is_no_further_from_float32_than_torchs_own() -> None:
    kernels("native")
    for name in ("llama-tiny", "gpt2-tiny", "gemma2-tiny", "mistral-tiny", "mamba-tiny", "bloom-tiny"):
        model = randomize(build(preset(name)).bfloat16().float())
        assert isinstance(model, CausalModel)
        exact = torch.stack(steps(model, 12, recorded=False)[0])
        errors = [
            (torch.stack(steps(model.bfloat16(), 12, recorded=recorded)[0]).float() - exact).norm() / exact.norm()
            for recorded in (True, False)
        ]
        with case(name, *map(float, errors)):
            assert errors[0] < max(1.3 * errors[1], 1e-3) and errors[0] < 0.06


@pytest.mark.parametrize("name", every(16, PRESETS))
def test_every_preset_decodes_with_weights_of_four_bits(name: str) -> None:
    model = randomize(build(preset(name)))
    assert isinstance(model, CausalModel)
    quantize_model(model, 4)
    (replayed, _), (plain, _) = steps(model, 3), steps(model, 3, recorded=False)
    for ours, theirs in zip(replayed, plain, strict=True):
        assert distance(ours, theirs) < 1e-2


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_of_few_bits_are_replayed_as_they_are_multiplied(bits: int) -> None:
    kernels("native")
    for name in ("llama-tiny", "mixtral-tiny", "mamba-tiny", "deepseek-v2-tiny", "deepseek-v4-tiny", "gpt2-tiny"):
        model = randomize(build(preset(name)))
        assert isinstance(model, CausalModel)
        quantize_model(model, bits)
        (replayed, recorded), (plain, _) = steps(model, 10), steps(model, 10, recorded=False)
        assert recorded
        with case(
            name
        ):  # vectors that differ in last bits become other integers: 2e-5 of each of about twenty products
            assert all(distance(ours, theirs) < 4e-4 for ours, theirs in zip(replayed, plain, strict=True))


def test_lossless_weights_are_replayed_as_those_of_bfloat16_to_the_bit() -> None:
    kernels("native")
    for name in ("llama-tiny", "mixtral-tiny", "mamba-tiny", "deepseek-v2-tiny", "deepseek-v4-tiny", "gpt2-tiny"):
        model = randomize(build(preset(name).replace(d_model=256), dtype=torch.bfloat16))
        assert isinstance(model, CausalModel)
        plain, recorded = steps(model, 10)
        pack_model(model, "lossless")
        packed, recorded_too = steps(model, 10)
        alone, _ = steps(model, 10, rows=1)
        with case(name):
            assert is_packed(model) and recorded == recorded_too
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(packed, plain, strict=True))
            assert all(torch.equal(many[0], one[0]) for many, one in zip(packed[1:], alone[1:], strict=True))


def test_a_row_among_others_is_bit_for_bit_the_row_alone() -> None:
    kernels("native")
    for name in ("llama-tiny", "gemma2-tiny", "mamba-tiny", "mixtral-tiny", "deepseek-v2-tiny"):
        model = randomize(build(preset(name)))
        assert isinstance(model, CausalModel)
        together, alone = steps(model, 12, rows=3)[0], steps(model, 12, rows=1)[0]
        with case(name):
            assert all(torch.equal(many[0], one[0]) for many, one in zip(together[1:], alone[1:], strict=True))


def test_a_wrong_token_and_a_place_behind_the_cache_are_refused() -> None:
    """As torch refuses them; the next step of a token that there is computes as before."""
    kernels("native")
    for name in ("llama-tiny", "mixtral-tiny", "mamba-tiny", "deepseek-v2-tiny", "gpt2-tiny"):
        for bits in (None, 8):
            model = randomize(build(preset(name)))
            assert isinstance(model, CausalModel)
            if bits is not None:
                quantize_model(model, bits)
            state = model.new_state(1, 4)
            step, token = DecodeStep(model, state), torch.tensor([[5]])
            step(token)
            assert step.replay is not None
            with case(name, bits):
                for wrong in (-1, model.spec.vocab_size, 2**62):
                    cause = f"index {wrong} is out of range for size {model.spec.vocab_size}"
                    with pytest.raises(IndexError, match=cause):
                        step(torch.tensor([[wrong]]))
                state.lengths.fill_(1)
                assert torch.isfinite(step(token)).all()
                if name != "mamba-tiny":  # whose state has no places
                    state.lengths.fill_(4)
                    with pytest.raises(IndexError, match="index 4 is out of range for size 4"):
                        step(token)


def chooses_among_equals(drawn: spec.ModelSpec) -> bool:
    """Whether keys are chosen by scores of which many are 0: whichever of them may be taken."""
    parts = (part for stack in drawn.stacks for _, _, part in stack.parts())
    return any(getattr(part, "index", None) is not None for part in parts)


def replays(drawn: spec.ModelSpec, count: int) -> None:
    """A drawn specification's steps, replayed where they can be recorded."""
    if not isinstance(drawn, spec.CausalSpec) or chooses_among_equals(drawn):
        return
    kernels("native")
    model = randomize(build(drawn))
    assert isinstance(model, CausalModel)
    (replayed, _), (plain, _) = steps(model, count), steps(model, count, recorded=False)
    if all(logits.isfinite().all() for logits in plain):
        assert all(distance(ours, theirs) < 1e-4 for ours, theirs in zip(replayed, plain, strict=True))


def of(count: int) -> Callable[[Callable[[spec.ModelSpec], None]], Callable[[], None]]:
    """That many drawn specifications."""
    return lambda test: settings(max_examples=count, suppress_health_check=list(HealthCheck))(given(models())(test))


@of(12)
def test_steps_of_some_specifications(drawn: spec.ModelSpec) -> None:
    replays(drawn, 8)


@pytest.mark.slow
@of(400)
def test_steps_of_four_hundred_specifications(drawn: spec.ModelSpec) -> None:
    """About half of all that are drawn write."""
    replays(drawn, 50)
