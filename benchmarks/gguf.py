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

Which of llama.cpp's architectures can be written to a GGUF file and read from one, and which cannot? The names are
those of llama-cpp-python 0.3.36. Written by `python -m benchmarks.gguf`; [Convert](guide/convert.md#gguf-files) says
how files are made.

Of {total} architectures, {len(types)} are written and read, and {len(REFUSED)} are refused. `make llama-cpp` compares
the logits of a small model of each, or the vectors of an encoder, with llama.cpp's.

| architecture | model types |
| --- | --- |
{chr(10).join(rows)}

## Refused

| architecture | what it has that is not read |
| --- | --- |
{chr(10).join(refused)}

## Pre-tokenizers

A vocabulary of byte-level BPE names the expressions that cut a text into words. Other names are refused.
{names_of(CLOSE)} are written only with
`--allow-different-tokens`: llama.cpp's expressions take a letter (in the first two every one, otherwise those beyond
ASCII) for a capital and a small letter, the published ones do not. Of the others that are only read, the published form
is not one of expressions, or not known here; a tokenizer that was read is written again.

With {names_of(SPACED)}, texts are not cut into words: their spaces
become ▁, and BPE merges the whole. Such vocabularies (Gemma's) are read, and written as `gemma4`.

| name | other names of the same | here |
| --- | --- | --- |
{chr(10).join(cuts)}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
