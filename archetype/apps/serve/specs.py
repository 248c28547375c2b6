"""POST /api/spec/evaluate: diagram and costs of a specification, without torch. Requests cannot name files."""

import asyncio
import inspect
import json
import re
from functools import cache, lru_cache
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from archetype.apps.serve.body import Body, Fields
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.spec_problems import EDITOR, Answered, Problems, problems
from archetype.convert.source import open_spec
from archetype.diagram import Measure
from archetype.diagram.architecture import draw, draw_in
from archetype.diagram.compare import compared
from archetype.diagram.items import picture_items
from archetype.diagram.scene import Box, Container, Scene
from archetype.errors import ArchetypeError, SpecError
from archetype.estimate.fit import fits
from archetype.estimate.report import CostReport, common_length, cost_report
from archetype.estimate.roofline import chooses_experts, predict, too_large
from archetype.families.registry import family_for, preset
from archetype.io.yaml import mapping_to_yaml, yaml_value
from archetype.machine.hardware import DEVICES
from archetype.models.file import parse
from archetype.models.spec import ModelSpec
from archetype.spec.base import Spec, fingerprint
from archetype.spec.edit import assign, differences, index_text
from archetype.spec.serialize import to_yaml

Count = Annotated[int, Field(ge=1, le=2**31)]


class Origin(Fields):
    """Source of a specification; exactly one field is set."""

    source: str | None = None
    preset: str | None = None
    model: str | None = None


class SpecRequest(Body, Origin):
    """Request body that names a specification (default: the first model's specification)."""


class LengthRequest(SpecRequest):
    """Request body that names a specification, and a length in tokens."""

    length: Count | None = None
    dtype: str = "bfloat16"


class EvaluateRequest(SpecRequest):
    """POST /api/spec/evaluate."""

    set: dict[str, Any] = Field(default_factory=dict)
    changes: list[str] = Field(default_factory=list, max_length=1024)  # as for `archetype set`
    batch: Count = 1
    length: Count | None = None
    dtype: str = "bfloat16"
    device: str = "H100-SXM"
    measure: Measure = "parameters"
    unfold: bool = False
    aspect: str = ""  # of the picture that shows the diagram, such as 16:9; empty: as drawn
    family: bool = False
    base: Origin | None = None
    compare: bool = False


class Difference(TypedDict):
    path: str
    a: Any
    b: Any


class Evaluation(Answered):
    source: str
    kind: str
    fingerprint: str
    num_layers: int
    context_length: int
    cost: dict[str, Any]
    fit: list[dict[str, Any]]
    times: dict[str, Any] | None
    form: list[dict[str, Any]]
    diff: list[Difference]
    base: dict[str, Any] | None
    diagram: dict[str, Any]
    parts: dict[str, Any]
    family: NotRequired[str | None]


async def evaluate(exchange: Exchange, body: EvaluateRequest) -> Evaluation | Problems:
    # in a thread: a large specification takes a while, and other requests go on meanwhile
    return await asyncio.to_thread(evaluated, exchange.app.models, body)


def evaluated(models: Models, body: EvaluateRequest) -> Evaluation | Problems:
    """Return the diagram, costs, memory fit and differences of the specification in a request."""
    # the editor keeps the user's own text, with its comments, unless a field was changed from outside
    text = body.source or ""
    try:
        spec = read(models, body)
        if body.source is None or body.set or body.changes:
            # JSON is YAML, so each value can be read as one
            spec = assign(spec, [*(f"{path}={json.dumps(value)}" for path, value in body.set.items()), *body.changes])
            text = to_yaml(spec)
        base = None if body.base is None else read(models, body.base)
        length = common_length([spec, base]) if base is not None and body.length is None else body.length
        report = cost_report(spec, body.batch, length, body.dtype)
        base_sums = None if base is None else sums(base, body.batch, length, body.dtype)
        scene = draw_for(report, body)
    except SpecError as error:
        return {**problems(error, text), "source": text}  # a wrong text is an answer, not an error
    if base is not None and body.compare:
        before = cost_report(base, body.batch, length, body.dtype)
        scene = compared((base, draw(before, body.measure)), (spec, draw(report, body.measure)))
    changes = () if base is None else differences(base, spec)
    answer: Evaluation = {
        "ok": True,
        "source": text,
        "problems": [],
        "name": spec.name or spec.kind,
        "kind": spec.kind,
        "fingerprint": fingerprint(spec),
        "num_layers": spec.num_layers,
        "context_length": spec.context_length,
        "cost": report.to_json(),
        "fit": fitting(report),
        "times": times(report, body.device),
        "form": form(spec),
        "diff": [{"path": path, "a": a, "b": b} for path, a, b in changes],
        "base": base_sums,
        "diagram": diagram(scene),
        "parts": parts(spec, scene),
    }
    if body.family:
        answer["family"] = family_name(spec)
    return answer


def draw_for(report: CostReport, body: EvaluateRequest) -> Scene:
    """Return the scene of a model; arranged so that its text is as large as possible if there is an aspect ratio."""
    if body.aspect and not body.unfold:
        return draw_in(report, body.measure, body.aspect)
    return draw(report, body.measure, body.unfold)


def family_name(spec: ModelSpec) -> str | None:
    """Return the family to which a model can be exported; None if no family fits."""
    try:
        return family_for(spec).name
    except ArchetypeError:
        return None


@lru_cache(maxsize=64)  # while the user types, the specification compared with stays the same
def sums(spec: ModelSpec, batch: int, length: int | None, dtype: str) -> dict[str, Any]:
    """Return the totals of a specification for comparison with another specification."""
    report = cost_report(spec, batch, length, dtype)
    return {"name": spec.name or spec.kind} | {
        name: getattr(report, name) for name in ("parameters", "flops", "state", "memory")
    }


def read(models: Models, origin: Origin | SpecRequest) -> ModelSpec:
    """Return the specification in a request, which cannot be a file.

    Raises:
        SpecError: the request names no specification, or the specification is wrong.
    """
    if origin.source is not None:
        # from its text only: a source that names a file or a folder would read this machine's files
        return parse(yaml_value(origin.source, EDITOR))
    if origin.preset is not None:
        return preset(origin.preset)
    if origin.model is not None or models.sources:
        source = models.source(origin.model)
        # a model that is not loaded is not loaded for this: its specification is enough
        model = next((loaded for loaded in models.loaded if loaded.name == source.name), None)
        return open_spec(source.place) if model is None else model.lm.spec
    raise SpecError("source", "no specification is named", "send source, preset or model")


def file_name(spec: ModelSpec) -> str:
    """Return a model's name as a file name without suffix, for a command line."""
    return re.sub(r"[^\w.-]+", "-", spec.name or spec.kind).strip("-.") or spec.kind


def fitting(report: CostReport) -> list[dict[str, Any]]:
    """Return the largest batch and the longest text that fit into common memory sizes, for each use.

    The list is empty if a part's cost is measured on its module, which would take too long for the lengths to try.
    """
    costs = [group.cost for stack in report.cost.stacks for group in stack.groups]
    if any(part.is_measured for cost in costs for part in cost.contents.values()):
        return []
    return [{"memory": f"{size} GiB"} | fit._asdict() for size in (8, 24, 80) for fit in fits(report, size * 2**30)]


def times(report: CostReport, name: str) -> dict[str, Any] | None:
    """Return the roofline time of each phase on a device, given the vendor's peaks; None for an unknown device."""
    if (device := DEVICES.get(name)) is None:
        return None
    phases = [time._asdict() for time in predict(report, device)]
    missing = [phase._asdict() for phase in too_large(report, device)]
    even = chooses_experts(report)
    return {
        "device": device.name,
        "source": device.source,
        "phases": phases,
        "too_large": missing,
        "even_routing": even,
    }


def form(spec: ModelSpec) -> list[dict[str, Any]]:
    """Return all fields with their values for a form: the model's fields, then those of each distinct layer."""
    fields = spec.dump(full=True)
    groups = []
    for stack in spec.stacks:
        kinds: dict[Any, list[int]] = {}
        for index, block in enumerate(stack.layers):
            kinds.setdefault(block, []).append(index)  # equal blocks are one group
        for block, layers in kinds.items():
            path = f"{stack.prefix}layers[{index_text(layers, len(stack.layers))}]"
            value = block.dump(full=True)
            groups.append({"path": path, "definition": type(block).__name__, "layers": len(layers), "value": value})
    for name, value in fields.items():
        # the layers have their own groups, also in an inner stack such as `encoder`
        if isinstance(value, dict) and "layers" in value:
            fields[name] = {key: inner for key, inner in value.items() if key != "layers"}
    fields.pop("layers", None)
    return [{"path": "", "definition": type(spec).__name__, "layers": 0, "value": fields}, *groups]


def diagram(scene: Scene) -> dict[str, Any]:
    """Return the SVG drawing, and its boxes with their costs."""
    of_box = ("id", "label", "shape", "detail", "kind", "repeat", "field", "change")
    of_container = ("id", "label", "kind", "lines", "repeat", "field", "change")
    boxes = [{name: getattr(box, name) for name in of_box} | {"cost": box.cost.to_json()} for box in scene.boxes]
    containers = [{name: getattr(container, name) for name in of_container} for container in scene.containers]
    legend = [{"letter": letter, "value": value, "meaning": meaning} for letter, value, meaning in scene.legend]
    named = {"name": scene.name, "description": scene.description, "measure": scene.measure, "unit": scene.unit}
    return named | picture_items(scene) | {"boxes": boxes, "containers": containers, "legend": legend}


def parts(spec: ModelSpec, scene: Scene) -> dict[str, Any]:
    """Return the YAML and the description of each field shown in a scene."""
    rows = {}
    items: list[Box | Container] = [*scene.boxes, *scene.containers]
    for field in dict.fromkeys(item.field for item in items if item.field):
        value = _value_at(spec, field)
        if isinstance(value, Spec):
            rows[field] = {
                "kind": str(getattr(value, "kind", "")),
                "yaml": mapping_to_yaml(value.dump()),
                "about": _about(type(value)),
            }
        elif value is not None:
            rows[field] = {"kind": "", "yaml": mapping_to_yaml({field.rpartition(".")[2]: value}), "about": ""}
    return rows


def _value_at(spec: Spec, field: str) -> Any:
    value: Any = spec
    for name, index in re.findall(r"([^.\[\]]+)|\[([^]]*)\]", field):
        if name:
            value = getattr(value, name, None)
        elif isinstance(value, tuple):
            # of several layers, as in layers[0-31], the first stands for all
            first = re.match(r"\d+", index)
            value = value[int(first[0]) if first else 0]
    return [str(item) for item in value] if isinstance(value, tuple) else value


@cache
def _about(cls: type[Spec]) -> str:
    # the docstring of a class without its attributes, one line per paragraph
    text = (inspect.getdoc(cls) or "").partition("\nAttributes:")[0].strip()
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)
