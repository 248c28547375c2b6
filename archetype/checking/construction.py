"""Checks that a specification is written without loss, and that model, cost and diagram agree with each other."""

import json
import re
from xml.etree import ElementTree

from archetype.checking.subject import SOURCE_LENGTH, Inapplicable, Subject, Violated
from archetype.diagram.architecture import draw
from archetype.diagram.svg import svg
from archetype.estimate.report import CostReport, cost_report
from archetype.estimate.rows import Row
from archetype.io.yaml import yaml_value
from archetype.models.build import build_on_meta
from archetype.models.file import parse
from archetype.spec.serialize import to_json, to_yaml

BATCH = 2


def round_trip(subject: Subject) -> None:
    """Check that YAML and JSON of a specification read back unchanged."""
    written = {"YAML": yaml_value(to_yaml(subject.spec), "YAML"), "JSON": json.loads(to_json(subject.spec))}
    for name, data in written.items():
        if parse(data) != subject.spec:
            raise Violated(f"{name} reads back as a different specification")


def is_built(subject: Subject) -> None:
    """Check that the model is built and keeps its specification unchanged."""
    if build_on_meta(subject.spec).spec != subject.spec:
        raise Violated("the specification of the module differs from the one it was built from")
    subject.model  # noqa: B018  # with storage


def parameters_are_counted(subject: Subject) -> None:
    """Check that the cost lists every module with parameters once, with its actual number of parameters."""
    # A parameter belongs to the row with the longest module name that is a prefix of its name.
    report = _report(subject)
    owner: dict[str, Row] = {}
    for row in report.rows:
        modules = modules_of(row)
        if len(modules) != row.layers or owner.keys() & set(modules):
            raise Violated(f"the cost lists {row.module} twice, or not with {row.layers} modules")
        owner |= dict.fromkeys(modules, row)
    built = dict.fromkeys(owner, 0)
    for name, parameter in build_on_meta(subject.spec).named_parameters():
        parts = name.split(".")
        above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        if (module := next((module for module in above if module in owner), None)) is None:
            raise Violated(f"{name} is not counted")
        built[module] += parameter.numel()
    for row in report.rows:
        # layers that share an earlier layer's weights own none
        owned = [built[module] for module in modules_of(row) if built[module]]
        if sum(owned) != row.parameters or len(set(owned)) > 1:
            counted, actual = row.parameters // max(1, len(owned)), max(owned, default=0)
            raise Violated(f"the cost of {modules_of(row)[0]} counts {counted:,} parameters, but it has {actual:,}")
    if (total := report.parameters["total"]) != sum(built.values()):
        raise Violated(f"the cost counts {total:,} parameters in total, but the module has {sum(built.values()):,}")


def modules_of(row: Row) -> list[str]:
    """Return the modules of a row, which may cover several layers: blocks.0,2-4.mixer.q."""
    named = re.fullmatch(r"(.*blocks\.)([\d,.-]+)(\..*)", row.module)
    return [f"{named[1]}{layer}{named[3]}" for layer in layers_of(named[2])] if named else [row.module]


def layers_of(label: str) -> list[int]:
    """Return the layer indices of a range such as `0-4,6` or `0,2..8`."""
    if ".." in label:
        first, second, last = map(int, re.split(r",|\.\.", label))
        return list(range(first, last + 1, second - first))
    ends = [list(map(int, part.split("-"))) for part in label.split(",")]
    return [layer for run in ends for layer in range(run[0], run[-1] + 1)]


def state_is_counted(subject: Subject) -> None:
    """Check that the cost counts the allocated bytes of state, for a short sequence and for the full context."""
    if not subject.writes:
        raise Inapplicable("reads whole inputs, without a state")
    has_source = "source" in subject.parameters
    for length in (SOURCE_LENGTH,) if has_source else (SOURCE_LENGTH, subject.spec.context_length):
        counted = cost_report(subject.spec, BATCH, length, "float32").state["bytes"]
        built = subject.new_state(range(BATCH), length).nbytes
        if counted != built:
            raise Violated(f"at {length} tokens the cost counts {counted:,} bytes, but the state has {built:,}")


def is_drawn(subject: Subject) -> None:
    """Check that the diagram's boxes add up to all parameters and FLOPs, and that each box is drawn exactly once."""
    report = _report(subject)
    drawn = draw(report)
    sums = {
        "parameters": (sum(box.cost.parameters for box in drawn.boxes), report.parameters["total"]),
        "FLOPs": (sum(box.cost.flops for box in drawn.boxes), report.flops["forward"]),
    }
    for name, (shown, counted) in sums.items():
        if shown != counted:
            raise Violated(f"boxes show {shown:,} {name}, but the cost counts {counted:,}")
    ids = [box.id for box in drawn.boxes] + [container.id for container in drawn.containers]
    if twice := {name for name in ids if ids.count(name) > 1}:
        raise Violated(f"two items have the id {min(twice)}")
    marks = {element.get("data-id") for element in ElementTree.fromstring(svg(drawn)).iter()}
    if missing := {box.id for box in drawn.boxes} - marks:
        raise Violated(f"{min(missing)} is not drawn")


def _report(subject: Subject) -> CostReport:
    length = None if subject.reads_images else subject.length  # fixed for images
    return cost_report(subject.spec, BATCH, length, "float32")
