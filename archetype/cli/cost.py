"""The verb `cost`; loads no torch, unless this machine is to be measured."""

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from archetype.cli.options import Json, Specs
from archetype.cli.output import console, print_json

if TYPE_CHECKING:
    from archetype.cost import CostReport
    from archetype.cost.hardware import Device
    from archetype.cost.work import AttentionPairs


def cost(
    sources: Specs,
    batch: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 1,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of each row.  [default: the context]")] = None,
    dtype: Annotated[
        str, typer.Option(help="Type of weights and state: float32, bfloat16, float16; int8 or int4 for weights alone.")
    ] = "bfloat16",
    attention: Annotated[
        str, typer.Option(help="Count every pair of positions that is `computed`, or those that are `allowed`.")
    ] = "computed",
    compare: Annotated[bool, typer.Option("--compare", help="Set several specifications side by side.")] = False,
    fit: Annotated[str | None, typer.Option(help="What fits into a memory, such as 24GiB.")] = None,
    device: Annotated[
        str | None, typer.Option(help="Predict times on a device, such as H100-SXM, or `here`: measured first.")
    ] = None,
    devices: Annotated[
        int, typer.Option(min=1, help="How many devices share the work evenly; communication is not counted.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Print what a specification costs, by module and with formulas.

    Parameters, FLOPs, state (KV cache), and memory of training with and without activation checkpointing; with --fit
    what fits into a memory, with --device how long it takes.
    """
    from archetype.convert.source import open_spec
    from archetype.cost import cost_report
    from archetype.cost.fit import parse_size
    from archetype.cost.report import comparison_table
    from archetype.errors import SpecError

    if len(sources) > 1 and not compare:
        raise SpecError("cost", f"{len(sources)} specifications are given", "set them side by side with --compare")
    if devices > 1 and device is None:
        raise SpecError("--devices", "says how many of a device there are, and there is none", "add --device NAME")
    memory = None if fit is None else parse_size(fit)
    pairs = cast("AttentionPairs", attention)  # others are refused by `cost_report`
    reports = [cost_report(open_spec(source), batch, length, dtype, pairs) for source in sources]
    hardware = _device(device, devices)
    if as_json:
        data = [_to_json(report, fit, memory, hardware) for report in reports]
        print_json({"specifications": data} if compare else data[0])
        return
    print(comparison_table(sources, reports) if compare else reports[0])
    for source, report in zip(sources, reports, strict=True):
        _print_predictions(f"{source}: " if compare else "", report, fit, memory, hardware)


def _device(name: str | None, number: int) -> "Device | None":
    if name is None:
        return None
    if name == "here":
        with console(stderr=True).status("measuring this machine"):
            from archetype.training.peaks import measured_device

            return measured_device().times(number)
    from archetype.cost.hardware import device

    return device(name).times(number)


def _to_json(report: "CostReport", fit: str | None, memory: int | None, device: "Device | None") -> dict[str, Any]:
    data = report.to_json()
    if memory is not None:
        from archetype.cost.fit import fits

        largest = fits(report, memory)
        data["fit"] = {"memory": fit} | {one.use: {"batch": one.batch, "length": one.length} for one in largest}
    if device is not None:
        from archetype.cost.roofline import predict

        data["device"] = device._asdict()
        data["time"] = [time._asdict() for time in predict(report, device)]
    return data


def _print_predictions(
    source: str, report: "CostReport", fit: str | None, memory: int | None, device: "Device | None"
) -> None:
    if memory is not None:
        from archetype.cost.fit import fit_table

        print(f"\n{source}what fits into {fit}")
        print(fit_table(report, memory))
    if device is not None:
        from archetype.cost.roofline import predict, time_table

        print(f"\n{source}at least, on {device.name} ({device.source})")
        print(time_table(predict(report, device)))
