"""Long contexts on CPU: the time of a prompt, of a token after it, and the memory of the process, by length.

    python -m benchmarks.long_contexts --peer-python PYTHON --to docs/long_contexts.svg

A Llama of 110 M parameters with random weights, here, in llama.cpp and in transformers: each length in a process of its
own, one after the other (Linux). Memory is the highest resident memory after loading, libraries included. The limit is
that of reading the weights and the state at the measured bandwidth, and their bytes by `archetype cost`. The state of
llama.cpp is float16, that of the others has the type of the weights.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.figure import Figure

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.bench.jobs import START, Timing, Workload, runner
from archetype.apps.bench.peers import GGUF_TYPES, Peer
from archetype.convert.gguf.file import FILE
from archetype.io.figure_file import figure_bytes
from archetype.machine.allocation import keep_freed_memory
from archetype.runs.peaks import read_peak
from benchmarks.machine import heading
from benchmarks.shapes import MIXERS

NEW = 17  # tokens: one of the prompt's pass, and sixteen steps
MODEL = "GQA, 4 of 12"
Row = dict[str, Any]


def main() -> None:
    """Print a table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2**n for n in range(10, 15)])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--peer-python", help="interpreter with transformers and llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--to", type=Path, help="SVG file")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)  # our own process: a folder with the weights
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.alone:
        print(json.dumps(here(chosen.alone, chosen.lengths[0], chosen.dtype)))
        return
    print(heading(f"python -m benchmarks.long_contexts --dtype {chosen.dtype}"))
    rows = []
    with TemporaryDirectory() as temporary:
        for length in chosen.lengths:
            for row in measured(Path(temporary), length, chosen):
                rows.append(row)
                print(
                    f"{row['where']:<22}{length:>8,}  prompt {row['prompt']:8.2f} s  token {row['token']:8.2f} ms  "
                    f"memory {row['memory'] / 2**20:8.1f} MiB",
                    flush=True,
                )
    if chosen.to:
        chosen.to.write_bytes(figure_bytes(draw(rows), ".svg"))


def measured(folder: Path, length: int, chosen: argparse.Namespace) -> list[Row]:
    """Ours, the predicted limit, and each peer at one length."""
    spec = MIXERS[MODEL]()
    spec = spec.replace(context_length=max(spec.context_length, length + NEW))
    lm = LanguageModel(spec, archetype.build(spec, seed=0, dtype=chosen.dtype).eval())
    if not (folder / "hf").exists():
        archetype.export(lm, folder / "hf")
        archetype.export(lm, folder / "gguf", format="gguf", type=GGUF_TYPES[chosen.dtype])
    command = [sys.executable, "-m", "benchmarks.long_contexts", "--alone", str(folder / "hf")]
    command += ["--lengths", str(length), "--dtype", chosen.dtype, "--threads", str(chosen.threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    state = archetype.cost_report(spec, batch=1, length=length + NEW, dtype=chosen.dtype).state["bytes"]
    weights = sum(tensor.nbytes for tensor in lm.model.parameters())
    bandwidth = read_peak(torch.device("cpu"))[0].rate
    rows = [json.loads(done.stdout), row("limit", length, Timing(0.0, 0.0), weights + state)]
    rows[1]["token"] = 1e3 * (weights + state) / bandwidth  # and no time of a prompt
    workload = Workload.of("decode", spec, 1, length, NEW)
    for name in ("llama.cpp", "transformers") if chosen.peer_python else ():
        peer = Peer(name, chosen.peer_python, chosen.threads, folder)
        try:
            target = folder / ("gguf" if name == "llama.cpp" else "hf")
            peer.load(
                job="decode", prompts=workload.prompts, new=workload.new, dtype=chosen.dtype, threads=chosen.threads,
                is_pair=False, start=START, folder=str(target), file=str(target / FILE),
            )  # fmt: skip
            rows.append(watched(f"{name} {peer.version}", length, peer.process.pid, peer.run))
        finally:
            peer.close()
    return rows


def here(folder: Path, length: int, dtype: str) -> Row:
    """Our row, of this process."""
    keep_freed_memory()
    lm = archetype.load(folder, dtype=dtype)
    run = runner(lm.model.eval(), Workload.of("decode", lm.spec, 1, length, NEW), dtype)
    return watched("here", length, os.getpid(), run)


def watched(where: str, length: int, pid: int, run: Any) -> Row:
    """Run once in a loaded process, and read its highest memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the highest memory of loading
    timing = run()
    (peak,) = (line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line)
    return row(where, length, timing, 1024 * int(peak))


def row(where: str, length: int, timing: Timing, memory: float) -> Row:
    assert timing.first is not None
    token = 1e3 * (timing.seconds - timing.first) / (NEW - 1)
    return {"where": where, "length": length, "prompt": timing.first, "token": token, "memory": memory}


def draw(rows: list[Row]) -> Figure:
    """Three panels by length: prompt, token, memory."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = {"prompt": "Prompt (s)", "token": "One more token (ms)", "memory": "Memory of the process (MiB)"}
    lengths = sorted({row["length"] for row in rows})
    for axes, (field, title) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for number, where in enumerate(dict.fromkeys(row["where"] for row in rows)):
            values = [
                row[field] / (2**20 if field == "memory" else 1) or math.nan for row in rows if row["where"] == where
            ]
            axes.plot(lengths, values, f"C{number}--" if where == "limit" else f"C{number}", label=where)
        axes.set(xscale="log", yscale="log", title=title, xlabel="tokens of the context")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


if __name__ == "__main__":
    main()
