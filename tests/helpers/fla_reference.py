"""Small models of flash-linear-attention, whose Triton kernels Triton's interpreter runs on the CPU.

    PYTHONPATH=.:.venv-fla python -m tests.helpers.fla_reference FOLDER

The folder has `cases.json`: of each case a model type and keys of its configuration, by name. Each becomes a folder
with a model whose tensors are all random (a case without keys has one already), and `logits.safetensors` of its
answers; or with `error.txt`, where fla makes none. A process of its own, since fla changes what transformers does.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.helpers.fla import flash_attn_func, interpret
from tests.helpers.weights import randomize

LENGTH = 12  # up to 64 tokens, fla chooses its recurrent kernels, which the interpreter can run


def tokens() -> torch.Tensor:
    """Two texts, of tokens below 61."""
    return (torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 + 3) % 61


@torch.no_grad()
def answer(kind: str, keys: dict[str, Any] | None, folder: Path) -> None:
    """Write logits: of the model in the folder, or of a new one with the given keys, and no others in config.json."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if keys is None:
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **keys)).eval()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # computed, such as frequencies
        randomize(model)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        model.save_pretrained(folder / "model")
        written = {"architectures": [type(model).__name__], "model_type": kind, "dtype": "float32"} | keys
        (folder / "model" / "config.json").write_text(json.dumps(written))
    logits = model(tokens(), use_cache=False).logits
    save_file({"logits": logits}, folder / "logits.safetensors")


def main() -> None:
    """Answer all cases."""
    interpret()
    import fla.layers.attn
    import fla.models

    fla.layers.attn.flash_attn_func = flash_attn_func
    place = Path(sys.argv[1])
    for name, (kind, keys) in json.loads((place / "cases.json").read_text()).items():
        folder = place / name
        folder.mkdir(exist_ok=True)
        try:
            answer(kind, keys, folder)
        except Exception as error:  # of any kind: whatever fla says of a configuration
            (folder / "error.txt").write_text(repr(error))


if __name__ == "__main__":
    main()
