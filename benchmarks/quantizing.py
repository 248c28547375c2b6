"""Quantizing to GGUF's types beside llama.cpp's quantizer, in as many threads and in turn.

python -m benchmarks.quantizing          (after `make llama-cpp`)

A random matrix of 16,384 x 4,096 in float32 (256 MiB). The bytes of both are compared, too.
"""

import ctypes
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import torch

from archetype.convert.gguf.quantize import quantize
from archetype.convert.gguf.types import BLOCKS
from benchmarks.machine import heading

TYPES = ("q8_0", "q4_k", "q5_k", "q6_k")
ROWS, WIDTH = 16_384, 4_096
REPEATS = 3


def by_llama_cpp(matrix: np.ndarray, type: str, threads: int) -> np.ndarray:
    """The blocks of a matrix as `ggml_quantize_chunk` makes them, a share of the rows in each thread."""
    from llama_cpp._ggml import libggml

    weights, size = BLOCKS[type]
    blocks = np.empty((len(matrix), matrix.shape[1] // weights * size), np.uint8)
    function = libggml.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    number = int(gguf.GGMLQuantizationType[type.upper()])

    def part(rows: np.ndarray) -> None:
        first, count = int(rows[0]), len(rows)
        function(number, matrix[first:].ctypes.data, blocks[first:].ctypes.data, 0, count, matrix.shape[1], None)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, np.array_split(np.arange(len(matrix)), threads)))
    return blocks


def seconds(run: Callable[[], object]) -> float:
    """The time of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Print megabytes of float32 a second: medians of all repeats."""
    threads = torch.get_num_threads()
    matrix = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    numbers = matrix.numpy()
    print(heading("python -m benchmarks.quantizing", "llama_cpp_python", "numpy"))
    print("| blocks | Archetype | llama.cpp | ratio |\n|---|---|---|---|")
    for type in TYPES:
        few = matrix[:512]
        same = np.array_equal(quantize(few, type).numpy(), by_llama_cpp(few.numpy(), type, threads))
        assert same, f"{type}: other bytes than llama.cpp's"
        times = [
            (seconds(lambda: quantize(matrix, type)), seconds(lambda: by_llama_cpp(numbers, type, threads)))  # noqa: B023
            for _ in range(REPEATS)
        ]
        ours, theirs = (numbers.nbytes / 1e6 / statistics.median(one) for one in zip(*times, strict=True))
        print(f"| {type} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
