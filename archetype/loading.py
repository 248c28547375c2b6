"""Language models read from and written to folders: run directories, Hugging Face folders, names of the hub."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from archetype.convert import hf_folder
from archetype.convert.gguf import file as gguf
from archetype.convert.gguf.header import is_gguf
from archetype.convert.gguf.read import read_gguf
from archetype.convert.image_processor import FILE as IMAGE_PROCESSOR
from archetype.convert.image_processor import pictures_as_they_are
from archetype.convert.model_card import MODEL_CARD, model_card
from archetype.convert.peft.config import CONFIG as ADAPTER_CONFIG
from archetype.convert.peft.config import read_config as read_adapter_config
from archetype.convert.peft.merge import merge_peft
from archetype.convert.peft.write import write_peft
from archetype.convert.sentence_transformers import read_files, write_files
from archetype.convert.source import SUFFIXES, open_spec, without_weights
from archetype.errors import CheckpointError, DataError, SpecError
from archetype.families import Family, family_for, published
from archetype.families.classes import read_labels
from archetype.families.registry import designs
from archetype.generate.generation_config import (
    GENERATION_CONFIG,
    generation_config,
    read_generation_config,
    special_ids,
)
from archetype.generate.settings import Sampling
from archetype.io import atomic, hub
from archetype.io.tensors import SHARD_BYTES, Selected, Tensors
from archetype.io.yaml import read_mapping
from archetype.language_model import LanguageModel
from archetype.machine.device import resolve_device
from archetype.machine.huge_pages import move_to_huge_pages
from archetype.models.build import Model, build
from archetype.models.causal import CausalModel
from archetype.models.decoder.module import Decoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.parameter_names import names_matching
from archetype.runs.directory import Run, read_adapter, read_run_model
from archetype.runs.origin import read_origin
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.chat_template import read_template, write_template
from archetype.tokenizers.fast import write_fast
from archetype.training.pretrained import Pretrained
from archetype.training.recipe import read_recipe
from archetype.weights.packed import is_packed, unpack_without_kernels
from archetype.weights.packing import check_type

GgufType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
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
) -> LanguageModel:
    """Load the model and tokenizer of a run directory, a Hugging Face folder, a GGUF file, or one of huggingface.co.

    An adapter is merged into its model's matrices.

    Args:
        folder: holds spec.yaml (a run), config.json (Hugging Face) or adapter_config.json (an adapter of peft, which
            says where its base is); a GGUF file, any part of several; or the name of a model on the hub, owner/name or
            owner/name@revision.
        dtype: type of the weights (default: as stored; of a GGUF file's blocks float32, which holds their numbers).
        device: where the weights go.
        allow_pickle: also read pytorch_model.bin, with an unpickler that creates nothing but tensors.
        overrides: assignments path=value to the specification that a folder's or a file's keys describe.
        weights: int8 or int4 for matrices of 8 or 4 bits, lossless for bfloat16 in 12 (default: as stored).
        mapped: whether weights may stay in their file, mapped into memory, as what reads them once alone needs.
        further_tokens: read the layers of a Hugging Face folder that predict tokens after the next, which are left out
            otherwise; those of a run are read as its specification says.

    Raises:
        ArchetypeError: names the file and what is wrong with it.

    Warns:
        UnknownFamily: the family is not registered; the message says what was inferred, and from what.
    """
    if weights is not None:
        check_type(weights)  # refused before anything is read
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
        lm = _load_hf(folder, dtype, device, allow_pickle, overrides, further_tokens)
    elif (folder / ADAPTER_CONFIG).is_file():
        lm = _load_peft(folder, dtype, device, allow_pickle, overrides)
    else:
        cause = "is neither a run directory (spec.yaml) nor a Hugging Face folder (config.json)"
        raise CheckpointError(str(folder), cause, "check the path")
    if weights is not None:
        lm.pack(weights)
    if not mapped:
        unpack_without_kernels(lm.model)
        move_to_huge_pages(lm.model)
    log.info("loaded %s: %r", folder, lm)
    return lm


def names_weights(source: str | Path) -> bool:
    """Whether a name is that of a folder, a GGUF file or the hub, and not of a preset or a specification's file."""
    place = Path(source)
    return (
        place.is_dir()
        or is_gguf(place)
        or (not place.is_file() and place.suffix not in SUFFIXES and hub.is_name(place))
    )


def build_untrained(source: str | Path, seed: int = 0, dtype: torch.dtype | None = None) -> LanguageModel:
    """A preset or a specification's file as a model with random weights; the same seed gives the same ones."""
    model = build(open_spec(source), seed, dtype=dtype or torch.float32)
    return LanguageModel(model.spec, model.eval())


def open_pretrained(folder: Path, fields: dict[str, Any]) -> Pretrained:
    """A model to train further, whose specification and tokenizer become those of the `fields` of a recipe.

    Raises:
        SpecError: the fields have a specification or a tokenizer already.
    """
    for name in ("spec", "data.tokenizer", "data.vocab_size"):
        if fields.get(name) is not None:
            raise SpecError(name, "stands beside a model that brings its own", "leave out one of them")
    lm = load(folder, mapped=True)
    if is_packed(lm.model):
        cause = "has packed matrices, which cannot be trained"
        raise CheckpointError(str(folder), cause, "begin with the model that it was made from")
    fields["spec"] = lm.spec.dump()
    if lm.tokenizer is not None:
        fields["data.tokenizer"] = str(folder)

    def save(to: Path, model: Model, tokenizer: Tokenizer | None, labels: tuple[str, ...]) -> None:
        replace(lm, spec=model.spec, model=model, tokenizer=tokenizer, labels=labels).save(to)

    return Pretrained(str(folder), lm.model, lm.tokenizer, lm.labels, lm.template, save)


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: Literal["hf", "gguf"] = "hf",
    type: GgufType | None = None,
    allow_different_tokens: bool = False,
) -> Family:
    """Write a language model as a folder for other programs, then read it back and compare every tensor.

    Args:
        lm: the language model.
        folder: must not exist, or be empty; nothing is left there if writing fails.
        family: the published format (default: as loaded, or the first that can express the model).
        shard_bytes: the size above which the weights are split into several files.
        format: "hf" for transformers and what reads its folders, "gguf" for llama.cpp.
        type: of the matrices of a GGUF file (default: the model's own).
        allow_different_tokens: write a GGUF file too whose texts llama.cpp cuts otherwise than the tokenizer does,
            with a warning that names one.

    Returns:
        The family whose format was written.

    Raises:
        CheckpointError: names the field that the format cannot express, or the file that cannot be written.
    """
    if type is not None and format != "gguf":
        raise CheckpointError("--type", "is for GGUF alone", "add --format gguf, or use --dtype")
    if allow_different_tokens and format != "gguf":
        raise CheckpointError("--allow-different-tokens", "is for GGUF alone", "add --format gguf, or leave it out")
    if family is not None and family not in published():
        raise CheckpointError("family", f"{family!r} is not a published format", f"use one of {', '.join(designs())}")
    chosen = published()[family] if family else _own_family(lm, format) or family_for(lm.spec)
    if format == "hf" and is_packed(lm.model):
        cause = "its matrices are packed, which the format does not hold"
        raise CheckpointError("model", cause, "export the model that it was made from, or use --format gguf")
    if format == "hf":
        chosen.format.config_for(lm.spec)  # refuses before anything is written
    left_out = hf_folder.with_copies(lm.model, chosen, lm.left_out) if chosen is lm.family else {}
    special = _special_ids(lm)
    with atomic.new_folder(Path(folder)) as temporary:
        if format == "gguf":
            own = {name: id for name, id in lm.special.items() if name == "pad_token_id"}
            ids = own | {name: id for name, id in special.items() if name == "decoder_start_token_id"}
            gguf.write_gguf(
                lm.model, chosen, lm.tokenizer, temporary / gguf.FILE, lm.template, ids, type, allow_different_tokens
            )
            return chosen
        config = special | _label_names(lm)
        hf_folder.write_model(lm.model, chosen, temporary, config, shard_bytes or SHARD_BYTES, left_out)
        if isinstance(lm.model, CausalModel | EncoderDecoder):
            atomic.write_json(temporary / GENERATION_CONFIG, special | generation_config(lm.sampling))
        if lm.spec.reads_images:
            atomic.write_json(temporary / IMAGE_PROCESSOR, lm.image_processor or pictures_as_they_are(lm.spec))
        if lm.tokenizer is not None:
            lm.tokenizer.save(temporary)
            write_fast(lm.tokenizer, temporary)
        if lm.template is not None:
            write_template(lm.template, temporary)
        write_files(lm.sentence_files, temporary)
        atomic.write_bytes(temporary / MODEL_CARD, model_card(lm.spec, chosen).encode())
        hf_folder.compare(lm.model, chosen, temporary, left_out)
    return chosen


def _own_family(lm: LanguageModel, format: str) -> Family | None:
    """The family that a model was loaded from; llama.cpp knows registered ones only."""
    inferred = lm.family is not None and lm.family.reading is not None
    return None if inferred and format == "gguf" else lm.family


def _load_run(folder: Path, dtype: torch.dtype | None, device: torch.device) -> LanguageModel:
    run = Run(folder)
    model = read_run_model(run, dtype, device)
    tokenizer = _open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
    file = folder / GENERATION_CONFIG
    sampling, special = read_generation_config(folder)
    if not file.is_file():
        sampling = Sampling(temperature=0.8)
    special = special_ids(special, file)
    if tokenizer is not None:
        _set_special_ids(tokenizer, special)
    origin, sentence = read_origin(folder), read_files(run.sentence_folder, allow_pickle=True)
    tensors = Tensors.single(run.left_out_file) if run.left_out_file.is_file() else None
    left_out = Selected(tensors, tensors.names()) if tensors else {}
    template = read_template(run.tokenizer_folder)
    family = origin.open_family()
    labels, pictures = origin.labels, origin.image_processor
    return LanguageModel(
        model.spec, model, tokenizer, sampling, special, family, labels, template, left_out, pictures, sentence
    )


def _load_gguf(path: Path, dtype: torch.dtype | None, device: torch.device, overrides: Sequence[str]) -> LanguageModel:
    read = read_gguf(path, dtype, device, overrides)
    special: dict[str, Any] = dict(read.special)
    if read.tokenizer is not None:
        special["eos_token_id"] = list(read.tokenizer.eos)
    spec, sampling = read.model.spec, Sampling.parse({"temperature": 0.0} | read.sampling)
    return LanguageModel(spec, read.model, read.tokenizer, sampling, special, read.family, template=read.template)


def _load_peft(
    folder: Path, dtype: torch.dtype | None, device: torch.device, allow_pickle: bool, overrides: Sequence[str]
) -> LanguageModel:
    """The base that an adapter names, by its path from here or from the folder, with the adapter merged."""
    base = Path(read_adapter_config(folder).base)
    base = folder / base if (folder / base).is_dir() else base
    try:
        lm = load(base, dtype, device, allow_pickle, overrides)
    except CheckpointError as error:
        if error.place != str(base):
            raise
        place = f"{folder / ADAPTER_CONFIG}: base_model_name_or_path"
        raise CheckpointError(
            place, f"{base} {error.cause}", "name the model that the adapter was trained on"
        ) from None
    model = merge_peft(lm.model, lm.family or family_for(lm.spec), folder)
    return replace(lm, spec=model.spec, model=model)


def export_adapter(folder: Path, to: str | Path, family: str | None = None) -> Family:
    """Write the adapter of a run as a folder of peft.

    Args:
        folder: a run directory whose model has an adapter.
        to: must not exist, or be empty.
        family: the published format of the base (default: as loaded, or the first that can express the model).

    Raises:
        CheckpointError: the run has no adapter, or the format cannot express it.
    """
    run = Run(folder)
    if (file := read_adapter(run)) is None:
        raise CheckpointError(str(folder), "has no adapter", "leave out --adapter-only, which exports the model")
    model, adapter = read_run_model(run, merged=False), file.adapter
    chosen = published()[family] if family else read_origin(folder).open_family() or family_for(model.spec)
    chosen.format.config_for(model.spec)  # refuses before anything is written
    trained = names_matching(model, read_recipe(run.recipe_file).trainable or (), "trainable")
    with atomic.new_folder(Path(to)) as temporary:
        write_peft(model, adapter, chosen, temporary, file.base, trained)
    return chosen


def _load_hf(
    folder: Path, dtype: torch.dtype | None, device: torch.device, allow_pickle: bool, overrides: Sequence[str],
    further_tokens: bool,
) -> LanguageModel:  # fmt: skip
    family, model = hf_folder.read_model(folder, dtype, device, allow_pickle, overrides, further_tokens)
    config = read_mapping(folder / "config.json")
    sampling, special = read_generation_config(folder)
    special = special_ids(config, folder / "config.json") | special_ids(special, folder / GENERATION_CONFIG)
    tokenizer = _open_tokenizer(folder)
    if tokenizer is not None:
        _set_special_ids(tokenizer, special)
    labels, template = read_labels(config), read_template(folder)
    left_out = hf_folder.read_left_out(folder, family, allow_pickle)
    file = folder / IMAGE_PROCESSOR
    pictures = read_mapping(file) if model.spec.reads_images and file.is_file() else None
    sentence = read_files(folder, allow_pickle)
    return LanguageModel(
        model.spec, model, tokenizer, sampling, special, family, labels, template, left_out, pictures, sentence
    )


def _open_tokenizer(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer; None where the folder has no file of one."""
    try:
        return open_tokenizer(folder)
    except DataError as error:
        if error.place == str(folder):
            return None
        raise


def _set_special_ids(tokenizer: Tokenizer, special: dict[str, Any]) -> None:
    """Ids in the model's own files take precedence over the tokenizer's."""
    bos, eos = special.get("bos_token_id"), special.get("eos_token_id")
    if bos is not None:
        tokenizer.bos = bos
    if eos is not None:
        tokenizer.eos = tuple(eos if isinstance(eos, list) else [eos]) or tokenizer.eos


def _special_ids(lm: LanguageModel) -> dict[str, Any]:
    """The special tokens' ids for config.json; null where there is none.

    The target of an encoder-decoder begins with the token that ends it, unless the files say otherwise.
    """
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if lm.tokenizer is not None:
        eos = lm.tokenizer.eos
        ids |= {"bos_token_id": lm.tokenizer.bos, "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None}
        if eos and lm.spec.reads_source:
            ids |= {"pad_token_id": eos[0], "decoder_start_token_id": eos[0]}
    ids |= {name: value for name, value in lm.special.items() if value is not None}
    if isinstance(lm.model, Decoder) and lm.model.classifier is not None and ids["pad_token_id"] is None:
        ids["pad_token_id"] = (
            lm.tokenizer.eos[0] if lm.tokenizer and lm.tokenizer.eos else 0
        )  # by which it finds the last
    return ids


def _label_names(lm: LanguageModel) -> dict[str, dict[str, str | int]]:
    """The names of classes for config.json, where there are any."""
    if not lm.labels:
        return {}
    return {
        "id2label": {str(id): name for id, name in enumerate(lm.labels)},
        "label2id": {name: id for id, name in enumerate(lm.labels)},
    }
