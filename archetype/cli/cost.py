"""The verb that says what specifications cost; loads no torch, unless this machine is to be measured."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from archetype.cli.output import console, print_json, quantity, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from archetype.cost import Report
    from archetype.cost.fit import Fit
    from archetype.cost.hardware import Device
    from archetype.cost.time import Time

SOURCES = typer.Argument(metavar="SPEC...", help="A preset, a YAML or JSON file, a run directory or a model folder.")


def cost(
    sources: Annotated[list[str], SOURCES],
    batch: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 1,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of each row.  [default: the context]")] = None,
    dtype: Annotated[str, typer.Option(help="Type of weights and state.")] = "bfloat16",
    attention: Annotated[
        Literal["full", "half"], typer.Option(help="Count every pair that is computed, or the allowed ones.")
    ] = "full",
    compare: Annotated[bool, typer.Option("--compare", help="Set several specifications side by side.")] = False,
    fit: Annotated[str | None, typer.Option(help="What fits into a memory, such as 24GiB.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Predict times on a device, such as H100-SXM, or `here`: measured first.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a specification costs: parameters, FLOPs, state and memory, by module and with formulas."""
    from archetype.convert.source import open_spec
    from archetype.cost import report
    from archetype.errors import SpecError

    if len(sources) > 1 and not compare:
        raise SpecError("cost", f"{len(sources)} specifications are given", "set them side by side with --compare")
    reports = [report(open_spec(source), batch, length, dtype, attention) for source in sources]
    found = _device(device)
    if as_json:
        counted = [_to_json(one, fit, found) for one in reports]
        print_json({"specifications": counted} if compare else counted[0])
    elif compare:
        print_comparison(sources, reports)
    else:
        print_cost(reports[0])
    if not as_json:
        for source, one in zip(sources, reports, strict=True):
            _print_more(f"{source}: " if compare else "", one, fit, found)


def _device(name: str | None) -> "Device | None":
    if name is None:
        return None
    if name == "here":
        with console(stderr=True).status("measuring this machine"):
            from archetype.train.peaks import measured_device

            return measured_device()
    from archetype.cost.hardware import device

    return device(name)


def _to_json(report: "Report", fit: str | None, device: "Device | None") -> dict[str, Any]:
    data = report.to_json()
    if fit is not None:
        data["fit"] = {"memory": fit} | {
            found.use: {"batch": found.batch, "length": found.length} for found in _fits(report, fit)
        }
    if device is not None:
        from archetype.cost.time import predict

        data["device"] = device._asdict()
        data["time"] = [time.to_json() for time in predict(report, device)]
    return data


def _print_more(whose: str, report: "Report", fit: str | None, device: "Device | None") -> None:
    if fit is not None:
        print_fits(f"\n{whose}what fits into {fit}", report, _fits(report, fit))
    if device is not None:
        from archetype.cost.time import predict

        print_times(f"\n{whose}at least, on {device.name} ({device.source})", predict(report, device))


def _fits(report: "Report", fit: str) -> "list[Fit]":
    from archetype.cost.fit import fits, parse_size

    return fits(report.spec, parse_size(fit), report.batch, report.length, report.dtype)


def print_cost(report: "Report") -> None:
    """Parameters and FLOPs by module, and the sums below them."""
    out = console()
    out.print(_parameters(report))
    out.print()
    if report.flops["forward"]:
        out.print(_flops(report))
        out.print()
    _print_symbols(report, out)
    _print_sums(report, out)


def _parameters(report: "Report") -> "Table":
    total, active = report.parameters["total"], report.parameters["active"]
    sparse = total != active
    table = _table("module", "", "parameters", "share", *(["active"] if sparse else []))
    for row in report.rows:
        if row.parameters:
            formula = row.formulas["parameters"].text(report.symbols)
            cells = [row.module, formula, f"{row.parameters:,}", f"{row.parameters / total:.1%}"]
            table.add_row(*cells, *([f"{row.active:,}"] if sparse else []))
    table.add_section()
    table.add_row("total", "", f"{total:,}", "", *([f"{active:,}"] if sparse else []))
    return table


def _flops(report: "Report") -> "Table":
    from archetype.cost.passes import writes

    decodes = writes(report.spec)
    table = _table("module", "", "forward FLOPs", *(["decode FLOPs"] if decodes else []))
    for row in report.rows:
        if row.forward or row.decode:
            formula = row.formulas["forward"].text(report.symbols)
            table.add_row(row.module, formula, _quantity(row.forward), *([_quantity(row.decode)] if decodes else []))
    table.add_section()
    sums = report.flops
    table.add_row("total", "", _quantity(sums["forward"]), *([_quantity(sums["decode"])] if decodes else []))
    return table


def _print_symbols(report: "Report", out: "Console") -> None:
    for column in ("parameters", "forward", "decode"):
        if formula := report.formulas[column]:
            out.print(f"{column:<15} {formula.text(report.symbols)}")
    values = [f"{name} = {value:,} {meaning}" for name, (value, meaning) in report.legend.items()]
    out.print(f"{'where':<15} {'; '.join(values)}")
    by_orders: dict[Any, list[str]] = {}
    for name, orders in report.complexity.items():
        by_orders.setdefault(orders, []).append(name.removesuffix(".mixer"))
    for orders, blocks in by_orders.items():
        told = f"{orders.text} for a text, {orders.token} for one more token, {orders.state} remembered"
        out.print(f"{'mixing':<15} {told}" + (f" ({', '.join(blocks)})" if len(by_orders) > 1 else ""))
    out.print()


def _print_sums(report: "Report", out: "Console") -> None:
    flops, memory = report.flops, report.memory
    rows = f"{report.batch} x {report.length:,} tokens"
    counted = {"full": "attention counted in full", "half": "attention counted where it is allowed"}[report.attention]
    out.print(f"training step   {_quantity(flops['train'])}FLOPs for {rows} ({counted})")
    out.print(f"weights         {size(memory['weights'])} in {report.dtype}")
    per_token, whole = size(report.state["bytes_per_token"]), size(report.state["bytes"])
    if report.state["bytes"]:
        out.print(f"state           {per_token} a token, {whole} for {rows}")
    held, kept = size(memory["training"]), size(memory["activations"])
    out.print(
        f"training memory {held} for weights, gradients and AdamW in float32, and {kept} of activations "
        f"({size(memory['activations_recomputed'])} with blocks computed again)"
    )


def print_comparison(sources: list[str], reports: "list[Report]") -> None:
    """One column for each specification."""
    table = _table("", *sources, formulas=False)
    for label, cells in comparison(reports):
        table.add_row(label, *cells)
    console().print(table)


def comparison(reports: "list[Report]") -> list[tuple[str, list[str]]]:
    """What is set side by side."""
    return [
        ("rows x tokens", [f"{one.batch} x {one.length:,}" for one in reports]),
        ("parameters", [f"{one.parameters['total']:,}" for one in reports]),
        ("active", [f"{one.parameters['active']:,}" for one in reports]),
        ("forward FLOPs", [_quantity(one.flops["forward"]) for one in reports]),
        ("forward FLOPs a token", [_quantity(one.flops["forward"] // (one.batch * one.length)) for one in reports]),
        ("decode FLOPs a token", [_quantity(one.flops["decode"] // one.batch) for one in reports]),
        ("state a token", [size(one.state["bytes_per_token"]) for one in reports]),
        ("state", [size(one.state["bytes"]) for one in reports]),
        ("weights", [size(one.memory["weights"]) for one in reports]),
        ("training memory", [size(one.memory["training_peak"]) for one in reports]),
        ("  with blocks computed again", [size(one.memory["training_peak_recomputed"]) for one in reports]),
    ]


def print_fits(title: str, report: "Report", found: "list[Fit]") -> None:
    """The largest batch and the longest text for each use."""
    table = _table("", f"rows of {report.length:,} tokens", f"tokens of {report.batch} rows", formulas=False)
    for fit in found:
        table.add_row(fit.use, *("no limit" if most is None else f"{most:,}" for most in (fit.batch, fit.length)))
    out = console()
    out.print(title)
    out.print(table)


def print_times(title: str, times: "list[Time]") -> None:
    """How long each phase takes, and what limits it."""
    table = _table("", "seconds", "tokens/s", "arithmetic", "memory traffic", "limit", formulas=False)
    for time in times:
        numbers = (time.seconds, time.tokens_per_second, time.arithmetic_seconds, time.memory_seconds)
        seconds, rate, arithmetic, traffic = numbers
        table.add_row(time.phase, f"{seconds:.3g}", f"{rate:,.0f}", f"{arithmetic:.3g}", f"{traffic:.3g}", time.bound)
    out = console()
    out.print(title)
    out.print(table)


def _table(first: str, *headings: str, formulas: bool = True) -> "Table":
    """Names at the left, numbers at the right; a formula stands before its number."""
    from rich.table import Table

    table = Table(first, box=None, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if formulas and index == 0 else "right")
    return table


def _quantity(count: int) -> str:
    return quantity(count) if count else ""
