"""The command `check`: tests of a part against the invariants of its role."""

import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.apps.cli.options import Device, Json
from archetype.apps.cli.output import console, print_device, print_json

if TYPE_CHECKING:
    from archetype.checking.kinds import Kind
    from archetype.checking.run import Report

WIDTH = 100  # characters
SECONDS_BETWEEN_LINES = 5.0  # if stderr is not a terminal


def check(
    part: Annotated[
        str,
        typer.Argument(metavar="FILE.py|KIND", help="Python file that registers parts, or a kind such as gru."),
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the part in every example."),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Check the invariants of a part and print the results.

    The part is tested in small models with random weights: with its defaults (in an encoder too, if it supports one),
    with small sizes, and with each of its fields changed. The exit status is 1 if an invariant fails.
    """
    import torch

    from archetype.checking.kinds import kinds_named, kinds_of_file
    from archetype.checking.run import check_kind
    from archetype.machine.device import resolve_device

    target = resolve_device(device)
    torch.set_num_threads(1)  # faster for such small models
    torch.backends.cudnn.allow_tf32 = False  # float32 is float32, in convolutions too
    kinds = kinds_of_file(Path(part)) if part.endswith(".py") else kinds_named(part)
    fields = _fields(assignments or [], kinds)
    if not as_json:
        print_device(target)
    reports = []
    with _progress() as tell:
        for role, kind in kinds:
            settings = {name: value for name, value in fields.items() if name in kind.model_fields}
            reports.append(check_kind(role, kind, settings, device=target, tell=tell))
    if as_json:
        print_json({"kinds": [_as_data(report) for report in reports]})
    else:
        print("\n\n".join(map(_as_text, reports)))
    # after the results, so that a script gets both these and the status
    if not all(report.holds for report in reports):
        raise typer.Exit(1)


@contextmanager
def _progress(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str, str], None]]:
    # live on a terminal, otherwise a line every few seconds, such as in the log of a CI job
    from rich.markup import escape

    err = console(stderr=True)
    printed = clock()
    with err.status("checking") as status:

        def tell(example: str, invariant: str) -> None:
            nonlocal printed
            text = f"checking {example}: {invariant}"
            status.update(escape(text))  # rich would read "[...]" as markup
            if not err.is_terminal and clock() - printed > SECONDS_BETWEEN_LINES:
                printed = clock()
                err.print(text, markup=False)

        yield tell


def _fields(assignments: list[str], kinds: "list[Kind]") -> dict[str, Any]:
    # a FILE.py may register several kinds: a field has to belong to one of them, not to all
    from archetype.errors import SpecError, nearest
    from archetype.io.yaml import yaml_value

    known = {name for _, kind in kinds for name in kind.model_fields if name != "kind"}
    fields = {}
    for assignment in assignments:
        name, is_given, value = assignment.partition("=")
        if not is_given:
            raise SpecError(f"--set {assignment}", "has no value", "write FIELD=VALUE, such as num_heads=2")
        if name not in known:
            remedy = nearest(name, sorted(known)) if known else "remove it"
            raise SpecError(f"--set {name}", "the part has no such field", remedy)
        fields[name] = yaml_value(value, f"--set {name}")
    return fields


def _as_text(report: "Report") -> str:
    from archetype.table import Table

    heading = f"{report.role} {report.kind}, {len(report.examples)} models: {', '.join(report.examples)}"
    return (
        f"{textwrap.fill(heading, WIDTH)}\n\n{Table(('invariant', 'result', 'finding'), report.rows, text_columns=3)}"
    )


def _as_data(report: "Report") -> dict[str, Any]:
    rows = [row._asdict() for row in report.rows]
    return {"role": report.role, "kind": report.kind, "examples": list(report.examples), "rows": rows}
