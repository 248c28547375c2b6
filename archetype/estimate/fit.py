"""The largest batch and the longest sequence that fit into a given memory."""

import re
from collections.abc import Callable
from typing import NamedTuple

from archetype.errors import SpecError
from archetype.estimate.report import CostReport
from archetype.table import Table

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNLIMITED = 2**31  # sequences or tokens: treated as no limit


class Fit(NamedTuple):
    """The largest batch and length that fit into memory (0: nothing fits, None: no limit)."""

    use: str
    batch: int | None
    length: int | None


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `24GiB`.

    Raises:
        SpecError: the text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    if match is None or match[2].lower() not in units:
        cause = f"{text!r} is not a size of memory"
        raise SpecError("--fit", cause, f"write it as 24GiB, with one of {', '.join(UNITS)}")
    return int(float(match[1]) * units[match[2].lower()])


def fits(report: CostReport, available: int) -> list[Fit]:
    """Return the largest batch at the report's length and the longest sequences at its batch, for each use.

    Args:
        available: memory in bytes.
    """
    memory, source = report.memory_cost, report.source_length
    needs: dict[str, Callable[[int, int], int]] = {
        "inference": lambda rows, tokens: memory.weights + memory.state(rows, tokens, source),
        "training": lambda rows, tokens: memory.training_peak(memory.saved_activations(rows, tokens, source).peak),
        "training, activation checkpointing": lambda rows, tokens: memory.training_peak(
            memory.saved_activations(rows, tokens, source).peak_recomputed
        ),
    }
    max_length = report.cost.max_length or UNLIMITED
    fits = []
    for use, need in needs.items():
        rows = largest(lambda rows, need=need: need(rows, report.length) <= available, UNLIMITED)  # type: ignore[misc]
        tokens = largest(lambda tokens, need=need: need(report.batch, tokens) <= available, max_length)  # type: ignore[misc]
        fits.append(Fit(use, None if rows == UNLIMITED else rows, None if tokens == UNLIMITED else tokens))
    return fits


def fit_table(report: CostReport, fitting: list[Fit]) -> Table:
    """Return a table of the largest batch and longest sequence for each use."""
    rows = []
    for use, *sizes in fitting:
        rows.append([use, *("no limit" if size is None else f"{size:,}" for size in sizes)])
    if report.cost.reads == "images":
        return Table(["", "images"], [row[:2] for row in rows])
    batch = f"{report.batch} {'row' if report.batch == 1 else 'rows'}"
    return Table(["", f"rows of {report.length:,} tokens", f"tokens of {batch}"], rows)


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """Return the largest integer up to `limit` for which a monotonic `holds` is true; 0 if it is never true."""
    low, high = 0, 1  # doubled until it does not hold, then bisected
    while high < limit and holds(high):
        low, high = high, high * 2
    high = min(high, limit)
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
