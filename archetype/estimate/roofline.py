"""How long a phase takes at least: its FLOPs at the device's peak, or its memory traffic, whichever is longer.

Traffic counted: weights once for each pass (of experts, as many as the tokens can reach), the state, and in training
weights twice, gradients once, activations out and back, and the optimizer's seven passes over parameters. Everything
else is assumed to stay near the processor; a real program comes no closer than its kernels do (Williams 2009).
"""

from typing import NamedTuple

from archetype.cost.work import FLOAT32, Phase
from archetype.dtypes import weight_bytes
from archetype.estimate.memory import compute_dtype
from archetype.estimate.report import CostReport
from archetype.machine.hardware import Device
from archetype.table import Table

ADAMW_PASSES = 7  # reads weight, gradient and two moments; writes weight and two moments


class PhaseTime(NamedTuple):
    """The least time of a phase on a device."""

    phase: str
    flops: int
    traffic: int  # bytes
    compute_seconds: float
    memory_seconds: float
    tokens: int  # that the phase reads or writes
    seconds: float  # the longer of both
    bound: str  # compute or memory, whichever takes so long
    tokens_per_second: float  # of all rows together
    unit: str  # what is counted: tokens; sequences of a model that reads them whole, or images
    units_per_second: float


def predict(report: CostReport, device: Device) -> list[PhaseTime]:
    """The phases of a model on a device: prefill and decoding, or a forward pass, and a training step."""
    flops, tokens, state = report.flops, report.batch * report.length, report.state["bytes"]
    optimizer = (2 + 1 + ADAMW_PASSES) * FLOAT32 * report.parameters["total"]
    phases = [("forward", weights_read(report, tokens), tokens)]
    if flops["decode"]:
        phases = [
            ("prefill", weights_read(report, tokens) + state, tokens),
            ("decode", weights_read(report, report.batch, "decode") + state, report.batch),
        ]
    phases.append(("train", optimizer + 2 * report.memory["activations"], tokens))
    times, model = [], report.memory_cost.cost
    for phase, traffic, answered in phases:
        peak = device.peak(compute_dtype(report.dtype) if phase == "train" else report.dtype)
        compute, memory = flops[phase] / peak, traffic / device.bandwidth
        seconds, bound = max((compute, "compute"), (memory, "memory"), key=lambda time: time[0])
        unit, units = ("tokens", answered) if model.generates else (model.reads, report.batch)
        speeds = answered / seconds, unit, units / seconds
        times.append(PhaseTime(phase, flops[phase], traffic, compute, memory, answered, seconds, bound, *speeds))
    return times


def time_table(times: list[PhaseTime]) -> Table:
    """How long each phase takes, and what limits it."""
    rows = []
    for time in times:
        seconds = (f"{number:.3g}" for number in (time.compute_seconds, time.memory_seconds))
        rows.append([time.phase, f"{time.seconds:.3g}", f"{time.units_per_second:,.0f}", *seconds, time.bound])
    return Table(["", "seconds", f"{times[0].unit}/s", "compute", "memory traffic", "bound by"], rows)


def weights_read(report: CostReport, tokens: int, phase: Phase = "forward") -> int:
    """Bytes of the weights that a pass over some tokens reads: no whole table where rows of it are looked up.

    Args:
        report: of the model; its type is that of the weights.
        tokens: of all rows together.
        phase: of the pass; products that rest in it, as an encoder's in decoding, read nothing.
    """
    numbers = 0
    for row in report.rows:
        rests = row.forward and not getattr(row, phase)
        if not row.is_table and not rests:
            numbers += min(row.parameters, row.active * tokens)
            if row.module == "lm_head" and not row.parameters:
                numbers += row.forward // (2 * report.batch * report.length)  # a tied head reads the whole table
    return weight_bytes(numbers, report.dtype)
