"""POST /api/transplant: what a changed specification keeps of a model's weights, and how far its output moves.

Without `compare`, only shapes are computed, and the model is not loaded. With it, the new model exists until the
response, next to the served one, which does not change.
"""

import asyncio
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from operator import mul
from typing import Annotated, Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from pydantic import Field
from torch import nn
from typing_extensions import TypedDict

from archetype.api.transplanting import cuts_of, not_measured, origins_of, report_of, rows_of
from archetype.apps.serve.body import Body
from archetype.apps.serve.errors import invalid_value
from archetype.apps.serve.exchange import Exchange, finite
from archetype.apps.serve.inspections import bytes_of_pass
from archetype.apps.serve.limits import MAX_TRANSPLANTED_LAYERS, MAX_TRANSPLANTED_SIZE
from archetype.apps.serve.served_model import ServedModel
from archetype.apps.serve.spec_problems import EDITOR, Answered, Problems, answered, problems
from archetype.apps.serve.specs import Origin, file_name, read
from archetype.apps.serve.worker import compute_with
from archetype.errors import SpecError
from archetype.inspection.trace import copy_sharing_tensors
from archetype.io.yaml import yaml_value
from archetype.models.build import Model, build_on_meta
from archetype.models.file import parse
from archetype.models.spec import ModelSpec
from archetype.nn.ledger import DRAWN, Taken
from archetype.nn.transfer import Cuts
from archetype.spec.edit import assign
from archetype.surgery.choices import read_choices, read_layers
from archetype.surgery.layers import MEASURED, are_free, assigned, kept_layers
from archetype.surgery.measure import influences
from archetype.surgery.operation import check_kinds, fill
from archetype.surgery.proof import POSITIONS, Comparison, Outputs, outputs
from archetype.surgery.report import Report
from archetype.weights.packed import is_packed

# one plan at a time: while the user types, those of older texts are dropped before they begin
PLANNING = ThreadPoolExecutor(1, "archetype-plans")
# the newest measurement of each model: its tokens, and the influence of each layer
MEASUREMENTS: WeakKeyDictionary[ServedModel, tuple[bytes, list[float]]] = WeakKeyDictionary()
TOP = 5  # most likely tokens of each model at a position


class TransplantRequest(Body):
    """POST /api/transplant.

    Attributes:
        model: donor of the weights.
        source: a whole new specification in YAML, instead of `changes`.
        changes: assignments path=value on the model's specification.
        layers: the donor's layer of each new layer, such as 0-5,5,6-11; or how they are chosen: influence on the text,
            first or random.
        ways: how several weights become one, such as heads=first.
        compare: whether to fill the new model and to compare its output with the donor's.
        text: text to compare on, and to measure influence on (default: of Python's library).
    """

    model: str | None = None
    source: str | None = None
    changes: Annotated[list[str], Field(max_length=1024)] | None = None
    layers: str | None = None
    ways: Annotated[list[str], Field(default_factory=list, max_length=64)]
    compare: bool = False
    text: str | None = None

    expected: ClassVar[dict[str, str]] = {}


class NextTokens(TypedDict):
    """Most likely next tokens of both models at a position, and their probabilities."""

    tokens: list[str]
    before: list[float | int | None]
    after: list[float | int | None]


class ComparedRow(TypedDict):
    tokens: list[str]
    kl: list[float | int | None]
    next: list[NextTokens]


class Transplanted(Answered):
    command: str
    sizes: dict[str, int]
    donated: dict[str, int]
    report: dict[str, Any]
    rows: list[ComparedRow]


class Plan(NamedTuple):
    """A transplant of shapes: both models are on the meta device."""

    spec: ModelSpec
    cuts: Cuts
    donor: Model
    model: Model
    report: Report


async def transplant(exchange: Exchange, body: TransplantRequest) -> Transplanted | Problems:
    """Respond with the report of a transplant that nothing keeps."""
    if (body.source is None) == (body.changes is None):
        raise invalid_value("source", "send either source or changes")
    models = exchange.app.models
    place = models.source(body.model).place
    in_turn = partial(asyncio.get_running_loop().run_in_executor, PLANNING)
    measures = body.layers == MEASURED
    try:
        if not body.compare and not measures:
            spec = await asyncio.to_thread(read, models, Origin(model=body.model))
            plan = await in_turn(planned, spec, body, torch.float32)
            return answer(plan, [], body, place)
        async with models.use(body.model) as model:
            if body.compare:
                check_comparable(model)
            measured = (
                await influence(model, await in_turn(changed, model.lm.spec, body), body.text) if measures else ()
            )
            plan = await in_turn(planned, model.lm.spec, body, model.lm.model.dtype, measured)
            return answer(*(await compared(model, plan, body.text) if body.compare else (plan, [])), body, place)
    except SpecError as error:
        return problems(error, body.source or "")  # a wrong specification is an answer, not an error


def check_comparable(model: ServedModel) -> None:
    """Check that the served model has next tokens to compare, and weights to take over."""
    if not model.lm.spec.continues_text:
        cause = f"{model.name} (kind {model.lm.spec.kind}) predicts no next token"
        raise invalid_value("compare", f"{cause}; leave compare out")
    if is_packed(model.lm.model):
        cause = f"{model.name} has packed matrices, which cannot be changed"
        raise invalid_value("compare", f"{cause}; serve the unpacked model")


async def influence(model: ServedModel, spec: ModelSpec, text: str | None) -> list[float]:
    """Measure the influence of the served model's layers, one row of the text at a time between two engine steps.

    Raises:
        SpecError: the model predicts no next token.
        ApiError: there is not enough memory.
    """
    if not model.lm.spec.continues_text:
        raise not_measured()
    lm = replace(model.lm, model=copy_sharing_tensors(model.lm.model))  # with the hooks that measure
    rows = await model.worker.text(lambda: rows_of(lm, spec, text))
    key = b"".join(row.numpy().tobytes() for row in rows)
    if (known := MEASUREMENTS.get(model)) is None or known[0] != key:
        with model.memory.hold(bytes_of_pass(lm.spec, rows[0].shape[1]), "the influence of the layers"):
            of_rows = [await model.worker.run(partial(influences, lm.model, [row])) for row in rows]
        lengths = [row.shape[1] for row in rows]
        means = [sum(map(mul, of_layer, lengths)) / sum(lengths) for of_layer in zip(*of_rows, strict=True)]
        MEASUREMENTS[model] = known = key, means
    return known[1]


def changed(old: ModelSpec, body: TransplantRequest) -> ModelSpec:
    """Return the new specification.

    Raises:
        SpecError: it is wrong, of another kind than the model's, or too large.
    """
    spec = assign(old, body.changes or []) if body.source is None else parse(yaml_value(body.source, EDITOR))
    if max(spec.num_layers, old.num_layers) > MAX_TRANSPLANTED_LAYERS:
        cause = f"has more than {MAX_TRANSPLANTED_LAYERS:,} layers, too many for the web UI"
        raise SpecError("layers", cause, "use archetype transplant")
    check_kinds(old, spec)
    return spec


def planned(old: ModelSpec, body: TransplantRequest, dtype: torch.dtype, measured: Sequence[float] = ()) -> Plan:
    """Return the transplant that a request asks for, computed from shapes alone.

    Args:
        measured: influence of each of the donor's layers, if the request asks for it.

    Raises:
        SpecError: the specification or the choices are wrong, or the models are of different kinds.
    """
    spec = changed(old, body)
    layers = None if body.layers is None else read_layers(body.layers)
    if isinstance(layers, str):
        is_free = are_free(old, body.changes or ())
        layers = kept_layers(layers, old.stacks[0], spec.stacks[0], lambda: measured, 0, is_free)
    spec = spec if body.changes is None else assigned(old, body.changes, layers)
    cuts = Cuts(layers, read_choices(body.ways))
    donor, sizes = on_meta(old, dtype), on_meta(spec, dtype).state_dict().values()
    if (size := max((max(tensor.shape, default=0) for tensor in sizes), default=0)) > MAX_TRANSPLANTED_SIZE:
        cause = f"a tensor has {size:,} rows or columns, too many for the web UI"
        raise SpecError(EDITOR, cause, "use archetype transplant")
    model, ledger = fill(donor, spec, cuts)
    return Plan(spec, cuts, donor, model, report_of(old, spec, cuts, ledger))


@lru_cache(maxsize=4)  # the donor stays the same while the user types
def on_meta(spec: ModelSpec, dtype: torch.dtype) -> Model:
    """Return a model that has shapes only."""
    return build_on_meta(spec).to(dtype)


async def compared(model: ServedModel, plan: Plan, text: str | None) -> tuple[Plan, list[ComparedRow]]:
    """Fill the new model, and run both models on a text, row by row.

    Both run in the served model's thread between two steps of the engine, so other requests wait for one pass at most.

    Raises:
        ApiError: there is not enough memory.
    """
    worker, spec = model.worker, plan.spec
    # hooks that measure the donor are on a copy of its modules, so that the engine's passes do not run into them
    lm = replace(model.lm, model=copy_sharing_tensors(model.lm.model))
    rows = await worker.text(lambda: rows_of(lm, spec, text))
    weights = sum(tensor.nbytes for tensor in (*plan.model.parameters(), *plan.model.buffers()))
    needed = weights + sum(bytes_of_pass(each, rows[0].shape[1]) for each in (lm.spec, spec))
    thread, held = ThreadPoolExecutor(1, "archetype-transplant", compute_with, (torch.get_num_threads(),)), ExitStack()
    elsewhere = partial(asyncio.get_running_loop().run_in_executor, thread)
    try:
        held.enter_context(model.memory.hold(needed, "the comparison with a new model"))
        cuts = await elsewhere(cuts_of, lm, spec, rows, plan.cuts.layers, plan.cuts.choices)
        new, ledger = await elsewhere(fill, lm.model, spec, cuts)
        models: Any = (lm.model, new)  # both predict the next token
        comparison, answers = Comparison(new.dtype, origins_of(lm.spec, spec, cuts)), []
        for tokens in rows:
            before, after = [await worker.run(partial(outputs, each, tokens)) for each in models]
            answers.append(await elsewhere(compared_row, model, comparison, tokens, before, after))
        return plan._replace(report=report_of(lm.spec, spec, cuts, ledger, comparison.proof())), answers
    finally:
        # if the client leaves, the thread needs the memory until its work ends
        thread.submit(held.close)
        thread.shutdown(wait=False)


def compared_row(
    model: ServedModel, comparison: Comparison, tokens: torch.Tensor, before: Outputs, after: Outputs
) -> ComparedRow:
    """Add a row to the comparison, and return what the web UI shows of it."""
    divergences = comparison.add(tokens, before, after)
    return {
        "tokens": [_name(model, id) for id in tokens[0].tolist()],
        "kl": [_short(value) for value in divergences.tolist()],
        "next": list(_next_tokens(model, before, after)),
    }


@torch.inference_mode()
def _next_tokens(model: ServedModel, before: Outputs, after: Outputs) -> Iterator[NextTokens]:
    width = max(output.logits.shape[-1] for output in (before, after))
    for pieces in zip(*(output.logits[0].split(POSITIONS) for output in (before, after)), strict=True):
        # a token that only one model has is impossible for the other
        p, q = (nn.functional.pad(logits.float().softmax(-1), (0, width - logits.shape[-1])) for logits in pieces)
        ids = torch.cat([each.topk(min(TOP, width)).indices for each in (p, q)], -1)  # (64, 2 TOP)
        columns = (ids.tolist(), p.gather(-1, ids).tolist(), q.gather(-1, ids).tolist())
        for row in zip(*columns, strict=True):
            likely = {id: (x, y) for id, x, y in zip(*row, strict=True)}
            order = sorted(likely, key=lambda id: -max(likely[id]))
            yield {
                "tokens": [_name(model, id) for id in order],
                "before": [_short(likely[id][0]) for id in order],
                "after": [_short(likely[id][1]) for id in order],
            }


def answer(plan: Plan, rows: list[ComparedRow], body: TransplantRequest, place: str) -> Transplanted:
    """Return the response for a transplant."""
    tensors, donors = plan.report.ledger.tensors, plan.donor.state_dict()
    sizes = {name: tensor.numel() for name, tensor in plan.model.state_dict().items() if name in tensors}
    return {
        **answered(plan.spec),
        "command": command(plan, body, place),
        "sizes": sizes,
        "donated": {name: donated(tensors[name], size, donors) for name, size in sizes.items()},
        "report": finite(plan.report.record()),
        "rows": rows,
    }


def donated(taken: Taken, size: int, donors: Mapping[str, torch.Tensor]) -> int:
    """Return how many entries of a new tensor come from the donor."""
    if taken.how == "grown":
        return min(size, sum(donors[name].numel() for name in taken.sources))
    return 0 if taken.how == DRAWN else size


def command(plan: Plan, body: TransplantRequest, place: str) -> str:
    """Return the command line that writes the new model; layers that were chosen here are named."""
    name = file_name(plan.spec)
    changes = ["--spec", f"{name}.yaml"] if body.changes is None else body.changes
    chosen = body.layers
    if chosen is not None and isinstance(read_layers(chosen), str):
        chosen = ",".join(map(str, plan.cuts.layers or ()))
    layers = [] if chosen is None else ["--layers", chosen]
    ways = [word for way in body.ways for word in ("--with", way)]
    return shlex.join(["archetype", "transplant", place, *changes, *layers, *ways, "--to", f"runs/{name}"])


def _name(model: ServedModel, id: int) -> str:
    return model.bytes_of(id).decode("utf-8", "replace")


def _short(value: float) -> float | int | None:
    return finite(float(f"{value:.4g}"))
