"""The functions of `import archetype`; each imports its dependencies when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from archetype.errors import SpecError

if TYPE_CHECKING:
    import torch

    from archetype.api.language_model import LanguageModel
    from archetype.convert.gguf.types import FileType
    from archetype.convert.source import Source
    from archetype.cost.work import AttentionPairs
    from archetype.diagram import Drawing, Measure
    from archetype.estimate.report import CostReport
    from archetype.evaluation import ClassReport, Score, TranslationScore, ValueReport
    from archetype.evaluation.tasks import TaskScores
    from archetype.models.build import Model
    from archetype.models.spec import ModelSpec
    from archetype.spec.edit import Change
    from archetype.tokenizers import Tokenizer
    from archetype.training.metrics import Event


def load_spec(source: Source) -> ModelSpec:
    """Read a specification.

    Args:
        source: a preset's name, a YAML or JSON file, a run directory, a Hugging Face folder or its config.json, a model
            on huggingface.co (owner/name or owner/name@revision; its weights are not downloaded), or a dict.

    Raises:
        ArchetypeError: the source does not exist, or is invalid.
    """
    from archetype.convert.source import open_spec

    return open_spec(source)


def presets() -> list[str]:
    """Return the names of all presets."""
    from archetype.families.index import preset_facts

    return list(preset_facts())


def diff(first: Source, second: Source) -> list[Change]:
    """Return every field in which two specifications differ, as (path, first value, second value).

    Args:
        first: anything that `load_spec` takes.
        second: anything that `load_spec` takes.

    Raises:
        ArchetypeError: a specification is invalid.
    """
    from archetype.spec.edit import differences

    return differences(load_spec(first), load_spec(second))


def cost_report(
    source: Source,
    batch: int = 1,
    length: int | None = None,
    dtype: str = "bfloat16",
    attention: AttentionPairs = "computed",
    source_length: int | None = None,
    state_dtype: str | None = None,
) -> CostReport:
    """Count the parameters, FLOPs, state and memory of a specification.

    Args:
        source: anything that `load_spec` takes.
        batch: batch size.
        length: tokens per sequence (default: the context length).
        dtype: type of the weights, such as "bfloat16" or "int4"; a type of GGUF files, such as "q4_k_m", tensor by
            tensor as `export` writes it; or "published": the types that the source's files have.
        attention: count all `computed` pairs of positions, masked or not, or only `allowed` pairs.
        source_length: tokens per source of an encoder-decoder (default: `length`).
        state_dtype: type of the state (default: that of the weights, at least 16 bits).

    Raises:
        ArchetypeError: the specification is invalid, or a length or data type is not possible.
    """
    from archetype.convert.weight_types import weight_types
    from archetype.estimate import report

    model = load_spec(source)
    types = weight_types(dtype, model, source)
    return report.cost_report(model, batch, length, types, attention, source_length, state_dtype)


def draw(
    source: Source,
    other: Source | None = None,
    measure: Measure = "parameters",
    batch: int = 1,
    length: int | None = None,
    dtype: str = "bfloat16",
    aspect: str | None = None,
) -> Drawing:
    """Draw an architecture; a notebook shows it, `.save("it.svg")` or `.save("it.png")` writes it.

    Repeated blocks are folded, the residual stream is a rail, shapes are symbols, and each box has a bar for its cost.

    Args:
        source: anything that `load_spec` takes.
        other: a second architecture, drawn next to it; additions, removals and changes are coloured and listed.
        measure: quantity shown by the bars: parameters, active parameters, FLOPs or bytes of the weights.
        batch: batch size, for FLOPs.
        length: tokens per sequence (default: the context length; of two, the shorter).
        dtype: type of the weights.
        aspect: aspect ratio of the picture, such as "16:9"; blocks are arranged in the rows that allow the largest
            text (default: that of the drawing).

    Raises:
        ArchetypeError: a specification is invalid, or the measure does not exist.
    """
    from archetype.diagram import Drawing
    from archetype.diagram.architecture import draw, draw_in
    from archetype.diagram.aspect import with_aspect
    from archetype.diagram.compare import compared
    from archetype.estimate.report import common_length, cost_report

    specs = [load_spec(item) for item in (source, other) if item is not None]
    length = common_length(specs) if length is None else length
    # both at one length, so that their bars are comparable
    reports = [cost_report(spec, batch, length, dtype) for spec in specs]
    if aspect is not None and len(specs) == 1:
        return Drawing(draw_in(reports[0], measure, aspect))
    scenes = [draw(report, measure) for report in reports]
    scene = scenes[0]
    if len(specs) > 1:
        scene = compared((specs[0], scenes[0]), (specs[1], scenes[1]))
    return Drawing(scene if aspect is None else with_aspect(scene, aspect))


def build(
    source: Source, seed: int = 0, device: str | torch.device = "cpu", dtype: str | torch.dtype = "float32"
) -> Model:
    """Build a randomly initialised model; the same seed gives the same weights.

    Args:
        source: anything that `load_spec` takes.
        seed: seed of the initial weights.
        device: auto (a GPU if there is one), cpu, cuda, cuda:N, mps, or meta (shapes without storage).
        dtype: type of the weights, such as "bfloat16" or torch.bfloat16.

    Raises:
        ArchetypeError: the specification is invalid, or its weights do not fit into memory.
    """
    from archetype.io.tensors import dtype_of
    from archetype.machine.device import resolve_device
    from archetype.models.build import build

    torch_dtype = dtype_of(dtype)
    assert torch_dtype is not None
    return build(load_spec(source), seed, resolve_device(device, allow_meta=True), torch_dtype)


def load(
    folder: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "auto",
    allow_pickle: bool = False,
    overrides: Sequence[str] = (),
    weights: str | None = None,
    further_tokens: bool = False,
    deterministic: bool = False,
    accept_unproved: bool = False,
) -> LanguageModel:
    """Load a model with its tokenizer, as an object of the class for its kind: `CausalLM`, `TextEncoder` and so on.

    For a type checker, name the class: `archetype.CausalLM.load(folder)` has the same arguments.

    Args:
        folder: a run directory (spec.yaml), a Hugging Face folder (config.json), a GGUF file, or a model on
            huggingface.co, owner/name or owner/name@revision.
        dtype: type of the weights, such as "bfloat16" (default: as stored).
        device: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.
        allow_pickle: also read pytorch_model.bin, with an unpickler that can only create tensors.
        overrides: assignments path=value, as for `archetype set`, to the specification of a Hugging Face folder; they
            replace assumptions about a family that is not registered, such as "fused_order=qkv".
        weights: "int8" or "int4" quantizes matrices to 8 or 4 bits in groups of 32, about a quarter or an eighth of
            float32; "lossless" stores bfloat16 matrices in 12 bits without changing a value.
        further_tokens: load the multi-token prediction layers of a Hugging Face folder, so that the model can be its
            own draft model (default: leave them out).
        deterministic: make the logits of each sequence independent, bit for bit, of the batch, the prefill chunks
            and the draft model; prefill is then slower.
        accept_unproved: load a family that is not registered even if neither a test nor a class of the installed
            transformers can confirm the assumptions about it.

    Raises:
        ArchetypeError: a file is invalid; the message names the file and the fault.

    Warns:
        UnknownFamily: the family is not registered; the message says what was inferred, and from what.
    """
    from archetype.api.loading import load
    from archetype.io.tensors import dtype_of

    return load(
        folder,
        dtype_of(dtype),
        device,
        allow_pickle,
        overrides,
        weights,
        further_tokens=further_tokens,
        deterministic=deterministic,
        accept_unproved=accept_unproved,
    )


from_pretrained = load  # the name in transformers


def tokenizer(folder: str | Path) -> Tokenizer:
    """Open a tokenizer: `.encode(text)`, `.decode(ids)`, `.vocab_size`.

    Args:
        folder: a tokenizer file, such as tokenizer.json or tokenizer.model; a folder with such a file, such as
            `tokenizer` in a run directory; or owner/name or owner/name@revision on huggingface.co.

    Raises:
        DataError: the tokenizer does not exist, or is damaged.
    """
    from archetype.tokenizers import open_tokenizer

    return open_tokenizer(Path(folder))


@overload
def evaluate(
    model: str | Path | LanguageModel, text: str, *, stride: int | None = None, length: int | None = None
) -> Score: ...


@overload
def evaluate(
    model: str | Path | LanguageModel, *, data: str | Path | tuple[str | Path, str | Path], **beam: Any
) -> ClassReport | ValueReport | TranslationScore: ...


@overload
def evaluate(
    model: str | Path | LanguageModel, *, tasks: Sequence[str], num_fewshot: int | None = None, limit: int | None = None
) -> TaskScores: ...


def evaluate(
    model: str | Path | LanguageModel,
    text: str | None = None,
    *,
    data: str | Path | tuple[str | Path, str | Path] | None = None,
    tasks: Sequence[str] | None = None,
    **settings: Any,
) -> Score | ClassReport | ValueReport | TranslationScore | TaskScores:
    """Evaluate a model on a text, on labelled examples, or on lm-eval tasks; pass exactly one of the three.

    Args:
        model: a loaded model, or anything that `load` takes.
        text: a text; the result has `.loss` in nats per token, `.perplexity`, `.bits_per_byte` and `.accuracy`.
        data: labelled examples, as the model's method `evaluate` takes them: texts or images with classes, texts with
            values, or sources with targets.
        tasks: task names, YAML files, or folders of YAML files.
        settings: keyword arguments of `CausalLM.score` for a text, of `CausalLM.evaluate_tasks` for tasks, or fields of
            `Beam` for sources with targets.

    Raises:
        ArchetypeError: the model cannot be evaluated this way, or the data are invalid.
    """
    if [text, data, tasks].count(None) != 2:
        raise SpecError("evaluate", "accepts exactly one kind of data", "pass exactly one of text, data and tasks")
    from archetype.api.causal_lm import CausalLM
    from archetype.api.image_encoder import ImageEncoder
    from archetype.api.seq2seq_lm import Seq2SeqLM
    from archetype.api.text_classifier import TextClassifier

    # after the arguments are checked, because loading takes long
    lm = load(model) if isinstance(model, str | Path) else model
    if text is not None:
        return lm.expect(CausalLM).score(text, **settings)
    if data is None:
        return lm.expect(CausalLM).evaluate_tasks(list(tasks or ()), **settings)
    if isinstance(lm, Seq2SeqLM):
        return lm.evaluate(data, **settings)
    if isinstance(data, tuple) or settings:
        raise SpecError("data", "pairs and beam search need an encoder-decoder", "pass one file, without beam settings")
    if isinstance(lm, TextClassifier | ImageEncoder):
        return lm.evaluate(data)
    raise SpecError("data", "the model has no classes, values or targets", "evaluate the model on plain text")


def train(
    to: str | Path,
    text: str | Path | Sequence[str | Path] = (),
    spec: Source | None = None,
    start_from: str | Path | None = None,
    recipe: str | Path | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    learning_rate: float | None = None,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    device: str | torch.device = "auto",
    force: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
) -> LanguageModel:
    """Train a model and load it; missing settings come from the recipe or are chosen to fit the text.

    Args:
        to: the run directory to create; `archetype train --resume` continues it after an interruption.
        text: UTF-8 files, folders or patterns.
        spec: anything that `load_spec` takes (default: a small decoder).
        start_from: pretrained model with its tokenizer; anything that `load` takes.
        recipe: a recipe file; the other arguments override its fields.
        steps: number of optimizer steps.
        minutes: approximate training time, instead of steps.
        batch_size: sequences per step.
        sequence_length: tokens per sequence.
        learning_rate: peak learning rate.
        tokenizer: kind of tokenizer to train, such as "byte_bpe", or a folder.
        vocab_size: vocabulary size of a tokenizer to train.
        overrides: assignments path=value to any field of the recipe; spec.PATH edits the specification.
        seed: seed of weights, data order and dropout.
        device: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.
        force: train even if the estimated memory of a step exceeds free memory.
        on_event: called with every step, evaluation, checkpoint and notice.

    Raises:
        ArchetypeError: fields of the recipe are incompatible, or the data are invalid.
        KeyboardInterrupt: Ctrl-C was pressed; the run was saved and can be resumed.
    """
    from archetype.api.loading import load, open_pretrained
    from archetype.api.samples import sample
    from archetype.machine.device import resolve_device
    from archetype.spec.base import Spec
    from archetype.training import setup
    from archetype.training.budget import Budget
    from archetype.training.defaults import assemble
    from archetype.training.loop import run
    from archetype.training.report_page import write_report

    files = [text] if isinstance(text, str | Path) else text
    fields = {
        "spec": spec.dump() if isinstance(spec, Spec) else str(spec) if isinstance(spec, Path) else spec,
        "data.text": tuple(map(str, files)) or None,
        "data.tokenizer": tokenizer,
        "data.vocab_size": vocab_size,
        "steps": steps,
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "optimizer.learning_rate": learning_rate,
        "seed": seed,
    }
    # opened first: its specification and tokenizer become settings of the recipe
    pretrained = None if start_from is None else open_pretrained(Path(start_from))
    budget = Budget.parse({"minutes": minutes})
    chosen, _ = assemble(None if recipe is None else Path(recipe), fields, overrides, budget, pretrained)
    device = resolve_device(device)
    state = setup.start(Path(to), chosen, device, None, force, budget, pretrained)
    interrupted = run(state, on_event, sample)
    # also after Ctrl-C: the run can be resumed, and its report shows how far it came
    write_report(state.run)
    # raised only now, after the loop has saved a checkpoint
    if interrupted is not None:
        raise KeyboardInterrupt
    return load(Path(to), device=device)


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: Literal["hf", "gguf", "archetype-hf", "torch-export", "onnx"] = "hf",
    type: FileType | None = None,
    allow_different_tokens: bool = False,
    with_code: bool = False,
) -> None:
    """Write a model as a folder for other programs, then read it back and compare every tensor.

    Args:
        lm: a loaded model.
        folder: must not exist, or be empty; nothing is left there if writing fails.
        family: the published format, such as "llama" (default: as loaded, or the first that can express the model).
        shard_bytes: maximal size of a file of weights.
        format: "hf" for transformers and programs that read its folders, "gguf" for llama.cpp, "archetype-hf" for
            transformers after `import archetype.hf`, which can express every model; "torch-export" and "onnx" for a
            program of the whole forward pass, from tokens to logits, which does not need Archetype.
        type: type of the weights of a GGUF file, such as "q4_k_m"; norms and vectors are in f32 (default: the model's).
        allow_different_tokens: only warn if llama.cpp or transformers will tokenize some texts differently.
        with_code: for archetype-hf, also write a file with which transformers finds the classes if it is told to trust
            the folder's code (trust_remote_code); Archetype must be installed there.

    Raises:
        CheckpointError: names the field that the format cannot express, or the file that cannot be written.
    """
    from archetype.api.exporting import export

    export(lm, folder, family, shard_bytes, format, type, allow_different_tokens, with_code)
