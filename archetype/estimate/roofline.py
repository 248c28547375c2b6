"""Roofline model (Williams 2009): the least time of a phase, from FLOPs at the device's peak and memory traffic.

Attention counts only allowed pairs of positions, even if the report counts all, since a kernel may skip masked pairs.
The utilization of published programs refers to all pairs, since their authors count all pairs.

Memory traffic: weights once per pass (for experts, as many as the tokens reach with even routing) and the state (in
decoding without the keys that an index leaves out); in training, weights twice, gradients once, activations and copies
of weights written and read, and seven passes of the optimizer over the parameters. Everything else is assumed to stay
in caches, so a real program is slower.
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
    compute_seconds: float  # 0 if no peak is published
    memory_seconds: float
    tokens: int  # processed, or generated, by the phase
    seconds: float  # the longer of both
    bound: str  # compute or memory, whichever is slower
    tokens_per_second: float  # of the whole batch
    unit: str  # tokens; sequences for a model that reads them whole; or images
    units_per_second: float
    memory: int  # required bytes on the device
    usual_seconds: float | None = None  # time at the utilization of a published program, if there is one


class TooLarge(NamedTuple):
    """A phase for which a device has too little memory."""

    phase: str
    memory: int  # required bytes
    available: int


def predict(report: CostReport, device: Device) -> list[PhaseTime]:
    """Return the times of the phases that fit on a device: prefill and decode, or forward, and a training step.

    The training step uses activation checkpointing if it does not fit otherwise. For a device without a published peak
    only decode is returned, which is limited by memory.
    """
    times = [time for time in phase_times(report, device) if device.memory is None or time.memory <= device.memory]
    times = [time for time in times if device.flops or time.phase == "decode"]
    fits = {time.phase for time in times}
    return [time for time in times if time.phase != "train_recomputed" or "train" not in fits]


def too_large(report: CostReport, device: Device) -> list[TooLarge]:
    """Return the phases of a model for which a device has too little memory."""
    times, available = phase_times(report, device), device.memory
    if available is None:
        return []
    return [TooLarge(time.phase, time.memory, available) for time in times if time.memory > available]


def phase_times(report: CostReport, device: Device) -> list[PhaseTime]:
    """Return the times of all phases of a model, assuming enough memory."""
    flops, tokens, state = report.allowed_flops, report.batch * report.length, report.state["bytes"]
    memory, model, stored_dtype = report.memory, report.cost, report.memory_cost.types.numbers
    optimizer = (2 + 1 + ADAMW_PASSES) * FLOAT32 * report.parameters["total"]
    held = memory["weights"] + state
    read = report.memory_cost.state_read(report.batch, report.length, report.source_length)
    phases = [("forward", weights_read(report, tokens), tokens, memory["weights"])]
    if flops["decode"]:
        phases = [
            ("prefill", weights_read(report, tokens) + state, tokens, held),
            ("decode", weights_read(report, report.batch, "decode") + read, report.batch, held),
        ]
    for train in ("", "_recomputed"):
        out_and_back = 2 * (memory[f"activations{train}"] + memory["weight_copies"])
        phases.append((f"train{train}", optimizer + out_and_back, tokens, memory[f"training_peak{train}"]))
    times = []
    for phase, traffic, answered, needed in phases:
        dtype = compute_dtype(stored_dtype) if phase.startswith("train") else stored_dtype
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
    """Return whether the number of weights that a pass reads depends on the tokens (mixture of experts)."""
    return any(0 < row.active < row.parameters for row in report.rows)


def launches(report: CostReport) -> int:
    """Return the least number of matrix products of a forward pass, whose launch times a roofline ignores."""
    return sum(row.layers for row in report.rows if row.forward)


def time_table(times: list[PhaseTime], missing: Sequence[TooLarge] = ()) -> Table:
    """Return a table of the time of each phase, its bound, and the phases that do not fit."""
    rows = []
    for time in times:
        seconds = (f"{value:.3g}" if value else "" for value in (time.compute_seconds, time.memory_seconds))
        usual = "" if time.usual_seconds is None else f"{time.usual_seconds:.3g}"
        name = time.phase.replace("_recomputed", ", activation checkpointing")
        rows.append([name, f"{time.seconds:.3g}", usual, f"{time.units_per_second:,.0f}", *seconds, time.bound])
    for phase in missing:
        name = phase.phase.replace("_recomputed", ", activation checkpointing")
        rows.append([name, f"needs {size(phase.memory)}", *[""] * 4, "does not fit"])
    unit = times[0].unit if times else "tokens"
    return Table(["", "seconds", "usual", f"{unit}/s", "compute", "memory traffic", "bound by"], rows)


def weights_read(report: CostReport, tokens: int, phase: Phase = "forward") -> int:
    """Return the bytes of the weights that a pass over some tokens reads, without tables that are only looked up.

    If B tokens choose k of E experts evenly, a pass is expected to read E (1 - (1 - k/E)^B) of them.

    Args:
        report: cost report of the model, with the data types of its weights.
        tokens: number of tokens in the whole batch.
        phase: phase of the pass; modules that do not run in this phase, such as an encoder in decoding, read nothing.
    """
    types, bits = report.memory_cost.types, Fraction(0)
    for row in report.rows:
        rests = row.forward and not getattr(row, phase)  # does not run in this phase
        if not row.is_table and not rests:
            left_out = 1 - min(1, row.active / row.parameters) if row.parameters else 0
            bits += types.weight_bits(row.parameters - round(row.parameters * left_out**tokens), row.module)
            if row.module == "lm_head" and not row.parameters:  # a tied head reads the whole table
                bits += types.weight_bits(row.forward // (2 * report.batch * report.length), "embedding.token")
    return int(-(-bits // 8))
