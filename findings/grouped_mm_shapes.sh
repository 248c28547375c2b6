#!/usr/bin/env bash
# torch.nn.functional.grouped_mm multiplies float32 matrices on a CPU, so one expects it to do so in a graph of torch.compile, on the
# meta device, and for matrices of any width. In torch 2.13.0 its function for shapes takes bfloat16 alone, so that a module that
# computes in float32 cannot be compiled as one graph (and meta tensors are refused); and every row has to begin at a multiple of
# 16 bytes, so that three features of float32 are refused too. Both are raised errors.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet torch==2.13.0 numpy==2.4.6
cd "$place"
"$place/env/bin/python" -W ignore - <<'PY'
import torch
from torch.nn.functional import grouped_mm

print("torch", torch.__version__)
ends = torch.tensor([2, 5], dtype=torch.int32)


def result(device: str, dtype: torch.dtype, features: int) -> str:
    x = torch.ones(5, features, dtype=dtype, device=device)
    weights = torch.ones(2, features, 8, dtype=dtype, device=device)
    try:
        return str(tuple(grouped_mm(x, weights, offs=ends.to(device)).shape))
    except RuntimeError as error:
        return str(error).splitlines()[0][:100]


found = {
    case: result(*case)
    for case in (("cpu", torch.float32, 8), ("cpu", torch.float32, 3), ("meta", torch.float32, 8), ("meta", torch.bfloat16, 8))
}
for case, answer in found.items():
    print(*case, answer, sep="  ")
computed, misaligned, shape_of_float32, shape_of_bfloat16 = found.values()
assert computed == shape_of_bfloat16 == "(5, 8)", "no longer as recorded"
assert "16 bytes" in misaligned and "BF16" in shape_of_float32, "no longer as recorded"
PY
