"""BLEU of a trained encoder-decoder on a test set (sacrebleu, lower-cased), greedy and with a beam of 5.

python -m benchmarks.translation runs/de-en test.de.gz test.en.gz
"""

import argparse
import time
from pathlib import Path

import sacrebleu

import archetype
from archetype.data.pairs import read_lines
from archetype.io.text import read_text
from benchmarks.machine import heading


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    chosen = parser.parse_args()
    sources, references = read_lines(read_text(chosen.source), read_text(chosen.target), str(chosen.source))
    lm = archetype.load(chosen.run)
    name = f"python -m benchmarks.translation {chosen.run} {chosen.source.name} {chosen.target.name}"
    print(heading(name, "sacrebleu"))
    for num_beams in (1, 5):
        started = time.perf_counter()
        translations = lm.translate(sources, num_beams=num_beams, length_penalty=chosen.length_penalty)
        seconds = time.perf_counter() - started
        bleu = sacrebleu.corpus_bleu(translations, [references], lowercase=True)
        print(f"beam {num_beams}: {bleu.score:5.2f} BLEU  {len(sources) / seconds:5.1f} texts/s  {bleu}")


if __name__ == "__main__":
    main()
