"""Functions that `import archetype` provides. Each imports its dependencies when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from archetype.errors import SpecError

if TYPE_CHECKING:
    import torch

    from archetype.api.language_model import LanguageModel
    from archetype.api.transplanting import Transplanted
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
    """Load a specification.

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
    """Compute the parameters, FLOPs, state and memory of a specification.

    Args:
        source: anything that `load_spec` takes.
        batch: batch size.
        length: tokens per sequence (default: the context length).
        dtype: type of the weights, such as "bfloat16" or "int4"; a GGUF file type, such as "q4_k_m", with the tensor
            types that `export` writes; or "published", the types in the source's files.
        attention: count all "computed" pairs of positions, masked or not, or only the unmasked ("allowed") pairs.
        source_length: tokens per source of an encoder-decoder (default: `length`).
        state_dtype: type of keys and values (default: that of the weights, at least 16 bits, which recurrent states
            have in any case).

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
    """Draw an architecture. A notebook shows the drawing; `.save("model.svg")` or `.save("model.png")` writes it.

    Repeated blocks are folded, the residual stream is a vertical line, shapes are symbols, and a bar in each box shows
    its cost.

    Args:
        source: anything that `load_spec` takes.
        other: a second architecture, drawn next to the first; additions, removals and changes are coloured and listed.
        measure: quantity shown by the bars: parameters, active parameters, FLOPs or bytes of the weights.
        batch: batch size, for FLOPs.
        length: tokens per sequence (default: the context length; with `other`, the shorter of the two).
        dtype: type of the weights.
        aspect: aspect ratio of the picture, such as "16:9"; blocks are arranged in rows so that the text is as large as
            possible (default: blocks are not rearranged).

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
    """Build a randomly initialised model. The same seed gives the same weights.

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
    state_dtype: str | torch.dtype | None = None,
) -> LanguageModel:
    """Load a model with its tokenizer. The class of the result depends on the model: `CausalLM`, `TextEncoder` etc.

    For a type checker, name the class: `archetype.CausalLM.load(folder)` has the same arguments.

    Args:
        folder: a run directory (spec.yaml), a Hugging Face folder (config.json), a GGUF file, or a model on
            huggingface.co, owner/name or owner/name@revision.
        dtype: type of the weights, such as "bfloat16" (default: as stored).
        device: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.
        allow_pickle: also read pytorch_model.bin, with an unpickler that can only create tensors.
        overrides: assignments path=value, as for `archetype set`, to the specification of a Hugging Face folder; they
            can correct assumptions about a family that is not registered, such as "fused_order=qkv".
        weights: "int8" or "int4" quantizes matrices to 8 or 4 bits in groups of 32, about a quarter or an eighth of
            float32; "lossless" stores bfloat16 matrices in 12 bits per weight without changing them.
        further_tokens: load the multi-token prediction layers of a Hugging Face folder, so that the model can be its
            own draft model (default: leave them out).
        deterministic: make the logits of each sequence independent, bit for bit, of the batch, the prefill chunks
            and the draft model. This makes prefill slower.
        accept_unproved: load a family that is not registered even if neither a test nor a class of the installed
            transformers can confirm the assumptions about it.
        state_dtype: type of the keys and values kept while generating: "int8" (with a scale for each position and
            head), "float16", "bfloat16" or "float32" (default: that of the weights). Weights, arithmetic and
            recurrent states keep their types.

    Raises:
        ArchetypeError: a file is invalid; the message names the file and the fault.

    Warns:
        UnknownFamily: the family is not registered; the message lists what was inferred, and from which fields.
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
        state_dtype=state_dtype,
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
    """Evaluate a model on a text, on labelled examples, or on lm-eval tasks. Pass exactly one of the three.

    Args:
        model: a loaded model, or anything that `load` takes.
        text: text to score; the result has `.loss` in nats per token, `.perplexity`, `.bits_per_byte` and `.accuracy`.
        data: labelled examples, in a form that the model's method `evaluate` accepts: texts or images with classes,
            texts with numbers, or sources with targets.
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
    teacher: str | Path | None = None,
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
    """Train a model and load it. Missing settings come from the recipe or are chosen to fit the text.

    Args:
        to: run directory to create; `archetype train --resume` continues an interrupted run.
        text: UTF-8 files, folders or patterns.
        spec: anything that `load_spec` takes (default: a small decoder).
        start_from: pretrained model to start from, with its tokenizer; anything that `load` takes. With another
            `spec`, it is changed as by `transplant`.
        teacher: model whose outputs the run learns from; anything that `load` takes.
        recipe: a recipe file; the other arguments override its fields.
        steps: number of optimizer steps.
        minutes: approximate training time, instead of steps.
        batch_size: sequences per step.
        sequence_length: tokens per sequence.
        learning_rate: peak learning rate.
        tokenizer: kind of tokenizer to train, such as "byte_bpe", or folder of a trained tokenizer.
        vocab_size: vocabulary size of the tokenizer to train.
        overrides: assignments path=value to any field of the recipe; spec.PATH edits the specification.
        seed: seed of weights, data order and dropout.
        device: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.
        force: train even if the estimated memory of a step exceeds free memory.
        on_event: called with every step, evaluation, checkpoint and notice.

    Raises:
        ArchetypeError: fields of the recipe are incompatible, or the data are invalid.
        KeyboardInterrupt: Ctrl-C was pressed; the run was saved and can be resumed.
    """
    from archetype.api.loading import load
    from archetype.api.pretrained import open_pretrained, open_teacher
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
        "teacher.model": None if teacher is None else str(teacher),
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
    pretrained = pretrained and pretrained.for_recipe(chosen)
    device = resolve_device(device)
    state = setup.start(Path(to), chosen, device, None, force, budget, pretrained, open_teacher=open_teacher)
    interrupted = run(state, on_event, sample)
    # also after Ctrl-C: the run can be resumed, and its report shows how far it came
    write_report(state.run)
    # raised only now, after the loop has saved a checkpoint
    if interrupted is not None:
        raise KeyboardInterrupt
    return load(Path(to), device=device)


def transplant(
    donor: str | Path | LanguageModel,
    changes: Sequence[str] = (),
    spec: Source | None = None,
    *,
    text: str | None = None,
    layers: Sequence[int] | str | None = None,
    choices: Mapping[str, str] | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    seed: int = 0,
) -> Transplanted:
    """Change the architecture of a trained model and keep its weights. Returns `.model` and `.report`.

    Args:
        donor: a loaded model, or anything that `load` takes.
        changes: assignments path=value, as for `archetype set`.
        spec: a whole new specification instead of changes; anything that `load_spec` takes.
        text: text on which both models are compared (default: docstrings of Python's library).
        layers: the donor's layer of each new layer (default: the same ones, or the donor's spread evenly); or which are
            kept: "influence" on the text, "first" or "random".
        choices: how several weights become one or are chosen, by subject: "heads" (mean, first, random), "experts"
            (cut, merged), "cut" (activation, magnitude, first, random).
        tokenizer: another tokenizer, or its file or folder; its tokens begin from the donor's.
        seed: seed of new weights.

    Raises:
        ArchetypeError: the new specification is invalid, or of another kind than the donor's.
    """
    from archetype.api.loading import load
    from archetype.api.transplanting import changed_spec, transplant
    from archetype.tokenizers.registry import open_tokenizer

    lm = load(donor) if isinstance(donor, str | Path) else donor
    other = open_tokenizer(Path(tokenizer)) if isinstance(tokenizer, str | Path) else tokenizer
    new, assignments = changed_spec(lm, changes, spec, other)
    return transplant(lm, new, text, layers, choices, seed, other, assignments)


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: Literal["hf", "gguf", "archetype-hf", "torch-export", "onnx"] = "hf",
    type: FileType | None = None,
    allow_different_tokens: bool = False,
    with_code: bool = False,
    with_state: bool = False,
) -> None:
    """Write a model as a folder for other programs, then read the folder back and compare every tensor.

    Args:
        lm: a loaded model.
        folder: folder to write, which must not exist or be empty; nothing is left in it if writing fails.
        family: published format, such as "llama" (default: as loaded, or the first that can express the model).
        shard_bytes: maximal size of a weights file.
        format: "hf" for transformers and other readers of its folders; "gguf" for llama.cpp; "archetype-hf", which can
            express every model, for transformers after `import archetype.hf`; "torch-export" or "onnx" for a program
            that computes logits from tokens without Archetype.
        type: file type of a GGUF file, such as "q4_k_m" (default: the model's type); norms and vectors are in f32.
        allow_different_tokens: only warn if llama.cpp or transformers will tokenize some texts differently.
        with_code: for archetype-hf, also write a file with which transformers finds Archetype's classes if it is called
            with trust_remote_code; Archetype must be installed.
        with_state: for programs of causal models: write a step that reads new tokens after a state (key-value caches or
            recurrent states) and returns the next state; otherwise a program reads whole sequences.

    Raises:
        CheckpointError: the format cannot express the model, or a file cannot be written; the message names the field
            or file.
    """
    from archetype.api.exporting import export

    export(lm, folder, family, shard_bytes, format, type, allow_different_tokens, with_code, with_state=with_state)
