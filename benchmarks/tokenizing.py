"""Encoding a long text on one core, beside the library `tokenizers` and beside tiktoken.

python -m benchmarks.tokenizing

A byte-level BPE is trained on the English of the Python library for each way to cut a text into words; the same text
is then encoded, all in turn. TEXT takes another text to encode, such as one in another language.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from archetype.data.corpus import encode
from archetype.data.library_text import library_text
from archetype.data.tokenization import CHUNK
from archetype.io.text import cut_at_lines, read_text
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, to_bytes
from archetype.tokenizers.tiktoken import LLAMA3
from archetype.tokenizers.word_cache import GPT2
from benchmarks.machine import heading

PATTERNS = {"GPT-2's words": GPT2, "Llama 3's words": LLAMA3}


def trained(pattern: str, vocab_size: int) -> HuggingFaceTokenizer:
    """Byte-level BPE on the words of a pattern."""
    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence([split, level]), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        [library_text()], trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    )
    return HuggingFaceTokenizer(backend.to_str().encode())


def encoded(backend: Tokenizer, chunks: list[str]) -> list[int]:
    """The ids of a text, as the library gives them."""
    return [id for chunk in chunks for id in backend.encode(chunk).ids]


def encoded_fast(backend: Tokenizer, chunks: list[str]) -> list[int]:
    """The same without the places of tokens in the text."""
    return [id for encoding in backend.encode_batch_fast(chunks) for id in encoding.ids]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    text = read_text(options.text) if options.text else library_text()
    chunks = list(cut_at_lines(text, CHUNK))
    megabytes = len(text.encode()) / 1e6
    print(heading("python -m benchmarks.tokenizing", "tokenizers", "tiktoken"))
    print(f"{megabytes:.1f} MB of text, vocabulary of {options.vocab_size:,}; MB a second of one core, medians")
    print(
        "| | here | tokenizers, encode | tokenizers, encode_batch_fast | tiktoken | here / the faster of tokenizers |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for name, pattern in PATTERNS.items():
        tokenizer = trained(pattern, options.vocab_size)
        ranks = {to_bytes(token): id for token, id in tokenizer.backend.get_vocab().items()}
        other = tiktoken.Encoding("other", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        ways: dict[str, Callable[[], object]] = {
            "here": partial(encode, tokenizer, text, CHUNK),
            "encode": partial(encoded, tokenizer.backend, chunks),
            "fast": partial(encoded_fast, tokenizer.backend, chunks),
            "tiktoken": partial(other.encode_ordinary_batch, chunks, num_threads=1),
        }
        assert encode(tokenizer, text, CHUNK).tolist() == encoded(tokenizer.backend, chunks)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.repeat):
            for way, work in ways.items():
                started = time.process_time()
                work()
                times[way].append(time.process_time() - started)
        rates = {way: megabytes / statistics.median(seconds) for way, seconds in times.items()}
        ratio = rates["here"] / max(rates["encode"], rates["fast"])
        print(f"| {name} | {' | '.join(f'{rate:.1f}' for rate in rates.values())} | {ratio:.1f} x |", flush=True)


if __name__ == "__main__":
    main()
