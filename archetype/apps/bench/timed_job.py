"""Timing of a job and comparison with the hardware limit: the results of `archetype bench`."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from archetype.api.language_model import LanguageModel
from archetype.api.loading import build_untrained, load, names_weights
from archetype.apps.bench.jobs import Job, Sizes, Timing, Workload, runner
from archetype.apps.bench.peers import Peer
from archetype.cost.work import Phase
from archetype.dtypes import state_bytes
from archetype.errors import SpecError
from archetype.estimate.report import cost_report
from archetype.estimate.roofline import PhaseTime, phase_times, weights_read
from archetype.io.tensors import dtype_of
from archetype.machine.hardware import Device
from archetype.machine.time_budget import in_time
from archetype.models.spec import CausalSpec, ModelSpec
from archetype.parts.head.spec import NoHead
from archetype.runs import peaks
from archetype.runs.peaks import Peak
from archetype.weights.packing import check_type

TimedPhase = Phase | Literal["train"]
NUM_TOKENS = 32  # tokens of the first sequence in the output


class Peaks(NamedTuple):
    """Peak memory bandwidth (bytes/s) and compute (FLOP/s) of the machine, and the page size of the measured memory."""

    bandwidth: Peak
    flops: Peak
    page_bytes: int

    @classmethod
    def measured(cls, device: torch.device, dtype: str, weights: str | None = None) -> "Peaks":
        """Measure peak bandwidth and FLOP/s (the higher of `dtype` and float32, since weights can be converted)."""
        bandwidth, page_bytes = peaks.read_peak(device)
        flops = max(peaks.product_peak(device, getattr(torch, name), weights) for name in {dtype, "float32"})
        return cls(bandwidth, flops, page_bytes)

    def raised(self, bandwidth: float, flops: float) -> "Peaks":
        """Return the peaks, raised to the rates that a job has reached if they are higher."""
        return self._replace(bandwidth=self.bandwidth.raised(bandwidth), flops=self.flops.raised(flops))

    @property
    def device(self) -> Device:
        """Return a device with these peaks for the roofline model."""
        flops = {"bfloat16": self.flops.rate, "float32": self.flops.rate}
        return Device("here", self.bandwidth.rate, flops, None, "measured")


def open_model(source: str, job: str, dtype: str | None, weights: str | None, device: str) -> LanguageModel:
    """Load a model, or build a preset or specification file with random weights.

    Args:
        source: a preset, a file, a folder, or a name on huggingface.co.
        job: job to benchmark; training keeps float32 weights whatever `dtype` is.
        dtype: dtype of the weights (default: as stored, float32 for a preset).
        weights: int8, int4 or lossless. They are only checked here, because peers get the unquantized weights.

    Raises:
        SpecError: the job does not support this weight format.
    """
    if weights is not None:
        check_type(weights)
        if job == "train":
            raise SpecError("--weights", "quantized weights cannot be trained", "remove it")
    stored = dtype_of("float32" if job == "train" else dtype)
    return load(source, stored, device) if names_weights(source) else build_untrained(source, dtype=stored).to(device)


def measure(
    lm: LanguageModel,
    workload: Workload,
    dtype: str,
    weights: str | None = None,
    repeat: int = 5,
    peers: Sequence[Peer] = (),
    state_dtype: str | None = None,
) -> dict[str, Any]:
    """Time a job in alternation with its peers, and measure the machine's peaks before and after it.

    Args:
        dtype: compute dtype.
        weights: weight format, if it differs from `dtype`.
        repeat: number of timed repetitions, after one warm-up; fewer if a time budget ends.
        state_dtype: dtype of keys and values, if it differs from `dtype`.

    Returns:
        The results, as `archetype bench --json` prints them.
    """
    device = lm.model.device
    equal = workload.equal(lm.spec) if workload.job == "batch" else None
    sides = {"archetype": runner(lm.model, workload, dtype)}
    if equal is not None:
        sides["equal lengths"] = runner(lm.model, equal, dtype)
    # before and after, since the rates of a machine vary: the limit is the highest
    before = Peaks.measured(device, dtype, weights)
    timings = take_turns(sides | {peer.name: peer.run for peer in peers}, repeat)
    after = Peaks.measured(device, dtype, weights)
    peaks = Peaks(max(before.bandwidth, after.bandwidth), max(before.flops, after.flops), after.page_bytes)
    ours = rates(workload, timings["archetype"])
    if equal is not None:
        ours["of_equal_lengths"] = ours["tokens_per_s"] / rates(equal, timings["equal lengths"])["tokens_per_s"]
    ours["repeat"] = len(timings["archetype"])
    measured = ours | against_limit(lm.spec, workload, dtype, weights, peaks, ours["seconds"], state_dtype)
    if peers:
        measured["peers"] = [beside(ours, peer, rates(workload, timings[peer.name])) for peer in peers]
    return measured


def beside(ours: dict[str, Any], peer: Peer, theirs: dict[str, Any]) -> dict[str, Any]:
    """Return a peer's results, whether its tokens equal ours, and our speed relative to the peer."""
    speeds = ("decode_tokens_per_s", "tokens_per_s")
    ratios = {name: ours[name] / theirs[name] for name in speeds if theirs[name]}
    if theirs["prefill_ms"]:
        ratios["prefill"] = theirs["prefill_ms"] / ours["prefill_ms"]
    about = {"name": peer.name, "version": peer.version, "dtype": peer.dtype}
    return about | theirs | {"same_tokens": theirs["tokens"] == ours["tokens"], "ratios": ratios}


def take_turns(sides: Mapping[str, Callable[[], Timing]], repeat: int) -> dict[str, list[Timing]]:
    """Return the times of each library. After a warm-up round, the libraries alternate in every round."""
    for run in sides.values():
        run()
    timings: dict[str, list[Timing]] = {name: [] for name in sides}
    # in turns, so that a change of the machine's speed meets all alike
    for _ in in_time(range(repeat)):
        for name, run in sides.items():
            timings[name].append(run())
    return timings


def rates(workload: Workload, timings: list[Timing]) -> dict[str, Any]:
    """Return the medians of a job's times and its tokens per second.

    `seconds` counts only the named phase: decoding without prefill, or prefill without decoding.
    """
    batch_size, job = len(workload.prompts), workload.job
    first = [timing.first for timing in timings if timing.first is not None]
    steps = [timing.seconds - (timing.first or 0.0) for timing in timings]  # decoding alone
    written = 0 if job == "batch" else sum(workload.new) - batch_size  # `batch` decodes during prefill
    times = {"decode": steps, "prefill": first}.get(job, [timing.seconds for timing in timings])
    tokens = {"decode": written, "batch": sum(workload.new)}.get(job, sum(map(len, workload.prompts)))
    return {
        "prefill_ms": 1e3 * statistics.median(first) if first else None,
        "decode_tokens_per_s": written / statistics.median(steps) if written > 0 else None,
        "tokens_per_s": tokens / statistics.median(times),
        "tokens_per_s_range": [tokens / max(times), tokens / min(times)],
        "seconds": statistics.median(times),
        "tokens": list(timings[0].tokens[:NUM_TOKENS]) or None,
    }


def against_limit(
    spec: ModelSpec,
    workload: Workload,
    dtype: str,
    weights: str | None,
    peaks: Peaks,
    seconds: float,
    state_dtype: str | None = None,
) -> dict[str, Any]:
    """Return the memory traffic and FLOPs that a job requires, its rates, and the share of the machine's peaks reached.

    Requests of mixed lengths are counted with their average length. A job that exceeds a measured peak sets the new
    peak, so that no share exceeds 1. The `path` of this peak names the job.

    Args:
        dtype: compute dtype.
        weights: weight format, if it differs from `dtype`.
        seconds: time of one repetition.
        state_dtype: dtype of keys and values, if it differs from `dtype`.
    """
    sizes = workload.mean
    phases: dict[Job, list[tuple[TimedPhase, int]]] = {
        "decode": [("decode", sizes.new - 1)],
        "prefill": [("prefill", 1)],
        "batch": [("prefill", 1), ("decode", sizes.new - 1)],
        "train": [("train", 1)],
        "embed": [("prefill" if isinstance(spec, CausalSpec) else "forward", 1)],  # one logit row only
    }
    if workload.job == "embed" and not isinstance(spec, CausalSpec):
        spec = spec.replace(head=NoHead())
    counted = [
        (least_time(spec, phase, sizes, dtype, weights, peaks.device, state_dtype), times)
        for phase, times in phases[workload.job]
    ]
    # bytes/s and FLOP/s of the whole job
    read_rate = sum(time.traffic * times for time, times in counted) / seconds
    flops_rate = sum(time.flops * times for time, times in counted) / seconds
    raised = peaks.raised(read_rate, flops_rate)
    work = [(_at_peaks(time, raised.device), times) for time, times in counted]
    share = sum(time.seconds * times for time, times in work) / seconds
    if share > 1 + 1e-9:  # with several phases, one may exceed the bandwidth and another the compute peak
        raised = peaks.raised(share * raised.bandwidth.rate, share * raised.flops.rate)
    return {
        "read_gb_per_s": read_rate / 1e9,
        "flops_per_s": flops_rate,
        "peak_bandwidth_gb_per_s": raised.bandwidth.rate / 1e9,
        "peak_bandwidth_path": raised.bandwidth.path,
        "peak_flops_per_s": raised.flops.rate,
        "peak_flops_path": raised.flops.path,
        "fraction_of_limit": min(share, 1.0),
        "bound": max(work, key=lambda item: item[0].seconds * item[1])[0].bound,
        "page_bytes": peaks.page_bytes,
    }


def least_time(
    spec: ModelSpec,
    phase: TimedPhase,
    sizes: Sizes,
    dtype: str,
    weights: str | None,
    device: Device,
    state_dtype: str | None = None,
) -> PhaseTime:
    """Return the bytes, FLOPs and minimal time of one forward pass; for decoding, of a step halfway through.

    Args:
        dtype: dtype of the computation, and of the state.
        weights: weight format, if it differs from `dtype`.
        state_dtype: dtype of keys and values, if it differs from `dtype`.
    """
    batch_size, prompt, new = sizes
    is_pair = spec.reads_source
    length = prompt + new // 2 if phase == "decode" and not is_pair else prompt
    report = cost_report(spec, batch_size, length, dtype, state_dtype=state_dtype)
    time = next(time for time in phase_times(report, device) if time.phase == phase)
    flops, traffic, state = time.flops, time.traffic, report.state["bytes"]
    if phase == "decode":
        state = report.memory_cost.state_read(batch_size, length)
    if is_pair and phase == "prefill":  # encoding the source, its keys and values, and the first step of the target
        flops = sum(row.prefill for row in report.rows if not row.decode) + report.flops["decode"]
    # halfway: the keys and values of the source, and of half the target
    if is_pair and phase == "decode":
        state_size = report.cost.stacks[1].state(max(1, new // 2), source=prompt)
        state = state_bytes(batch_size * state_size, report.memory_cost.state_dtype)
    if phase != "train":
        stored = report if weights is None else cost_report(spec, batch_size, length, weights)
        tokens = batch_size if phase == "decode" else batch_size * length
        # only the experts that tokens are expected to choose are read
        traffic = weights_read(stored, tokens, phase) + state * (phase != "forward")
    return _at_peaks(time._replace(flops=flops, traffic=traffic), device)


def _at_peaks(time: PhaseTime, device: Device) -> PhaseTime:
    # roofline: the slower of the two is the limit
    compute, memory = time.flops / device.peak("float32"), time.traffic / device.bandwidth
    return time._replace(seconds=max(compute, memory), bound="compute" if compute > memory else "memory")
