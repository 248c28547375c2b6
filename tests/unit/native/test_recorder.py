"""What a recorder sees, leaves out, leaves to torch and refuses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archetype.native.kernels import FUSED, Kernels, plain_operations, without_context
from archetype.native.recorder import Recorder, TorchCall
from archetype.native.translations import pointwise
from tests.helpers.cases import case
from tests.helpers.examples import examples
from tests.helpers.kernels import kernels


@without_context
def kernels_here(chosen: Kernels, x: Tensor) -> Kernels:
    return chosen


def test_what_needs_the_host_or_chance_is_refused() -> None:
    refused: dict[str, Callable[[Tensor], object]] = {
        "item": lambda x: x.sum().item(), "tolist": lambda x: x.tolist(), "bool": lambda x: bool(x.sum() > 0),
        "int": lambda x: int(x.sum()), "numpy": lambda x: x.numpy(), "nonzero": lambda x: x.nonzero(),
        "unique": lambda x: x.unique(), "mask": lambda x: x[x > 0], "bernoulli": lambda x: torch.bernoulli(x.abs()),
    }  # fmt: skip
    for name, function in refused.items():
        x = torch.ones(3)
        with case(name), torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
            function(x)
        assert recorder.refusal is not None, name
        assert kernels_here(x) is FUSED


def test_operations_without_a_kernel_are_called_again() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0]])
    with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
        values, order = (x * 2).sort(-1)
        y = values + order
    replay = recorder.finish([y])
    assert [type(segment) is TorchCall for segment in replay.segments] == [False, True, False]
    x.copy_(torch.tensor([[1.0, 5.0, 4.0]]))
    replay(2)
    assert y.tolist() == [[2.0, 10.0, 11.0]]


def test_operations_in_place_without_a_kernel_are_called_again() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0]])
    with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
        y = x * 2
        y[:, 1] = -5.0
    replay = recorder.finish([y])
    x.add_(1.0)
    replay(2)
    assert y.tolist() == [[8.0, -5.0, 6.0]]


def test_remainders_of_floats_are_torchs() -> None:
    """The kernel has integers alone."""
    x, n = torch.tensor([7.5, -1.0, 0.25]), torch.tensor([7, -1, 3])
    with torch.inference_mode(), Recorder(kernels("native"), [x, n]) as recorder:
        results = [x % 2.0, torch.floor_divide(x, 2.0), n % 2]
    replay = recorder.finish(results)
    x.add_(4.0)
    replay(2)
    assert [result.tolist() for result in results] == [[1.5, 1.0, 0.25], [5.0, 1.0, 2.0], [1, 1, 1]]


def test_constants_are_computed_once_and_what_nobody_reads_never() -> None:
    x, w = torch.ones(4), torch.arange(4.0)
    with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
        factor = (w + 1).exp()
        x.cos()
        y = x * factor
    replay = recorder.finish([y])
    assert [len(segment) for segment in replay.segments if not isinstance(segment, TorchCall)] == [1]
    assert len(recorder.calls) == 4


def test_what_is_changed_in_place_starts_anew_at_each_replay() -> None:
    x, w = torch.ones(3), torch.arange(3.0)
    with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
        total = torch.zeros(3)
        total.add_(x)
        copy = w.clone().add_(x)
        part = torch.empty(3).copy_(w).mul_(x)
        joined = torch.cat((w, x)).clone()
        joined[:3].add_(x)
    results = [total, copy, part, joined]
    replay = recorder.finish(results)
    for factor in (2.0, 3.0, 3.0):
        x.fill_(factor)
        replay(2)
        expected = [x, w + x, w * x, torch.cat((w + x, x))]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(results, expected, strict=True))


def test_what_a_step_did_not_make_it_may_not_change() -> None:
    x, count = torch.ones(3), torch.zeros(3)
    for change in (lambda: count.add_(x), lambda: torch.tensor([1.0]).add_(x[0])):
        with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
            change()
        assert recorder.refusal is not None and "did not make" in recorder.refusal
    assert count.tolist() == [1.0, 1.0, 1.0]  # what is not recorded is still computed, once


def test_inputs_that_a_step_changes_go_on_from_there() -> None:
    total, x = torch.zeros(3), torch.ones(3)
    with torch.inference_mode(), Recorder(kernels("native"), [total, x]) as recorder:
        total.copy_(total + x)
    replay = recorder.finish([total])
    for _ in range(4):
        replay(2)
    assert total.tolist() == [5.0] * 3


def test_what_has_no_context_is_recorded_where_it_is_called() -> None:
    @without_context
    def add_one(chosen: Kernels, x: Tensor) -> Tensor | None:
        return pointwise(chosen, "add", torch.empty_like(x), x, 1.0)

    @without_context
    def add_two(chosen: Kernels, x: Tensor) -> Tensor | None:
        y = add_one(x)
        assert y is not None
        return add_one(y)

    x = torch.ones(2)
    with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
        assert kernels_here(x) is recorder and not FUSED.support(x)
        y = add_two(x)
    assert y is not None and len(recorder.calls) == 2 and y.tolist() == [3.0, 3.0]
    replay = recorder.finish([y])
    replay(1)
    assert y.tolist() == [3.0, 3.0]
    x.fill_(5.0)
    replay(1)
    assert y.tolist() == [7.0, 7.0]


def test_values_read_on_the_host_within_a_form_are_refused() -> None:
    @without_context
    def read(chosen: Kernels, x: Tensor) -> float:
        return x.sum().item()

    x = torch.ones(2)
    with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
        assert read(x) == 2.0
    assert recorder.refusal is not None and "item" in recorder.refusal


def test_other_threads_compute_at_once_while_one_records() -> None:
    x = torch.ones(2)
    with ThreadPoolExecutor(1) as pool, torch.inference_mode(), Recorder(kernels("native"), [x]):
        assert pool.submit(kernels_here, x).result() is FUSED
        assert pool.submit(FUSED.support, x).result()
    with ThreadPoolExecutor(1) as pool, plain_operations():
        assert pool.submit(FUSED.support, x).result() and not FUSED.support(x)


@examples(8)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("+*@")), min_size=1, max_size=12),
    st.integers(2, 4),
)
def test_threads_meet_wherever_one_needs_what_another_writes(steps: list[tuple[int, int, str]], threads: int) -> None:
    """Products that all threads share, and sums of one thread, in any order of reading: as one thread computes them."""
    generator = torch.Generator().manual_seed(len(steps))
    x = torch.randn(2, 160, generator=generator)
    weights = [torch.randn(160, 160, generator=generator) / 13 for _ in range(3)]
    values = [x]
    with torch.inference_mode(), Recorder(kernels("native"), [x]) as recorder:
        for first, second, kind in steps:
            a, b = values[first % len(values)], values[second % len(values)]
            result = (
                a + b if kind == "+" else a * b if kind == "*" else torch.nn.functional.linear(a, weights[second % 3])
            )
            values.append(result.clamp(-9, 9))
    replay = recorder.finish(values[1:])
    replay(1)
    alone = [value.clone() for value in values]
    for _ in range(5):
        replay(threads)
        assert all(torch.equal(one, other) for one, other in zip(alone, values, strict=True))
