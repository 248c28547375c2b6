"""Load run directories, Hugging Face folders, GGUF files, PEFT adapters, and models on huggingface.co."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from archetype.api.language_model import LanguageModel
from archetype.api.text_generator import TextGenerator
from archetype.convert import hf_folder
from archetype.convert.gguf.header import is_gguf
from archetype.convert.image_processor import read_processor_contents
from archetype.convert.peft.config import CONFIG as ADAPTER_CONFIG
from archetype.convert.peft.config import read_config as read_adapter_config
from archetype.convert.peft.merge import merge_peft
from archetype.convert.proof import check_proved
from archetype.convert.sentence_transformers.files import read_files
from archetype.convert.sentence_transformers.head import with_head_of
from archetype.convert.sentence_transformers.weights import attach_head
from archetype.convert.source import SUFFIXES, open_spec, without_weights
from archetype.errors import CheckpointError, DataError, SpecError
from archetype.families import family_for
from archetype.families.classes import read_labels
from archetype.generate.generation_config import (
    GENERATION_CONFIG,
    read_generation_config,
    special_ids,
)
from archetype.generate.state_dtype import state_dtype_of
from archetype.io import hub
from archetype.io.tensors import Selected, Tensors
from archetype.io.yaml import read_mapping
from archetype.machine.device import resolve_device
from archetype.machine.huge_pages import move_to_huge_pages
from archetype.models.build import build
from archetype.native.library import library
from archetype.runs.directory import Run, read_run_model
from archetype.runs.origin import read_origin
from archetype.settings.generation import Sampling
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.chat_template import read_template
from archetype.weights.packed import unpack_without_kernels
from archetype.weights.packing import check_type

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # silent unless the program configures logging


def load(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    allow_pickle: bool = False,
    overrides: Sequence[str] = (),
    weights: str | None = None,
    mapped: bool = False,
    further_tokens: bool = False,
    deterministic: bool = False,
    accept_unproved: bool = False,
    state_dtype: str | torch.dtype | None = None,
) -> LanguageModel:
    """Load a model with its tokenizer. Other arguments, errors and warnings are those of `archetype.load`.

    Args:
        folder: as for `archetype.load`, or an adapter in PEFT format, which is merged into the base model that
            adapter_config.json names; of a GGUF file in several parts, any part.
        dtype: type of the weights (default: as stored, and float32 for quantized tensors in a GGUF file).
        mapped: keep weights as memory-mapped files, for callers that read them only once.
    """
    if weights is not None:
        check_type(weights)  # refused before anything is read
    if state_dtype is not None:
        state_dtype_of(state_dtype)  # likewise
    device = resolve_device(device)  # refused before anything is downloaded
    folder = hub.local(Path(folder), allow_pickle)
    if Run(folder).exists:
        if overrides:
            cause = "the specification of a run cannot be changed"
            raise SpecError(overrides[0], cause, "override it where the Hugging Face folder is imported")
        lm = _load_run(folder, dtype, device)
    elif is_gguf(folder):
        lm = _load_gguf(folder, dtype, device, overrides)
    elif not folder.is_dir():
        raise without_weights(folder)
    elif (folder / "config.json").is_file():
        # before the weights are read, which may take minutes
        check_proved(folder, overrides, accept_unproved, allow_pickle)
        lm = _load_hf(folder, dtype, device, allow_pickle, overrides, further_tokens)
    elif (folder / ADAPTER_CONFIG).is_file():
        lm = _load_peft(folder, dtype, device, allow_pickle, overrides, accept_unproved)
    else:
        cause = "is neither a run directory (spec.yaml) nor a Hugging Face folder (config.json)"
        raise CheckpointError(str(folder), cause, "check the path")
    if further_tokens and getattr(lm.spec, "further_tokens", None) is None:
        cause = "the model has no multi-token prediction layers that could be loaded"
        raise SpecError("further_tokens", cause, "remove --further-tokens, or use a draft model other than self")
    if weights is not None:
        lm.pack(weights)
    if device.type == "cpu":
        library()  # warns about missing kernels before any text is printed
    if not mapped:
        unpack_without_kernels(lm.model)
        move_to_huge_pages(lm.model)
    if state_dtype is not None:
        lm.expect(TextGenerator).use_state_dtype(state_dtype)
    if deterministic:
        lm.expect(TextGenerator).make_deterministic()
    log.info("loaded %s: %r", folder, lm)
    return lm


def names_weights(source: str | Path) -> bool:
    """Return whether a name refers to a model with weights: a folder, a GGUF file or a model on the hub."""
    path = Path(source)
    return path.is_dir() or is_gguf(path) or (not path.is_file() and path.suffix not in SUFFIXES and hub.is_name(path))


def build_untrained(source: str | Path, seed: int = 0, dtype: torch.dtype | None = None) -> LanguageModel:
    """Build a preset or a specification file with random weights. The same seed gives the same weights."""
    model = build(open_spec(source), seed, dtype=dtype or torch.float32)
    return LanguageModel(model.spec, model.eval())


def _load_run(folder: Path, dtype: torch.dtype | None, device: torch.device) -> LanguageModel:
    run = Run(folder)
    model = read_run_model(run, dtype, device)
    tokenizer = _open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
    file = folder / GENERATION_CONFIG
    sampling, generation = read_generation_config(folder)
    # a model trained here has no such file; greedy decoding would be the default otherwise
    if not file.is_file():
        sampling = Sampling(temperature=0.8)
    special = special_ids(generation, file)
    origin, sentence = read_origin(folder), read_files(run.sentence_folder, allow_pickle=True)
    if model.spec.head.is_absent and (described := with_head_of(model.spec, sentence)).head.embeds:
        attach_head(model, described.head, sentence)  # imported before specifications had such a head
    tensors = Tensors.single(run.left_out_file) if run.left_out_file.is_file() else None
    left_out = Selected(tensors, tensors.names()) if tensors else {}
    return LanguageModel(
        model.spec,
        model,
        tokenizer,
        sampling,
        special,
        family=origin.open_family(),
        labels=origin.labels,
        template=read_template(run.tokenizer_folder),
        left_out=left_out,
        image_processor=origin.image_processor,
        sentence_files=sentence,
        generation=generation,
    )


def _load_gguf(path: Path, dtype: torch.dtype | None, device: torch.device, overrides: Sequence[str]) -> LanguageModel:
    from archetype.convert.gguf.read import read_gguf  # the graphs of all its architectures

    read = read_gguf(path, dtype, device, overrides)
    special: dict[str, Any] = dict(read.special)
    if read.tokenizer is not None:
        # the tokenizer may have several end tokens, the file's field only one
        special["eos_token_id"] = list(read.tokenizer.eos)
    spec, sampling = read.model.spec, Sampling.parse({"temperature": 0.0} | read.sampling)
    return LanguageModel(spec, read.model, read.tokenizer, sampling, special, read.family, template=read.template)


def _load_peft(
    folder: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    allow_pickle: bool,
    overrides: Sequence[str],
    accept_unproved: bool,
) -> LanguageModel:
    base = _base_of(folder)
    try:
        lm = load(base, dtype, device, allow_pickle, overrides, accept_unproved=accept_unproved)
    except CheckpointError as error:
        # a fault inside the base is reported as it is; a missing base is reported at the adapter that names it
        if error.place != str(base):
            raise
        field = f"{folder / ADAPTER_CONFIG}: base_model_name_or_path"
        remedy = "name the model that the adapter was trained on"
        raise CheckpointError(field, f"{base} {error.cause}", remedy) from None
    # names of the adapter's tensors are those that the base has in its family's format
    model = merge_peft(lm.model, lm.family or family_for(lm.spec), folder)
    return replace(lm, spec=model.spec, model=model)


def _base_of(adapter: Path) -> Path:
    # The path is relative to the adapter's folder or to the working directory. The base may be an adapter, too.
    folders = [adapter]
    while (folders[-1] / ADAPTER_CONFIG).is_file() and not (folders[-1] / "config.json").is_file():
        base = Path(read_adapter_config(folders[-1]).base)
        base = folders[-1] / base if (folders[-1] / base).is_dir() else base
        # adapters that name each other would never end
        if any(base.exists() and base.samefile(folder) for folder in folders):
            field = f"{folders[-1] / ADAPTER_CONFIG}: base_model_name_or_path"
            raise CheckpointError(
                field, "names the adapter itself as the base", "name the model that it was trained on"
            )
        folders.append(base)
    return folders[1]


def _load_hf(
    folder: Path,
    dtype: torch.dtype | None,
    device: torch.device,
    allow_pickle: bool,
    overrides: Sequence[str],
    further_tokens: bool,
) -> LanguageModel:
    family, model = hf_folder.read_model(folder, dtype, device, allow_pickle, overrides, further_tokens)
    config = read_mapping(folder / "config.json")
    sampling, generation = read_generation_config(folder)
    # generation_config.json takes precedence over config.json, as in transformers
    special = special_ids(config, folder / "config.json") | special_ids(generation, folder / GENERATION_CONFIG)
    return LanguageModel(
        model.spec,
        model,
        _open_tokenizer(folder),
        sampling,
        special,
        family=family,
        labels=read_labels(config),
        template=read_template(folder),
        left_out=hf_folder.read_left_out(folder, family, model.spec, allow_pickle),
        image_processor=read_processor_contents(folder) if model.spec.reads_images else None,
        sentence_files=read_files(folder, allow_pickle),
        generation=generation,
    )


def _open_tokenizer(folder: Path) -> Tokenizer | None:
    try:
        return open_tokenizer(folder)
    except DataError as error:
        # the folder has no tokenizer; faults of a tokenizer file name the file instead
        if error.place == str(folder):
            return None
        raise
