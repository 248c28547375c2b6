"""Any specification that is accepted is trained, cast, cached, counted, saved and exported, or refused in words."""

import contextlib
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from archetype import spec
from archetype.checking.construction import (
    is_built,
    is_drawn,
    parameters_are_counted,
    round_trip,
    state_is_counted,
)
from archetype.checking.decoding import chunks_are_whole, state_changes_nothing
from archetype.checking.files import export_is_honest, run_keeps_bits
from archetype.checking.gradients import autocast_is_finite
from archetype.checking.subject import Inapplicable, Subject
from archetype.estimate.report import cost_report
from archetype.models.build import Model
from archetype.spec import to_yaml
from tests.helpers.inputs import example_inputs
from tests.helpers.passes import logits_or_hidden
from tests.helpers.strategies import models


def trains(drawn: spec.ModelSpec, model: Model) -> None:
    """A pass forward and backward in training: finite numbers, unless dropout multiplies by more than 10."""
    model.train()
    torch.manual_seed(0)
    output = model(**example_inputs(drawn))
    loss = logits_or_hidden(output).float().square().mean()
    loss = loss if output.aux_loss is None else loss + output.aux_loss
    loss.backward()
    if is_tame(drawn):
        assert loss.isfinite()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name


def is_tame(drawn: spec.ModelSpec) -> bool:
    """Whether no dropout multiplies by more than 10."""
    return all(float(rate) <= 0.9 for rate in re.findall(r"dropout: ([-+.e\d]+)", to_yaml(drawn)))


def costs_are_counts(drawn: spec.ModelSpec) -> None:
    """The numbers of a report are not negative."""
    report = cost_report(drawn, batch=4, length=None if isinstance(drawn, spec.VisionEncoder) else 9, dtype="float32")
    numbers = [*report.flops.values(), *report.memory.values(), *report.state.values()]
    assert all(number >= 0 for number in numbers if isinstance(number, int))


CHECKS = (
    round_trip, is_built, parameters_are_counted, state_is_counted, is_drawn, run_keeps_bits, export_is_honest,
)  # fmt: skip
IN_FLOAT64 = (state_changes_nothing, chunks_are_whole)


def holds(drawn: spec.ModelSpec) -> None:
    """All of the above, and what `archetype check` asks of a part, of one specification."""
    subject = Subject(drawn)
    trains(drawn, subject.built())
    costs_are_counts(drawn)
    if is_tame(drawn):
        autocast_is_finite(subject)
    with torch.no_grad():
        for check, model in [(check, subject) for check in CHECKS] + [(check, subject.exact) for check in IN_FLOAT64]:
            with contextlib.suppress(Inapplicable):
                check(model)


def of(count: int) -> Callable[[Callable[[spec.ModelSpec], None]], Callable[[], None]]:
    """That many drawn specifications."""
    return lambda test: settings(max_examples=count, suppress_health_check=list(HealthCheck))(given(models())(test))


@pytest.mark.shapes
@of(5)
def test_some_specifications_hold(drawn: spec.ModelSpec) -> None:
    holds(drawn)


@pytest.mark.slow
@of(1000)
def test_a_thousand_specifications_hold(drawn: spec.ModelSpec) -> None:
    holds(drawn)
