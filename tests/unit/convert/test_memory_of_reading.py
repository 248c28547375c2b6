"""No checkpoint is held twice while it is read: the peak is its numbers and one tensor."""

import json
import struct
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

from archetype.convert.apply import shapes_of
from archetype.families import FAMILIES
from archetype.families.llama import llama
from archetype.families.rules import for_model
from archetype.models.build import build_on_meta

SPEC = llama(num_layers=4, d_model=2048, num_heads=16, num_kv_heads=4, d_ff=5632, vocab_size=32_000, context_length=64)
BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
SHARDS = 3
SLACK = 32 * 2**20  # what the interpreter itself asks for meanwhile
LOAD = """
import sys, threading, time, archetype
def memory():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) * 1024
archetype.load(sys.argv[1])  # a small model first, which imports everything
before, most, done = memory(), 0, False
def watch():
    global most
    while not done:
        most = max(most, memory())
        time.sleep(0.001)
watcher = threading.Thread(target=watch)
watcher.start()
model = archetype.load(sys.argv[2], dtype=sys.argv[3])
done = True
watcher.join()
print(most - before)
"""


def write(folder: Path, spec: Any, low_bit: bool) -> tuple[int, int]:
    """A sharded folder of sparse files; returns the bytes of all its numbers and of the largest tensor."""
    folder.mkdir()
    model = build_on_meta(spec)
    shapes = shapes_of(model)
    entries: dict[str, tuple[str, tuple[int, ...]]] = {}
    for rule in for_model(FAMILIES["llama"].format.rules_for(spec), spec.num_layers, shapes):
        shape = shapes[rule.params[0]]
        is_low = low_bit and len(shape) == 2 and ".layers." in rule.hf
        entries[rule.hf] = ("F8_E4M3" if is_low else "BF16", shape)
        if is_low:
            entries[f"{rule.hf}_scale_inv"] = ("F32", (-(-shape[0] // 128), -(-shape[1] // 128)))
    weight_map = {}
    for number in range(SHARDS):
        header, end, name = {}, 0, f"model-{number}.safetensors"
        for tensor in list(entries)[number::SHARDS]:
            dtype, shape = entries[tensor]
            first, end = end, end + prod(shape) * BYTES[dtype]
            header[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [first, end]}
            weight_map[tensor] = name
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = FAMILIES["llama"].format.config_for(spec) | {"dtype": "bfloat16"}
    if low_bit:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = [2 * prod(shape) for shape in shapes.values()]
    return sum(sizes), max(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("low_bit", "dtype"), [(False, "bfloat16"), (False, "float16"), (True, "bfloat16")])
def test_the_peak_is_all_numbers_and_one_tensor(low_bit: bool, dtype: str, tmp_path: Path) -> None:
    write(tmp_path / "small", SPEC.replace(layers=SPEC.layers[:1], vocab_size=64, d_model=2048), low_bit)
    numbers, largest = write(tmp_path / "large", SPEC, low_bit)
    command = [sys.executable, "-c", LOAD, str(tmp_path / "small"), str(tmp_path / "large"), dtype]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert peak < numbers + largest + SLACK
    assert peak > numbers / 2  # the control: something was measured
