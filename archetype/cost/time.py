"""How long a phase takes at least: its arithmetic at the device's peak, or its memory traffic, whichever is longer.

Traffic counted: weights once for each pass (of experts, as many as the tokens can reach), the state, and in training
weights twice, gradients once, activations out and back, and the optimizer's seven passes over parameters. Everything
else is assumed to stay near the processor; a real program comes no closer than its kernels do (Williams 2009).
"""

from typing import Literal, NamedTuple

from archetype.cost.dtypes import bytes_of
from archetype.cost.hardware import Device
from archetype.cost.memory import computed_in
from archetype.cost.passes import writes
from archetype.cost.report import Report

PASSES_OF_ADAMW = 7  # reads weight, gradient and two moments; writes weight and two moments


class Time(NamedTuple):
    """A prediction."""

    phase: str
    flops: int
    traffic: int  # bytes
    arithmetic_seconds: float
    memory_seconds: float
    tokens: int  # that the phase reads or writes

    @property
    def seconds(self) -> float:
        """What it takes."""
        return max(self.arithmetic_seconds, self.memory_seconds)

    @property
    def bound(self) -> Literal["arithmetic", "memory traffic"]:
        """What limits it."""
        return "arithmetic" if self.arithmetic_seconds >= self.memory_seconds else "memory traffic"

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together."""
        return self.tokens / self.seconds

    def to_json(self) -> dict[str, str | int | float]:
        """By name."""
        return self._asdict() | {
            "seconds": self.seconds, "bound": self.bound, "tokens_per_second": self.tokens_per_second,
        }  # fmt: skip


def predict(report: Report, device: Device) -> list[Time]:
    """The phases of a model on a device: prefill and decoding, or a forward pass, and a training step."""
    flops, memory = report.flops, report.memory
    tokens, state = report.batch * report.length, report.state["bytes"]
    update = (2 + 1 + PASSES_OF_ADAMW) * 4 * report.parameters["total"]
    if writes(report.spec):
        found = [
            ("prefill", flops["prefill"], weights_read(report, tokens) + state, tokens),
            ("decode", flops["decode"], weights_read(report, report.batch) + state, report.batch),
        ]
    else:
        found = [("forward", flops["forward"], weights_read(report, tokens), tokens)]
    found.append(("train", flops["train"], update + 2 * memory["activations"], tokens))
    times = []
    for phase, count, traffic, done in found:
        peak = device.peak(computed_in(report.dtype) if phase == "train" else report.dtype)
        times.append(Time(phase, count, traffic, count / peak, traffic / device.bandwidth, done))
    return times


def weights_read(report: Report, tokens: int) -> int:
    """Bytes of the weights that a pass over some tokens reads: no whole table where rows of it are looked up."""
    numbers = 0
    for row in report.rows:
        if row.module.endswith(("embedding.token", "embedding.position", "embedding.token_type")):
            continue
        numbers += min(row.parameters, row.active * tokens)
        if row.module == "lm_head" and not row.formulas["parameters"]:
            numbers += row.forward // (2 * report.batch * report.length)  # a tied head reads the whole table
    return numbers * bytes_of(report.dtype)
