"""Train the example model of `archetype serve`, a Llama of half a million parameters: `python -m benchmarks.example`.

Reads the prose of README.md and docs/ and the docstrings of the package, trains with a fixed seed (ten minutes of one
core), and writes the model in bfloat16 into archetype/apps/serve/example, which packages contain.
"""

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from archetype.apps.serve.example import FOLDER
from archetype.families.llama import llama
from archetype.io.yaml import mapping_to_yaml

ROOT = Path(__file__).parents[1]
VOCABULARY, LENGTH, STEPS = 1024, 256, 3000
SHORTEST = 60  # characters; shorter paragraphs are headings and labels


def main() -> None:
    """Train, export, and replace the model of the package."""
    spec = llama(
        name="example", num_layers=4, d_model=96, num_heads=4, num_kv_heads=2, d_ff=256, vocab_size=VOCABULARY,
        context_length=LENGTH, tied=True, std=0.05,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        text, recipe, run = (Path(scratch) / name for name in ("text.txt", "recipe.yaml", "run"))
        text.write_text(prose(), encoding="utf-8")
        recipe.write_text(mapping_to_yaml({
            "spec": {name: value for name, value in spec.dump().items() if name != "vocab_size"},
            "steps": STEPS, "batch_size": 8, "dtype": "float32", "evaluate_every": 250, "seed": 1,
            "data": {"text": [str(text)], "tokenizer": "byte_bpe", "vocab_size": VOCABULARY},
            "optimizer": {"kind": "muon", "learning_rate": 0.01}, "schedule": {"kind": "cosine", "warmup_steps": 100},
        }))  # fmt: skip
        archetype("train", "--recipe", recipe, "--to", run)
        archetype("export", run, "--to", Path(scratch) / "example", "--dtype", "bfloat16")
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(Path(scratch) / "example", FOLDER)


def prose() -> str:
    """Return the paragraphs of README.md, docs/ and all docstrings, each once, without code, tables and addresses."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [file.read_text(encoding="utf-8") for file in pages]
    for file in sorted((ROOT / "archetype").rglob("*.py")):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts += [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    return "\n".join(dict.fromkeys(line for text in texts for line in paragraphs(text))) + "\n"


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a Markdown text, a line each, without marks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", text):
        line = " ".join(re.sub(r"^([-*]|\d+\.) ", "", block.strip()).split())
        if len(line) >= SHORTEST and line[0] not in "|#<!" and "|" not in line:
            yield re.sub(r"[*`]", "", line)


def archetype(*arguments: str | Path) -> None:
    """Run a verb."""
    subprocess.run([sys.executable, "-m", "archetype", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
