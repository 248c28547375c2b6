"""The command `cost`. It imports torch only to measure this machine, or if the dtypes of tensors differ."""

import re
from collections.abc import Iterator
from itertools import compress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from archetype.apps.cli.options import Json, Specs
from archetype.apps.cli.output import console, print_json

if TYPE_CHECKING:
    from archetype.cost.work import AttentionPairs
    from archetype.estimate.report import CostReport
    from archetype.machine.hardware import Device
    from archetype.table import Table

NEEDS = {"devices": ("device", "fit")}


def cost(
    sources: Specs,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    length: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER,...",
            help="Sequence length, or several separated by commas to compare them.  "
            "[default: the shortest context of the models]",
        ),
    ] = None,
    source_length: Annotated[
        int | None, typer.Option(min=1, help="Source length of an encoder-decoder.  [default: --length]")
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Data type of the weights: float32, bfloat16, float16, fp8, lossless, int8, int4, mxfp4, nvfp4, a "
            "GGUF type such as q4_k_m, or `published`. Several, separated by commas, are compared."
        ),
    ] = "bfloat16",
    state_dtype: Annotated[
        str | None,
        typer.Option(
            help="Data type of the KV cache, such as fp8; recurrent states have that of the weights.  "
            "[default: as the weights, at least 16 bits]"
        ),
    ] = None,
    attention: Annotated[
        str,
        typer.Option(help="Attention pairs to count: all that are `computed`, or only those `allowed` by the mask."),
    ] = "computed",
    compare: Annotated[bool, typer.Option("--compare", help="Compare several specifications.")] = False,
    fit: Annotated[str | None, typer.Option(help="Print what fits into this memory, such as 24GiB.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Predict times on a device such as H100-SXM, or on this machine (`here`), which is measured first."
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option(min=1, help="Number of devices that share the work evenly; communication is ignored.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Print the cost of a specification, by module and with formulas.

    Parameters, FLOPs, state (KV cache or recurrent state), and training memory with and without activation
    checkpointing. --fit adds what fits into a memory, --device adds predicted times.
    """
    from archetype.convert.source import open_spec
    from archetype.convert.weight_types import weight_types
    from archetype.errors import SpecError
    from archetype.estimate.fit import parse_size
    from archetype.estimate.report import common_length, comparison_table, cost_report

    dtypes = list(dict.fromkeys(dtype.split(",")))
    # SPEC... takes several only for --compare
    if len(sources) > 1 and not compare:
        raise SpecError("cost", f"{len(sources)} specifications were passed", "compare them with --compare")
    memory = None if fit is None else devices * parse_size(fit)  # bytes of all devices together
    memory_name = fit if devices == 1 else f"{devices} x {fit}"
    pairs = cast("AttentionPairs", attention)  # `cost_report` refuses other values
    models = [open_spec(source) for source in sources]
    lengths = _lengths(length) if length is not None else [common_length(models) if compare else None]
    # one report for each combination of specification, data type and length
    columns = [
        (source, model, name, tokens)
        for source, model in zip(sources, models, strict=True)
        for name in dtypes
        for tokens in lengths
    ]
    reports = [
        cost_report(model, batch, tokens, weight_types(name, model, source), pairs, source_length, state_dtype)
        for source, model, name, tokens in columns
    ]
    # the headings name only what varies among the columns
    varied = len(models) > 1 or compare, len(dtypes) > 1, len(lengths) > 1
    if any(varied):
        names = ((source, name, f"{tokens:,} tokens" if tokens else "") for source, _, name, tokens in columns)
        sources = [" ".join(compress(words, varied)) for words in names]
        compare = True
    hardware = None if device is None else _device(device).times(devices)
    predictions = [[*_fit(report, memory_name, memory), *_times(report, hardware)] for report in reports]
    if as_json:
        data = [report.to_json() for report in reports]
        for entry, predicted in zip(data, predictions, strict=True):
            for prediction in predicted:
                entry |= prediction.data  # the predictions are further keys of the report: fit, device, time
        print_json({"specifications": data} if compare else data[0])
        return
    print(comparison_table(sources, reports) if compare else reports[0])
    for source, predicted in zip(sources, predictions, strict=True):
        for prediction in predicted:
            print(f"\n{source}: {prediction.title}" if compare else f"\n{prediction.title}")
            print(prediction.table)
            if prediction.note:
                print(prediction.note)


def _lengths(text: str) -> list[int]:
    from archetype.errors import SpecError

    lengths = text.split(",")
    if wrong := [length for length in lengths if not re.fullmatch(r"0*[1-9][0-9]{0,14}", length.strip())]:
        cause = f"{wrong[0]!r} is not a number of tokens"
        raise SpecError("--length", cause, "use positive integers separated by commas, such as 1024,4096")
    return list(dict.fromkeys(map(int, lengths)))


class Prediction(NamedTuple):
    """Prediction from a cost report, as a table and as plain data."""

    title: str
    table: "Table"
    data: dict[str, Any]
    note: str = ""


def _device(name: str) -> "Device":
    # the peaks of this machine take seconds to measure, so they are measured only on request
    if name == "here":
        with console(stderr=True).status("measuring this machine"):
            from archetype.runs.peaks import measured_device

            return measured_device()
    from archetype.machine.hardware import device

    return device(name)


def _fit(report: "CostReport", text: str | None, memory: int | None) -> Iterator[Prediction]:
    from archetype.estimate.fit import fit_table, fits

    if memory is not None:
        largest = fits(report, memory)
        data = {fit.use: {"batch": fit.batch, "length": fit.length} for fit in largest}
        title = f"what fits into {text}"
        yield Prediction(title, fit_table(report, largest), {"fit": {"memory": text, **data}})


def _times(report: "CostReport", device: "Device | None") -> Iterator[Prediction]:
    from archetype.errors import enumeration
    from archetype.estimate.roofline import chooses_experts, launches, predict, time_table, too_large

    if device is not None:
        times, missing = predict(report, device), too_large(report, device)
        # usual shares of the peak, by phase: the bound itself assumes all of it
        reached = {phase: utilization._asdict() for phase, utilization in device.usual.items()}
        even = chooses_experts(report)
        data = {
            "device": device._asdict() | {"usual": reached},
            "routing": "even" if even else None,
            "time": [time._asdict() for time in times],
            "too_large": [phase._asdict() for phase in missing],
        }
        bound = "at least, if tokens choose experts evenly," if even else "at least,"
        title = f"{bound} on {device.name} ({device.source})"
        timed = [(time.phase, device.usual[time.phase]) for time in times if time.phase in device.usual]
        usual = "; ".join(f"{phase} {share.share:.0%} ({share.source})" for phase, share in timed)
        num_launches = launches(report)
        overhead = num_launches * device.launch_seconds  # seconds
        data["launches"] = {"number": num_launches, "seconds": overhead}
        note = f"usual: {usual}" if usual else ""
        if not device.flops:
            unpublished = f"the vendor publishes no peak FLOPs for {device.name}, so only decoding is predicted"
            note = f"{unpublished}; {note}" if note else unpublished
        # predicted times cover only arithmetic and memory traffic, not launches
        if small := [time.phase for time in times if time.seconds < overhead]:
            note = (
                f"launch overhead: starting the {num_launches} products of a pass takes another {overhead:.2g} s "
                f"({1e6 * device.launch_seconds:.1f} µs each), longer than {enumeration(small)} of such a small model"
            )
        yield Prediction(title, time_table(times, missing), data, note)
