"""List the architectures of llama.cpp, those that are written and read and those that are not, in docs/gguf.md.

python -m benchmarks.gguf
"""

from collections.abc import Iterable
from pathlib import Path

from archetype.convert.gguf.architectures import ALSO, GGUF
from archetype.convert.gguf.pretokenizers import CLOSE, CUTS, SAME_CUTS, SPACED, UNPUBLISHED
from archetype.convert.gguf.refused import REFUSED

PAGE = Path(__file__).parents[1] / "docs" / "gguf.md"


def written() -> dict[str, list[str]]:
    """Return the model types that are written as each architecture."""
    types: dict[str, list[str]] = {}
    for name, target in sorted(GGUF.items(), key=lambda item: item[1].architecture):
        types.setdefault(target.architecture, []).append(name)
    for name, others in ALSO.items():
        for other in others:
            types[GGUF[other].architecture].append(name)
    return types


def names_of(names: Iterable[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}"


def page() -> str:
    """Return the page's text."""
    types = written()
    rows = [f"| `{name}` | {', '.join(sorted({*of}))} |" for name, of in types.items()]
    refused = [f"| `{name}` | {reason} |" for name, reason in sorted(REFUSED.items())]
    names: dict[str, list[str]] = {name: [] for name in CUTS}
    for name, cut in SAME_CUTS.items():
        names[cut].append(name)
    cuts = [
        f"| `{name}` | {', '.join(same)} | {'read' if name in (*CLOSE, *UNPUBLISHED) else 'read, written'} |"
        for name, same in names.items()
    ]
    total = len(types) + len(REFUSED)
    return f"""# Architectures of llama.cpp

Which of llama.cpp's architectures can Archetype read from GGUF files and write to them? The names are those of
llama-cpp-python 0.3.36. Written by `python -m benchmarks.gguf`; [Convert](guide/convert.md#gguf-files) explains how to
read and write files.

Of {total} architectures, {len(types)} are read and written, and {len(REFUSED)} are refused. For each, `make llama-cpp`
compares the logits (or embeddings) of a small model with llama.cpp's.

| architecture | model types |
| --- | --- |
{chr(10).join(rows)}

## Refused

| architecture | reason |
| --- | --- |
{chr(10).join(refused)}

## Pre-tokenizers

A byte-level BPE vocabulary in a GGUF file names its pre-tokenizer: the regular expressions that split text into words.
Names that are not in this table are refused. {names_of(CLOSE)} are written only with
`--allow-different-tokens`, because llama.cpp's expressions match some letters as both uppercase and lowercase, and the
published expressions do not: every letter in the first two, non-ASCII letters in the others. The other read-only
pre-tokenizers have no published expressions, or unknown ones. A tokenizer that was read from GGUF can always be
written again.

{names_of(SPACED)} do not split text into words: spaces become ▁, and BPE
merges the whole text. These vocabularies (Gemma's) are read, and written as `gemma4`.

| name | aliases | support |
| --- | --- | --- |
{chr(10).join(cuts)}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
