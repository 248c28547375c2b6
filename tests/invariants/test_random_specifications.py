"""Any specification that is accepted is trained, cast, cached, counted, saved and exported, or refused in words."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from archetype import spec
from archetype.convert.hf_folder import compare, write_model
from archetype.errors import ArchetypeError
from archetype.estimate.report import cost_report
from archetype.families.registry import family_for
from archetype.models.build import Model, build
from archetype.runs.directory import Run, read_run_model, write_run_spec, write_weights
from archetype.spec import to_yaml
from tests.helpers.combinations import EXACT
from tests.helpers.inputs import example_inputs
from tests.helpers.passes import forward_step, logits_or_hidden
from tests.helpers.strategies import models
from tests.helpers.weights import distance, randomize

LONGEST_MESSAGE = 300  # characters


def trains(drawn: spec.ModelSpec, model: Model, autocast: bool) -> None:
    """A pass forward and backward in training: finite numbers, unless dropout multiplies by more than 10."""
    model.train()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(**example_inputs(drawn))
    loss = logits_or_hidden(output).float().square().mean()
    loss = loss if output.aux_loss is None else loss + output.aux_loss
    loss.backward()
    if all(float(rate) <= 0.9 for rate in re.findall(r"dropout: ([-+.e\d]+)", to_yaml(drawn))):
        assert loss.isfinite()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name
    model.zero_grad()


def costs_what_is_built(drawn: spec.ModelSpec, model: Model) -> None:
    """Parameters and state bytes are those of the report; its numbers are whole and not negative."""
    length = None if isinstance(drawn, spec.VisionEncoder) else 9  # an image has its own
    report = cost_report(drawn, batch=4, length=length, dtype="float32")
    assert report.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    numbers = [*report.flops.values(), *report.memory.values(), *report.state.values()]
    assert all(number >= 0 for number in numbers if isinstance(number, int))
    if isinstance(drawn, spec.CausalSpec):
        assert report.state["bytes"] == model.new_state(4, 9).nbytes


def reads_the_same_with_a_state(drawn: spec.ModelSpec, model: Model) -> None:
    """Token by token as whole; the tokens after the first chunk need what the state holds."""
    if not isinstance(drawn, spec.CausalSpec):
        return
    exact = model.double()
    tokens = example_inputs(drawn)["tokens"]
    whole, state = exact(tokens).logits, exact.new_state(len(tokens), tokens.shape[1])
    for start, end in ((0, 4), (4, 5), (5, 9)):
        logits, state = forward_step(exact, tokens[:, start:end], state)
        assert distance(logits, whole[:, start:end]) < EXACT


def saves_and_reads(drawn: spec.ModelSpec, model: Model, folder: Path) -> None:
    """The file of a specification is the specification; the weights of a run are the weights, to the bit."""
    folder.mkdir()
    run = Run(folder)
    write_run_spec(run, drawn)
    write_weights(run, model)
    again = read_run_model(run)
    assert again.spec == drawn
    for (name, ours), theirs in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def exports_or_says_why(drawn: spec.ModelSpec, model: Model, folder: Path) -> None:
    """Written, read back and compared to the bit; or refused in one line."""
    folder.mkdir()
    try:
        write_model(model, family_for(drawn), folder)
    except ArchetypeError as error:
        assert "\n" not in str(error) and len(str(error)) <= LONGEST_MESSAGE, str(error)
        return
    compare(model, folder)


def holds(drawn: spec.ModelSpec) -> None:
    """All of the above, of one specification."""
    model = build(drawn)
    randomize(model)
    trains(drawn, model, autocast=False)
    trains(drawn, model, autocast=True)
    model.eval()
    costs_what_is_built(drawn, model)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        saves_and_reads(drawn, model, Path(folder) / "run")
        exports_or_says_why(drawn, model, Path(folder) / "export")
        reads_the_same_with_a_state(drawn, model)


def of(count: int) -> Callable[[Callable[[spec.ModelSpec], None]], Callable[[], None]]:
    """That many drawn specifications."""
    return lambda test: settings(max_examples=count, suppress_health_check=list(HealthCheck))(given(models())(test))


@pytest.mark.shapes
@of(25)
def test_some_specifications_hold(drawn: spec.ModelSpec) -> None:
    holds(drawn)


@pytest.mark.slow
@of(1000)
def test_a_thousand_specifications_hold(drawn: spec.ModelSpec) -> None:
    holds(drawn)
