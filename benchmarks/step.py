"""The parts of one decoding step on CPU: a recorded step replayed whole, and its products, attention and rest alone.

    python -m benchmarks.step --weights int4 --rows 1
    python -m benchmarks.step --between 151936 --rows 1

The model has Llama's form, 110 M parameters (12 layers of 768, vocabulary 32,000, tied; `benchmarks.shapes`) and
random weights. `--between` measures what an engine does between two steps instead, for each setting of sampling:
processor time of one thread, with a model of 8 layers of 128 and this vocabulary, whose logits have a standard
deviation of 4.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import count, islice, product
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from torch import Tensor

from archetype import LanguageModel
from archetype.families.llama import llama
from archetype.families.original_transformer import transformer
from archetype.generate import Beam, Engine, beam
from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.native.arguments import OPERATIONS, Entry
from archetype.native.recorder import Replay, TorchCall
from archetype.runs.peaks import read_peak
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.weights.packing import TYPES, pack_model
from benchmarks.machine import heading
from benchmarks.shapes import shape

PARTS: dict[str, Callable[[str], bool]] = {
    "whole step": lambda operation: True,
    "products": lambda operation: operation == "product",
    "attention": lambda operation: operation == "attend",
    "the rest": lambda operation: operation not in ("product", "attend"),
}

# settings of a request, and of `Beam`; without a temperature, decoding is greedy
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top_k 50": {"temperature": 1.0, "top_k": 50},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top_k 50, top_p 0.9": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "typical_p 0.9": {"temperature": 1.0, "typical_p": 0.9},
    "top_h 0.4": {"temperature": 1.0, "top_h": 0.4},
    "epsilon_cutoff 3e-4": {"temperature": 1.0, "epsilon_cutoff": 3e-4},
    "eta_cutoff 3e-4": {"temperature": 1.0, "eta_cutoff": 3e-4},
    "repetition_penalty 1.1": {"repetition_penalty": 1.1},
    "presence, frequency 0.1": {"presence_penalty": 0.1, "frequency_penalty": 0.1},
    "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
    "logit_bias of 8": {"logit_bias": dict.fromkeys(range(8), 1.0)},
    "4 stop strings": {"stop": ("wxyz", "stop", "###", "end of text")},
    "5 logprobs": {"logprobs": 5},
    "regex": {"regex": "[a-z ]*"},
}
BEAMS: dict[str, dict[str, Any]] = {
    "5 beams": {},
    "5 beams, no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
    "5 beams, repetition_penalty 1.1": {"repetition_penalty": 1.1},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=("float32", "bfloat16", "lossless", "int8", "int4"), default="float32")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--filled", type=int, default=160, help="tokens in the cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--between", type=int, metavar="VOCABULARY", help="measure what lies between two steps")
    parser.add_argument("--only", default="", help="settings whose names contain this, for --between")
    chosen = parser.parse_args()
    if chosen.between is not None:
        print_between(chosen.between, chosen.rows, chosen.rounds, chosen.only)
        return
    torch.set_num_threads(chosen.threads)
    model = build(
        shape("110M"), dtype=torch.bfloat16 if chosen.weights in ("bfloat16", "lossless") else torch.float32
    ).eval()
    assert isinstance(model, Decoder)
    if chosen.weights in TYPES:
        pack_model(model, chosen.weights)
    state = model.new_state(chosen.rows, 512)
    state.lengths += chosen.filled
    step = DecodeStep(model, state)
    step(torch.zeros(chosen.rows, 1, dtype=torch.long))
    assert step.replay is not None, "there are no native kernels"
    num_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    print(heading(f"python -m benchmarks.step --weights {chosen.weights} --rows {chosen.rows}"))
    peak, _ = read_peak(torch.device("cpu"))
    print(f"reads {peak.rate / 1e9:.1f} GB/s ({peak.path}); {num_bytes / 1e6:.0f} MB of weights")
    for name, is_part in PARTS.items():
        entries, times = selected(step.replay, is_part), []
        for _ in range(chosen.rounds):
            state.lengths.fill_(chosen.filled)
            started = time.perf_counter()
            step.replay.library.run(entries, len(entries), chosen.threads)
            times.append(time.perf_counter() - started)
        seconds = statistics.median(times)
        speed = f"{num_bytes / seconds / 1e9:6.1f} GB/s, {chosen.rows / seconds:6.1f} tokens/s" * (name == "whole step")
        print(f"{name:<12}{1e3 * seconds:8.2f} ms  {speed}")


def selected(replay: Replay, is_part: Callable[[str], bool]) -> "ctypes.Array[Entry]":
    """The operations of a recorded step that belong to a part, as one list."""
    segments = [segment for segment in replay.segments if not isinstance(segment, TorchCall)]
    entries = [entry for segment in segments for entry in segment if is_part(OPERATIONS[entry.operation].operation)]
    return (Entry * len(entries))(*entries)


class Inside:
    """Processor time inside of decode steps, which are replaced while it is in force."""

    def __init__(self) -> None:
        self.seconds, call = 0.0, DecodeStep.__call__

        def timed(step: DecodeStep, tokens: Tensor) -> Tensor:
            started = time.process_time()
            result = call(step, tokens)
            self.seconds += time.process_time() - started
            return result

        DecodeStep.__call__ = timed  # type: ignore[assignment, method-assign]


def print_between(vocabulary: int, rows: int, rounds: int, only: str) -> None:
    """Print microseconds of a step, and of what lies between two steps, for each setting."""
    torch.set_num_threads(1)
    print(heading(f"python -m benchmarks.step --between {vocabulary} --rows {rows}"))
    sizes: dict[str, Any] = dict(context_length=2048, vocab_size=vocabulary, d_model=128, d_ff=352, num_heads=4)
    model = build(llama(num_layers=8, tied=True, **sizes)).eval()
    tokenizer = words(vocabulary)
    prompt, inside = torch.randint(vocabulary, (256,), generator=torch.Generator().manual_seed(0)).tolist(), Inside()
    with torch.inference_mode():
        spread = model(torch.tensor([prompt])).logits.std()
        dict(model.named_parameters())["final_norm.weight"].mul_(4 / spread)
    engine = Engine(LanguageModel(model.spec, model, tokenizer), rows, 0)
    for name in (name for name in SETTINGS if only in name):
        settings = {"temperature": 0.0, "ignore_eos": True} | SETTINGS[name]
        requests = [engine.submit([*prompt, row], seed=row, **settings) for row in range(rows)]
        report(name, engine.step, inside, rounds)
        for request in requests:
            request.cancel()
        engine.step()
    sources = [[*prompt[:64], row] for row in range(rows)]
    pair = build(transformer(num_layers=4, **sizes)).eval()
    assert isinstance(pair, EncoderDecoder)
    for name in (name for name in BEAMS if only in name):
        steps = beam.Search(pair, sources, 1, 2, Beam(max_new_tokens=rounds + 8, **BEAMS[name])).steps()
        report(name, partial(next, steps), inside, rounds)


def report(name: str, step: Callable[[], object], inside: Inside, rounds: int) -> None:
    """Print the medians over some steps."""
    for _ in range(4):  # prompts are read, and steps are recorded
        step()
    times = []
    for _ in range(rounds):
        inside.seconds, started = 0.0, time.process_time()
        step()
        times.append((time.process_time() - started - inside.seconds, inside.seconds))
    between, within = (1e6 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:<34}{between:9.0f} us between steps {within:9.0f} us in a step")


def words(vocabulary: int) -> Tokenizer:
    """A tokenizer of bytes and of words of letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    lengths = count(2)
    while len(tokens) < vocabulary - 1:
        tokens += map("".join, islice(product(letters, repeat=next(lengths)), vocabulary - 1 - len(tokens)))
    backend = tokenizers.Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevel()
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return HuggingFaceTokenizer(backend.to_str().encode(), {"eos_token": "</s>"})


if __name__ == "__main__":
    main()
