"""What fits into a memory: the largest batch at a length, and the longest text at a batch."""

import re
from collections.abc import Callable
from typing import NamedTuple

from archetype import spec
from archetype.cost import memory, state
from archetype.cost.dtypes import bytes_of
from archetype.cost.rows import all_parameters
from archetype.errors import SpecError

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MOST = 2**31  # rows or tokens: more is as good as without a limit


class Fit(NamedTuple):
    """The largest sizes that fit. 0: not even one. None: nothing grows, or nothing ends it."""

    use: str
    batch: int | None
    length: int | None


def parse_size(text: str) -> int:
    """Bytes of `24GiB`.

    Raises:
        SpecError: it is no size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    if found is None or found[2].lower() not in units:
        raise SpecError("fit", f"{text!r} is no size of memory", f"write it as 24GiB, with one of {', '.join(UNITS)}")
    return int(float(found[1]) * units[found[2].lower()])


def fits(model: spec.ModelSpec, present: int, batch: int, length: int, dtype: str) -> list[Fit]:
    """What fits into `present` bytes, for inference and for training."""
    weights = all_parameters(model).value * bytes_of(dtype)

    def inference(rows: int, tokens: int) -> int:
        return weights + state.state_bytes(model, rows, tokens, dtype)

    def training(rows: int, tokens: int) -> int:
        return memory.of_model(model, rows, tokens, dtype).to_json()["training_peak"]

    def recomputed(rows: int, tokens: int) -> int:
        return memory.of_model(model, rows, tokens, dtype).to_json()["training_peak_recomputed"]

    found = []
    for use, needed in (("inference", inference), ("training", training), ("training, recomputed", recomputed)):
        rows = largest(lambda rows, needed=needed: needed(rows, length) <= present, MOST)  # type: ignore[misc]
        tokens = largest(lambda tokens, needed=needed: needed(batch, tokens) <= present, longest(model))  # type: ignore[misc]
        found.append(Fit(use, None if rows == MOST else rows, None if tokens == MOST else tokens))
    return found


def longest(model: spec.ModelSpec) -> int:
    """The longest text that there are positions for."""
    match model:
        case spec.VisionEncoder() | spec.MegaByte():
            return model.context_length
        case spec.NGram():
            return MOST
        case spec.Decoder() | spec.Encoder() | spec.EncoderDecoder():
            return model.context_length if isinstance(model.embedding.position, spec.Learned) else MOST


def largest(true: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which something holds, if it holds for all smaller ones; 0 for none."""
    low, high = 0, 1
    while high < most and true(high):
        low, high = high, high * 2
    high = min(high, most)
    if true(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if true(middle) else (low, middle)
    return low
