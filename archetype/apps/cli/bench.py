"""The command `bench`: speed of a model on this machine and its share of the hardware limit."""

import sys
from typing import Annotated, Any, Literal

import typer

from archetype.apps.cli.options import Deterministic, Device, Exported, Json, Minutes, StateDtype
from archetype.apps.cli.output import console, print_device, print_json, show_warnings

DTYPE = typer.Option(help="Data type of the computation.  [default: as stored; float32 for a preset]")
BATCH = typer.Option(min=1, help="Batch size.  [default: 1; batch 16, train 8, embed 64]")
PROMPT = typer.Option(min=1, help="Prompt length.  [default: 128; train 256, embed 32]")
NEEDS = {"peer_python": ("peer",)}
NEW = typer.Option(
    min=2, help="Number of generated tokens per sequence, including the one after prefill.  [default: 64]"
)


def bench(
    job: Annotated[
        Literal["decode", "prefill", "batch", "train", "embed"],
        typer.Argument(metavar="JOB", help="Benchmark: decode, prefill, batch (mixed lengths), train or embed."),
    ],
    model: Exported,
    dtype: Annotated[str | None, DTYPE] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            "--quantization",
            help="Weight format: int8, int4, or lossless (12 bits).  [default: --dtype]",
        ),
    ] = None,
    batch: Annotated[int | None, BATCH] = None,
    prompt: Annotated[int | None, PROMPT] = None,
    new: Annotated[int | None, NEW] = None,
    state_dtype: StateDtype = None,
    deterministic: Deterministic = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.  [default: one per core]")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of repetitions; the median is reported.")] = 5,
    peer: Annotated[
        bool, typer.Option("--peer", help="Also benchmark transformers and llama.cpp, in alternation.")
    ] = False,
    peer_python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python interpreter for --peer.  [default: the one that runs archetype]"),
    ] = None,
    minutes: Minutes = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Benchmark a model on this machine: tokens per second, and the share of the hardware limit.

    A preset or a specification file is built with random weights. The limit is the time that the job's memory traffic
    or its FLOPs take at the peak rates of this machine, which are measured in the same run.
    """
    import torch

    from archetype.api.text_generator import TextGenerator
    from archetype.apps.bench.jobs import Workload
    from archetype.apps.bench.peers import opened
    from archetype.apps.bench.timed_job import measure, open_model
    from archetype.errors import SpecError
    from archetype.generate.state_dtype import state_dtype_of
    from archetype.machine import environment
    from archetype.machine.allocation import keep_freed_memory
    from archetype.machine.device import resolve_device
    from archetype.machine.huge_pages import move_to_huge_pages
    from archetype.weights.packed import unpack_without_kernels

    show_warnings()
    if peer and resolve_device(device).type != "cpu":
        raise SpecError("--peer", "the comparison runs on the CPU only", "add --device cpu")
    if deterministic and job in ("train", "embed"):
        raise SpecError("--deterministic", f"has no effect on {job}, which generates no text", "remove it")
    if state_dtype is not None:
        if job in ("train", "embed"):
            raise SpecError("--state-dtype", f"has no effect on {job}, which generates no text", "remove it")
        state_dtype_of(state_dtype)  # refused before a large model is loaded
    if threads is not None:
        torch.set_num_threads(threads)
    if job == "train":
        keep_freed_memory()  # as `archetype train` does
    with console(stderr=True).status(f"timing {job}"):
        lm = open_model(model, job, dtype, weights, device)
        workload = Workload.of(job, lm.spec, batch, prompt, new)
        dtype = dtype or str(lm.model.dtype).removeprefix("torch.")
        # None: no process is started for a peer
        python = (peer_python or sys.executable) if peer else None
        with opened(lm, workload, dtype, weights, torch.get_num_threads(), python) as (peers, left_out):
            if weights is not None:  # as `load` does, but only here: the peers got the unquantized weights
                lm.pack(weights)
                unpack_without_kernels(lm.model)
                move_to_huge_pages(lm.model)
            if state_dtype is not None:
                lm.expect(TextGenerator).use_state_dtype(state_dtype)
            if deterministic:
                lm.expect(TextGenerator).make_deterministic()
            measured = measure(lm, workload, dtype, weights, repeat, peers, state_dtype)
    batch_size, prompt, new = workload.sizes
    settings = {
        "job": job,
        "model": model,
        "dtype": dtype,
        "weights": weights or dtype,
        "state_dtype": state_dtype or dtype,
        "batch": batch_size,
        "prompt": prompt,
        "new": new,
        "deterministic": deterministic,
        "repeat": repeat,
    }
    where = {
        "machine": environment.description(lm.model.device),
        "versions": environment.versions(),
        "date": environment.now(),
    }
    result = settings | measured | ({"peers_left_out": left_out} if peer else {}) | where
    if as_json:
        print_json(result)
    else:
        print_device(lm.model.device)
        _print(result)
    # last, below the table, and on stderr, so that --json stays one object
    for name, message in left_out.items():
        print(f"without {name}: {message}", file=sys.stderr)


SPEEDS = {"prefill": ("prefill_ms", "{:,.1f} ms"), "decode": ("decode_tokens_per_s", "{:,.1f} tokens/s")}


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    peers = result.get("peers", [])
    title = "{job} {model}, {dtype}, {batch} x {prompt} input tokens".format(**result)
    title += f", {result['new']} new" * bool(result["new"]) + ", deterministic" * result["deterministic"]
    title += f", state in {result['state_dtype']}" * (result["state_dtype"] != result["dtype"])
    # one column per library; without peers the heading has nothing to tell apart
    table = Table(box=None, show_header=bool(peers))
    table.add_column("")
    table.add_column("archetype")
    for peer in peers:
        table.add_column(f"{peer['name']} {peer['version']}, {peer['dtype']}")
    speeds = SPEEDS if result["job"] in SPEEDS else SPEEDS | {result["job"]: ("tokens_per_s", "{:,.1f} tokens/s")}
    for name, (field, text) in speeds.items():
        if result[field] is not None:
            # the job's median, and in parentheses how many times faster ours is
            ratios = (peer["ratios"].get("prefill" if name == "prefill" else field) for peer in peers)
            theirs = (f"{text.format(peer[field])} ({ratio:.2f} x)" for peer, ratio in zip(peers, ratios, strict=True))
            table.add_row(name, text.format(result[field]), *theirs)
    if "of_equal_lengths" in result:
        table.add_row("relative to equal lengths", f"{result['of_equal_lengths']:.2f}")
    bandwidth, flops = result["peak_bandwidth_gb_per_s"], result["peak_flops_per_s"] / 1e9
    reading, computing = result["peak_bandwidth_path"], result["peak_flops_path"]
    table.add_row("memory traffic", f"{result['read_gb_per_s']:,.2f} of {bandwidth:,.1f} GB/s ({reading})")
    table.add_row("compute", f"{result['flops_per_s'] / 1e9:,.1f} of {flops:,.1f} GFLOP/s ({computing})")
    table.add_row("share of the limit", f"{result['fraction_of_limit']:.0%} ({result['bound']})")
    if result["tokens"] and peers:
        table.add_row("same tokens", "", *("yes" if peer["same_tokens"] else "no" for peer in peers))
    out, about = console(), result["machine"]
    out.print(title, markup=False)
    out.print(table)
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    pages = f"read in pages of {result['page_bytes'] // 1024} KiB; " if result["page_bytes"] else ""
    line = f"{about['processor']} ({' '.join(about['flags'])}), {about['threads']} threads; {pages}{versions}"
    out.print(f"{line}; {result['date']}", markup=False)
