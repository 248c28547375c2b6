"""How long a phase takes at least: its FLOPs at the device's peak, or its memory traffic, whichever is longer.

Of attention the pairs that pattern and direction allow are counted, whatever the report counts: a kernel may skip the
others. The shares that published programs reached are of all pairs, as those count.

Traffic counted: weights once for each pass (of experts, as many as the tokens reach where they choose evenly), the
state, and in training weights twice, gradients once, activations and copies of weights out and back, and the
optimizer's seven passes over parameters. Everything else is assumed to stay near the processor; a real program comes no
closer than its kernels do (Williams 2009). What published programs reach of the peaks stands beside.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import inf
from typing import NamedTuple

from archetype.cost.work import FLOAT32, Phase
from archetype.estimate.memory import compute_dtype
from archetype.estimate.report import CostReport
from archetype.machine.hardware import Device
from archetype.table import Table, size

ADAMW_PASSES = 7  # reads weight, gradient and two moments; writes weight and two moments


class PhaseTime(NamedTuple):
    """The least time of a phase on a device."""

    phase: str
    flops: int
    traffic: int  # bytes
    compute_seconds: float  # 0 where no peak is published
    memory_seconds: float
    tokens: int  # that the phase reads or writes
    seconds: float  # the longer of both
    bound: str  # compute or memory, whichever takes so long
    tokens_per_second: float  # of all rows together
    unit: str  # what is counted: tokens; sequences of a model that reads them whole, or images
    units_per_second: float
    memory: int  # bytes that the device holds
    usual_seconds: float | None = None  # at the share of the peak that a published program reached, where one did


class TooLarge(NamedTuple):
    """A phase for which a device has too little memory."""

    phase: str
    memory: int  # bytes that it needs
    available: int


def predict(report: CostReport, device: Device) -> list[PhaseTime]:
    """The phases of a model that fit on a device: prefill and decoding, or a forward pass, and a training step.

    The step computes activations again where they do not fit otherwise. Of a device without a published peak of FLOPs,
    decoding alone, which memory limits.
    """
    times = [time for time in phase_times(report, device) if device.memory is None or time.memory <= device.memory]
    times = [time for time in times if device.flops or time.phase == "decode"]
    fits = {time.phase for time in times}
    return [time for time in times if time.phase != "train_recomputed" or "train" not in fits]


def too_large(report: CostReport, device: Device) -> list[TooLarge]:
    """The phases of a model for which a device has too little memory."""
    times, available = phase_times(report, device), device.memory
    if available is None:
        return []
    return [TooLarge(time.phase, time.memory, available) for time in times if time.memory > available]


def phase_times(report: CostReport, device: Device) -> list[PhaseTime]:
    """The phases of a model, as if the device had memory enough."""
    flops, tokens, state = report.allowed_flops, report.batch * report.length, report.state["bytes"]
    memory, model, numbers = report.memory, report.memory_cost.cost, report.memory_cost.types.numbers
    optimizer = (2 + 1 + ADAMW_PASSES) * FLOAT32 * report.parameters["total"]
    held = memory["weights"] + state
    phases = [("forward", weights_read(report, tokens), tokens, memory["weights"])]
    if flops["decode"]:
        phases = [
            ("prefill", weights_read(report, tokens) + state, tokens, held),
            ("decode", weights_read(report, report.batch, "decode") + state, report.batch, held),
        ]
    for train in ("", "_recomputed"):
        out_and_back = 2 * (memory[f"activations{train}"] + memory["weight_copies"])
        phases.append((f"train{train}", optimizer + out_and_back, tokens, memory[f"training_peak{train}"]))
    times = []
    for phase, traffic, answered, needed in phases:
        dtype = compute_dtype(numbers) if phase.startswith("train") else numbers
        peak = device.peak(dtype) if device.flops else inf
        by_bound = {"compute": flops[phase] / peak, "memory": traffic / device.bandwidth}
        bound = max(by_bound, key=lambda bound: by_bound[bound])
        seconds, limits = by_bound[bound], {"decode": "memory", "train": "compute"}
        unit, units = ("tokens", answered) if model.generates else (model.reads, report.batch)
        speeds = answered / seconds, unit, units / seconds
        reached = device.usual.get(phase) if limits.get(phase) == bound else None
        counted = report.flops[phase] / peak if bound == "compute" else seconds
        usual = None if reached is None else counted / reached.share
        counts = flops[phase], traffic, by_bound["compute"], by_bound["memory"], answered
        times.append(PhaseTime(phase, *counts, seconds, bound, *speeds, needed, usual))
    return times


def chooses_experts(report: CostReport) -> bool:
    """Whether the tokens decide how many weights a pass reads."""
    return any(0 < row.active < row.parameters for row in report.rows)


def launches(report: CostReport) -> int:
    """Products of matrices that a forward pass starts at least, which no roofline has."""
    return sum(row.layers for row in report.rows if row.forward)


def time_table(times: list[PhaseTime], missing: Sequence[TooLarge] = ()) -> Table:
    """How long each phase takes, what limits it, and what does not fit."""
    rows = []
    for time in times:
        seconds = (f"{number:.3g}" if number else "" for number in (time.compute_seconds, time.memory_seconds))
        usual = "" if time.usual_seconds is None else f"{time.usual_seconds:.3g}"
        name = time.phase.replace("_recomputed", ", activation checkpointing")
        rows.append([name, f"{time.seconds:.3g}", usual, f"{time.units_per_second:,.0f}", *seconds, time.bound])
    for phase in missing:
        name = phase.phase.replace("_recomputed", ", activation checkpointing")
        rows.append([name, f"needs {size(phase.memory)}", *[""] * 4, "does not fit"])
    unit = times[0].unit if times else "tokens"
    return Table(["", "seconds", "usual", f"{unit}/s", "compute", "memory traffic", "bound by"], rows)


def weights_read(report: CostReport, tokens: int, phase: Phase = "forward") -> int:
    """Bytes of the weights that a pass over some tokens reads: no whole table where rows of it are looked up.

    Of E experts that B tokens choose evenly, k each, a pass is expected to read E (1 - (1 - k/E)^B).

    Args:
        report: of the model, with the types of its weights.
        tokens: of all rows together.
        phase: of the pass; products that rest in it, as an encoder's in decoding, read nothing.
    """
    types, bits = report.memory_cost.types, Fraction(0)
    for row in report.rows:
        rests = row.forward and not getattr(row, phase)
        if not row.is_table and not rests:
            left_out = 1 - min(1, row.active / row.parameters) if row.parameters else 0
            bits += types.weight_bits(row.parameters - round(row.parameters * left_out**tokens), row.module)
            if row.module == "lm_head" and not row.parameters:  # a tied head reads the whole table
                bits += types.weight_bits(row.forward // (2 * report.batch * report.length), "embedding.token")
    return int(-(-bits // 8))
