"""Decoding by architectures of about 100 M parameters, random weights, batch 1, on CPU.

    python -m benchmarks.architectures shares       # of the bandwidth, over the bytes that a step must read
    python -m benchmarks.architectures lengths      # a token with 4,096 cached against one with 128
    python -m benchmarks.architectures lengths --filled 1024 16384 --dtype bfloat16

Of `shares` the bandwidth is measured before and after each model, as `archetype bench` does. Of `lengths` the two steps
of a model take turns, each on a state of its own.
"""

import argparse
import statistics
import time

import torch

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.bench.jobs import Workload
from archetype.apps.bench.timed_job import measure
from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.native.recorder import Replay, TorchCall
from benchmarks.machine import heading
from benchmarks.shapes import ARCHITECTURES, MIXERS


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("shares", "lengths"))
    parser.add_argument("--only", help="one architecture, by a part of its name")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--filled", type=int, nargs=2, default=(128, 4096), help="tokens in the cache, of `lengths`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    command = f"python -m benchmarks.architectures {chosen.what} --dtype {chosen.dtype}"
    few, many = chosen.filled
    print(heading(command if chosen.what == "shares" else f"{command} --filled {few} {many}"))
    table = ARCHITECTURES if chosen.what == "shares" else MIXERS
    for name in table:
        if (chosen.only or "").lower() in name.lower():
            if chosen.what == "shares":
                share(name, chosen.dtype, chosen.rounds)
            else:
                lengths(name, chosen.dtype, chosen.rounds, few, many)


def share(name: str, dtype: str, rounds: int) -> None:
    """The share of the bandwidth that `bench decode` prints."""
    model = archetype.build(ARCHITECTURES[name](), dtype=dtype).eval()
    lm = LanguageModel(model.spec, model)
    result = measure(lm, Workload.of("decode", lm.spec, None, None, None), dtype, repeat=rounds)
    print(
        f"{name:<18}{sum(tensor.numel() for tensor in model.parameters()) / 1e6:6.0f} M  "
        f"{result['decode_tokens_per_s']:7.1f} tokens/s  {result['read_gb_per_s']:5.1f} of "
        f"{result['peak_bandwidth_gb_per_s']:5.1f} GB/s ({result['peak_bandwidth_path']}): "
        f"{result['fraction_of_limit']:.0%}"
    )


def lengths(name: str, dtype: str, rounds: int, few: int, many: int) -> None:
    """The time of a step after few and after many tokens; bytes are those of weights and state that a step reads."""
    model = build(MIXERS[name](), dtype=getattr(torch, dtype)).eval()
    assert isinstance(model, Decoder)
    steps = {filled: DecodeStep(model, model.new_state(1, filled + 64)) for filled in (few, many)}
    times: dict[int, list[float]] = {filled: [] for filled in steps}
    token = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(3 * rounds + 2):
        for filled, step in steps.items():
            with torch.inference_mode():
                step.state.lengths.fill_(filled)
            started = time.perf_counter()
            step(token)
            times[filled].append(time.perf_counter() - started)
    short, long = (statistics.median(seconds[2:]) for seconds in times.values())
    weights = sum(tensor.nbytes for tensor in model.parameters())
    reports = [archetype.cost_report(model.spec, batch=1, length=filled, dtype=dtype) for filled in steps]
    short_bytes, long_bytes = (weights + report.state["bytes"] for report in reports)
    left = "" if (replay := steps[few].replay) is None else f", {left_to_torch(replay)} operations left to torch"
    print(
        f"{name:<18}{1e3 * short:7.2f} ms at {few:,}  {1e3 * long:7.2f} ms at {many:,}: {long / short:5.2f} x, "
        f"bytes {long_bytes / short_bytes:.2f} x{left}"
    )


def left_to_torch(replay: Replay) -> int:
    """How many operations of a recorded step have no kernel."""
    return sum(isinstance(segment, TorchCall) for segment in replay.segments)


if __name__ == "__main__":
    main()
