"""How far bfloat16 is from float32 in both libraries, family by family: the table of docs/parity.md.

    python -m benchmarks.parity > docs/parity.md

Small models in which every tensor is random, those of the parity tests. `theirs` and `ours` are each library's bfloat16
logits against its own float32 ones; `between` is ours against theirs, both in bfloat16: all of the largest magnitude.
"""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

import archetype
from tests.helpers.published import Published
from tests.helpers.weights import distance, randomize
from tests.parity import test_decoders, test_encoders, test_pairs

Answers = Callable[[Published, nn.Module], Tensor]


def decoder(name: str, folder: Path) -> tuple[Published, Answers, Answers]:
    """A decoder of the parity tests."""
    test_decoders.written(test_decoders.CONFIGS[name](), folder)
    one = Published(folder, test_decoders.reference(folder), archetype.load(folder))
    return one, lambda _, model: model(test_decoders.TEXT).logits, lambda _, model: model(test_decoders.TEXT).logits


def encoder(name: str, folder: Path) -> tuple[Published, Answers, Answers]:
    """An encoder of texts or pictures."""
    architecture, config = test_encoders.CONFIGS[name]
    randomize(getattr(transformers, architecture)(config())).save_pretrained(folder)  # type: ignore[operator]
    one = Published(folder, test_encoders.reference(architecture, folder), archetype.load(folder))
    return one, test_encoders.hf_output, test_encoders.ours


def pair(name: str, folder: Path) -> tuple[Published, Answers, Answers]:
    """An encoder-decoder."""
    one = test_pairs.written(name, folder)
    return one, lambda _, model: test_pairs.theirs(model).logits, lambda _, model: test_pairs.ours(model)


FAMILIES = {
    **dict.fromkeys(
        (
            "gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
            "olmo2", "phi3", "smollm3", "gpt_oss", "deepseek_v2", "deepseek_v3", "bloom", "mpt", "mamba", "mamba2",
        ),
        decoder,
    ),
    **dict.fromkeys(("bert", "longformer", "big_bird", "vit"), encoder),
    **dict.fromkeys(("t5", "marian"), pair),
}  # fmt: skip


@torch.no_grad()
def row(name: str) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as place:
        one, theirs, ours = FAMILIES[name](name, Path(place))
        rounded = copy.deepcopy(one.hf).bfloat16()
        if name == "gpt_oss":  # torch's grouped product on CPU refuses rows of these sizes in bfloat16
            rounded.set_experts_implementation("eager")  # type: ignore[operator]
        half = Published(one.folder, rounded, archetype.load(one.folder, torch.bfloat16))
        exact = theirs(one, one.hf)
        float32 = distance(ours(one, one.lm.model), exact)
        rounded_theirs, rounded_ours = theirs(half, half.hf), ours(half, half.lm.model)
        values = (float32, distance(rounded_theirs, exact), distance(rounded_ours, exact),
                  distance(rounded_ours, rounded_theirs))  # fmt: skip
    return f"| {name} | " + " | ".join(f"{value:.1e}" for value in values) + " |"


def main() -> None:
    """Print the table."""
    print(
        "# Numerical agreement with transformers\n\n"
        "How closely Archetype's logits match those of transformers, for small models in which every tensor is "
        "random.\n"
        "Each figure is the largest difference of logits, divided by the largest logit. In float32, the two libraries\n"
        "are compared with each other. In bfloat16, each is also compared with the exact logits. In models with\n"
        "experts, rounding changes which experts are selected, in both libraries.\n\n"
        f"Measured on CPU with transformers {transformers.__version__} and torch {torch.__version__.split('+')[0]} by\n"
        "`python -m benchmarks.parity > docs/parity.md`. `make fla` compares mixers that transformers does not have\n"
        "with flash-linear-attention's layers: all agree within 1e-5 in float32 (`tests/parity/test_fla.py`).\n\n"
        "| family | float32, both | bfloat16, transformers | bfloat16, Archetype | bfloat16, both |\n"
        "|---|---|---|---|---|"
    )
    for name in FAMILIES:
        print(row(name))


if __name__ == "__main__":
    main()
