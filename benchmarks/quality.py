"""What few bits cost in quality: perplexity and divergence from float32, beside llama.cpp's formats of the same width.

    python -m benchmarks.quality MODEL TEXT [--peer-python PATH]

Every model reads the same windows of the same tokens. The divergence is the mean over tokens of KL(float32 || few
bits), in nats. llama.cpp reads q8_0 and q4_0 files that `archetype export` wrote from the same weights.
"""

import argparse
import json
import math
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

import archetype
from archetype.api.language_model import LanguageModel
from archetype.convert.gguf.file import FILE
from archetype.models.causal import CausalModel
from benchmarks.machine import heading

# Runs in the peer's Python: the logits of each window, written as float32.
PROGRAM = """
import ctypes, json, sys
import numpy, llama_cpp
request = json.load(sys.stdin)
length = request["length"]
model = llama_cpp.Llama(request["file"], n_ctx=length + 8, n_batch=length, logits_all=True, verbose=False)
rows = []
for window in request["windows"]:
    model.reset()
    model.eval(window)
    rows.append(numpy.array(model.scores[: len(window)], dtype=numpy.float32))
numpy.save(request["to"], numpy.stack(rows))
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--length", type=int, default=256, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--peer-python", help="a Python that has llama-cpp-python")
    chosen = parser.parse_args()
    lm = archetype.load(chosen.model, "float32")
    assert lm.tokenizer is not None
    ids = lm.tokenizer.encode(chosen.text.read_text(encoding="utf-8"))
    count = min(chosen.windows, len(ids) // chosen.length)
    windows = torch.tensor(ids[: count * chosen.length]).view(count, chosen.length)
    exact = logits(lm, windows)
    print(heading(f"{chosen.model}, {count} windows of {chosen.length} tokens"))
    print("| weights | perplexity | KL from float32 |\n|---|---|---|")
    show("float32", exact, exact, windows)
    show("bfloat16", logits(archetype.load(chosen.model, "bfloat16"), windows), exact, windows)
    for weights, kind in (("int8", "q8_0"), ("int4", "q4_0")):
        show(weights, logits(archetype.load(chosen.model, "float32", weights=weights), windows), exact, windows)
        if chosen.peer_python:
            show(f"llama.cpp {kind}", of_llama_cpp(lm, kind, windows, chosen.peer_python), exact, windows)


@torch.inference_mode()
def logits(lm: LanguageModel, windows: Tensor) -> Tensor:
    """Of every position, (windows, length, V)."""
    assert isinstance(lm.model, CausalModel)
    return torch.cat([lm.model(window[None]).logits.float() for window in windows])


def of_llama_cpp(lm: LanguageModel, kind: str, windows: Tensor, python: str) -> Tensor:
    """The same, by llama.cpp from a file that is written for it."""
    import numpy

    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        archetype.export(lm, folder / "gguf", format="gguf", type=kind)
        output = folder / "logits.npy"
        request = {
            "file": str(folder / "gguf" / FILE),
            "windows": windows.tolist(),
            "length": windows.shape[1],
            "to": str(output),
        }
        subprocess.run([python, "-c", PROGRAM], input=json.dumps(request), text=True, check=True)
        return torch.from_numpy(numpy.load(output))


def show(name: str, own: Tensor, exact: Tensor, windows: Tensor) -> None:
    """One line of the table."""
    ours, reference = own.log_softmax(-1), exact.log_softmax(-1)
    loss = -ours[:, :-1].gather(-1, windows[:, 1:, None]).mean().item()
    divergence = (reference.exp() * (reference - ours)).sum(-1).mean().item()
    print(f"| {name} | {math.exp(loss):.4f} | {divergence:.2e} |", flush=True)


if __name__ == "__main__":
    main()
