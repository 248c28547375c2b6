"""Jobs to benchmark on random tokens: decoding, prefill, requests of mixed lengths, training steps and embedding."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from archetype.api.language_model import LanguageModel
from archetype.data.corpus import Corpus
from archetype.errors import SpecError, enumeration
from archetype.generate import DecodeStep, Engine, Request, prefill
from archetype.generate.step import PREFILL_CHUNK
from archetype.models.build import GenerativeModel, Model
from archetype.models.causal import CausalModel
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.megabyte.module import MegaByte
from archetype.models.ngram.module import NGram
from archetype.models.spec import ModelSpec
from archetype.runs.directory import Run
from archetype.training.loop import take_step
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.recipe import Recipe
from archetype.training.state import TrainState

Job = Literal["decode", "prefill", "batch", "train", "embed"]
START = 0  # first token of a target
SHORTEST = 4  # mixed lengths range from 1/4 of the longest


class Sizes(NamedTuple):
    """Batch size, prompt tokens per sequence and new tokens per sequence."""

    batch: int
    prompt: int
    new: int


SIZES: dict[Job, Sizes] = {
    "decode": Sizes(1, 128, 64),
    "prefill": Sizes(1, 128, 1),
    "batch": Sizes(16, 128, 64),
    "train": Sizes(8, 256, 0),
    "embed": Sizes(64, 32, 0),
}


@dataclass(frozen=True)
class Workload:
    """Input of one repetition of a job.

    Attributes:
        prompts: random token ids of each sequence; for `train`, the batch of a step.
        new: number of tokens that each sequence generates, including the one after prefill; 0 in `train` and `embed`.
    """

    job: Job
    prompts: list[list[int]]
    new: list[int]

    @classmethod
    def of(cls, job: Job, spec: ModelSpec, batch: int | None, prompt: int | None, new: int | None) -> "Workload":
        """Return the workload of a job. Missing sizes default to the job's sizes, reduced to fit into the context.

        Args:
            prompt: prompt tokens per sequence, or their maximum for mixed lengths.
            new: new tokens per sequence, or their maximum for mixed lengths.

        Raises:
            SpecError: the sizes do not fit into the context, or the job does not support this model or `new`.
        """
        if job not in (jobs := jobs_of(spec)):
            remedy = f"use {enumeration(jobs, 'or')}" if jobs else "use a text model"
            raise SpecError(f"bench {job}", f"does not support a model of kind {spec.kind}", remedy)
        context, sizes, least = spec.context_length, SIZES[job], min(SIZES[job].new, 2)
        if new is not None and sizes.new < 2:
            raise SpecError("--new", f"{job} generates no more than the first token", "remove it, or use decode")
        # prompt and new tokens share the context; a source and its target do not
        shared = sizes.new > 0 and not spec.reads_source
        if prompt is None:
            prompt_room = max(2 * context // 3, context - sizes.new) if new is None else context - new
            prompt = min(sizes.prompt, prompt_room if shared else context)
        if new is None:
            new = min(sizes.new, context - prompt * shared)
        if prompt < 1 or new < least or max(prompt, prompt * shared + new) > context:
            cause = f"{prompt} prompt tokens and {new} new tokens do not fit into the context of {context}"
            raise SpecError("--prompt, --new", cause, f"use at least 1 and {least}, and fewer in total")
        batch_size = sizes.batch if batch is None else batch
        prompts, news = [prompt] * batch_size, [new] * batch_size
        if job == "batch":
            prompts, news = (_mixed(most, batch_size, seed) for seed, most in enumerate((prompt, new)))
        return cls(job, _random_tokens(spec, prompts), news)

    @property
    def sizes(self) -> Sizes:
        """Return the batch size and the largest number of prompt and of new tokens of a sequence."""
        return Sizes(len(self.prompts), max(map(len, self.prompts)), max(self.new))

    @property
    def mean(self) -> Sizes:
        """Return the batch size and the average number of prompt and of new tokens of a sequence, rounded."""
        batch_size = len(self.prompts)
        return Sizes(batch_size, round(sum(map(len, self.prompts)) / batch_size), round(sum(self.new) / batch_size))

    def equal(self, spec: ModelSpec) -> "Workload":
        """Return a workload with the same batch size in which all sequences have the average length."""
        batch_size, prompt, new = self.mean
        return Workload(self.job, _random_tokens(spec, [prompt] * batch_size), [new] * batch_size)


class Timing(NamedTuple):
    """Times of one repetition.

    Attributes:
        seconds: total time.
        first: time until every sequence has its first token; None if no token is generated. In the job `batch`, some
            sequences decode while others are still in prefill.
        tokens: generated tokens of the first sequence.
    """

    seconds: float
    first: float | None = None
    tokens: tuple[int, ...] = ()


def runner(model: Model, workload: Workload, dtype: str) -> Callable[[], Timing]:
    """Return a function that runs one repetition of a job and times it.

    Args:
        model: model to time; training changes its weights.
        dtype: compute dtype of training; the weights are float32.
    """
    if workload.job == "train":
        return _trainer(model, workload, dtype)
    if isinstance(model, GenerativeModel) and (workload.job == "batch" or model.is_deterministic):
        return _requests(model, workload)
    if isinstance(model, EncoderDecoder):
        return _translating(model, workload)
    if isinstance(model, CausalModel) and workload.job != "embed":
        return _decoding(model, workload)
    assert isinstance(model, Encoder | Decoder)
    return lambda: embed(model, workload)


def jobs_of(spec: ModelSpec) -> tuple[Job, ...]:
    """Return the jobs that a model supports."""
    if spec.writes_target:
        return ("decode", "prefill")
    writing: tuple[Job, ...] = ("decode", "prefill", "batch", "train") if spec.continues_text else ()
    return (*writing, "embed") if spec.embeds_tokens else writing


def _decoding(model: CausalModel, workload: Workload) -> Callable[[], Timing]:
    batch_size, prompt, new = workload.sizes
    # outside the timing: the first step is recorded, and later ones replay it, in every repetition
    step = DecodeStep(model, model.new_state(batch_size, prompt + new))

    @torch.inference_mode()
    def run() -> Timing:
        started = time.perf_counter()
        # keys and values are read into the rows in which they are decoded, as the engine does, so that a long context
        # is held once
        rows, in_place = torch.arange(batch_size, device=model.device), step.state.can_shorten
        state = step.state.rows(0, batch_size) if in_place else model.new_state(batch_size, prompt + new)
        state.insert(rows, model.new_state(batch_size, 1))
        logits, state = prefill(model, workload.prompts, state)
        if in_place:
            step.state.lengths.copy_(state.lengths)
        else:
            step.state.insert(rows, state)
        newest = logits.argmax(-1, keepdim=True)  # (B, 1)
        # reading a token waits for the GPU, so that the time covers finished work only
        tokens = [int(newest[0])]
        first = time.perf_counter() - started
        for _ in range(new - 1):  # prefill has given the first
            newest = step(newest).float().argmax(-1, keepdim=True)
            tokens.append(int(newest[0]))
        return Timing(time.perf_counter() - started, first, tuple(tokens))

    return run


def _requests(model: Decoder | NGram | MegaByte | EncoderDecoder, workload: Workload) -> Callable[[], Timing]:
    lm = LanguageModel(model.spec, model, special={"decoder_start_token_id": START})
    # mixed lengths are read in chunks between decoding steps, as a server does; else all prompts in one pass
    at_once = PREFILL_CHUNK if workload.job == "batch" else sum(map(len, workload.prompts))
    # no prefix cache: it would have the prompts of the repetition before
    engine = Engine(lm, slots=len(workload.prompts), prefix_bytes=0, prefill_tokens=at_once)

    def run() -> Timing:
        started = time.perf_counter()
        requests = [
            engine.submit(prompt, temperature=0.0, max_new_tokens=new, ignore_eos=True)
            for prompt, new in zip(workload.prompts, workload.new, strict=True)
        ]
        begun: dict[Request, float] = {}
        for event in engine.events():
            begun.setdefault(event.request, time.perf_counter() - started)
        return Timing(time.perf_counter() - started, max(begun.values()), tuple(requests[0].tokens))

    return run


def _translating(model: EncoderDecoder, workload: Workload) -> Callable[[], Timing]:
    batch_size, _, new = workload.sizes
    sources = torch.tensor(workload.prompts, device=model.device)  # (B, S)
    step = DecodeStep(model, model.new_state(sources, capacity=new))

    @torch.inference_mode()
    def run() -> Timing:
        tokens, first, started = [], 0.0, time.perf_counter()
        # a new state encodes the sources
        step.state.insert(torch.arange(batch_size, device=model.device), model.new_state(sources, capacity=new))
        newest = torch.full((batch_size, 1), START, device=model.device)
        for _ in range(new):
            newest = step(newest).argmax(-1, keepdim=True)  # (B, 1)
            tokens.append(int(newest[0]))
            first = first or time.perf_counter() - started
        return Timing(time.perf_counter() - started, first, tuple(tokens))

    return run


@torch.inference_mode()
def embed(model: Encoder | Decoder, workload: Workload) -> Timing:
    """Time embeddings: mean pooling for an encoder, last token for a decoder."""
    started = time.perf_counter()
    tokens = torch.tensor(workload.prompts, device=model.device)
    if isinstance(model, Decoder):
        vectors = model(tokens, last_only=True).hidden[:, -1]  # (B, D)
    else:
        vectors = model(tokens, with_logits=False).hidden.mean(1)  # (B, T, D) -> (B, D)
    vectors.float().sum().item()  # waits for a GPU
    return Timing(time.perf_counter() - started)


def _trainer(model: Model, workload: Workload, dtype: str) -> Callable[[], Timing]:
    batch_size, length, _ = workload.sizes
    # inputs and targets are shifted by one, so a row takes length + 1 tokens
    tokens = np.resize(np.array(workload.prompts, dtype=np.int32), 4 * batch_size * (length + 1))
    objective = NextTokenObjective(Corpus(tokens, tokens, len(tokens), ""), batch_size, length, seed=0)
    state = TrainState.build(Run(Path()), Recipe.parse({"dtype": dtype}), None, objective, model)

    def run() -> Timing:
        started = time.perf_counter()
        take_step(state)
        return Timing(time.perf_counter() - started)

    return run


def _mixed(most: int, count: int, seed: int) -> list[int]:
    # evenly spaced from `most` / 4 to `most`, and shuffled: prompts and new tokens with different seeds are unrelated
    least = max(1, most // SHORTEST)
    lengths = [least + round((most - least) * row / max(1, count - 1)) for row in range(count)] if count > 1 else [most]
    random.Random(seed).shuffle(lengths)
    return lengths


def _random_tokens(spec: ModelSpec, lengths: list[int]) -> list[list[int]]:
    # an encoder-decoder may have two vocabularies: prompts are sources
    vocab_size = getattr(spec, "source_vocab_size", None) or spec.vocab_size  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]
