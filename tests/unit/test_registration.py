"""How many lines outside its own files make a new kind known; one from outside the package takes one, `register`."""

import re

from tests.unit.test_names import FILES

# one kind of each role: its own files, and how others would name it; files of others (convert) and claims about kinds
# (studies) are another matter
KINDS = {
    "mixer": (tuple(f"parts/short_convolution/{name}.py"
                    for name in ("__init__", "spec", "module", "cost", "diagram", "infer", "transplant")),
              r"short_convolution\b|ShortConvolution"),
    "norm": (tuple(f"parts/norm/{name}.py" for name in ("spec", "module", "cost", "inspect", "transplant")),
             r"kind: batch\b|\bBatchNorm\b"),
    "activation": (("parts/activation/spec.py", "parts/activation/module.py"), r"\brelu2\b|\bReLU2\b"),
    "router": (tuple(f"parts/router/{name}.py" for name in ("spec", "module", "cost")), r"SigmoidRouter"),
    "family": (("families/smollm3.py",), r"smollm3"),
    "objective": (("training/objectives/image_class.py",), r"\bimage_class\b|\bImageClass\b"),
    "optimizer": (("training/optimizers/kinds.py",), r"\bAdafactor\b"),
    "tokenizer": (("tokenizers/tiktoken.py",), r'"tiktoken"'),
}  # fmt: skip
LINES = {  # one each; those of `explain` and of families say how it is shown and published: it works without them
    "mixer": {"apps/cli/explain.py": 1, "spec/__init__.py": 1},  # the latter for type checkers
    "norm": {"apps/cli/explain.py": 1},
    "activation": {"apps/cli/explain.py": 1, "families/config.py": 2, "families/nanochat.py": 1},
    "router": dict.fromkeys(
        (f"families/{name}.py" for name in ("deepseek_v3", "glm4_moe", "linear_attention", "llama4", "minimax_m2")), 2
    ),
    "family": {"families/registry.py": 1},
    "objective": {"training/objectives/__init__.py": 1},
    "optimizer": {"training/optimizers/__init__.py": 1},
    "tokenizer": {"tokenizers/registry.py": 1},
}  # fmt: skip


def registered(own: tuple[str, ...], name: str) -> dict[str, int]:
    """How many lines of each other file name a kind."""
    lines = {
        path: sum(re.search(name, line) is not None for line in file.read_text(encoding="utf-8").splitlines())
        for path, file in FILES.items()
        if path not in own and not path.startswith(("convert/", "studies/"))
    }
    return {path: count for path, count in lines.items() if count}


def test_a_new_kind_is_registered_in_few_lines() -> None:
    table = {role: registered(*kind) for role, kind in KINDS.items()}
    for role, lines in table.items():
        print(f"{role:10}", *(f"{path} ({count})" for path, count in lines.items()))
    assert table == LINES
