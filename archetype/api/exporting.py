"""Export of models: Hugging Face folders, GGUF files, exported programs, PEFT adapters."""

from pathlib import Path
from typing import Any, Literal, get_args

from archetype.api.language_model import LanguageModel
from archetype.convert import hf_folder
from archetype.convert.gguf import file as gguf
from archetype.convert.gguf.choice import gguf_family
from archetype.convert.gguf.types import FileType
from archetype.convert.image_processor import FILE as IMAGE_PROCESSOR
from archetype.convert.image_processor import numbers_as_they_are
from archetype.convert.model_card import ModelCard
from archetype.convert.own_code import write_own_code
from archetype.convert.peft.write import write_peft
from archetype.convert.program.files import write_program
from archetype.convert.program.formats import ProgramFormat, is_program
from archetype.convert.sentence_transformers.files import write_files
from archetype.convert.sentence_transformers.weights import head_files
from archetype.errors import CheckpointError
from archetype.families import Family, family_for, published
from archetype.families.own import OWN
from archetype.families.registry import designs
from archetype.generate.generation_config import (
    GENERATION_CONFIG,
    generation_config,
)
from archetype.io import atomic
from archetype.io.tensors import SHARD_BYTES
from archetype.nn.parameter_names import names_matching
from archetype.runs.directory import Run, read_adapter, read_run_model
from archetype.runs.origin import read_origin
from archetype.spec.extensions import extensions_of
from archetype.tokenizers.chat_template import write_template
from archetype.tokenizers.fast import write_fast
from archetype.training.recipe import read_recipe
from archetype.weights.packed import is_packed

ExportFormat = Literal["hf", "gguf", "archetype-hf", ProgramFormat]


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: ExportFormat = "hf",
    type: FileType | None = None,
    allow_different_tokens: bool = False,
    with_code: bool = False,
    card: ModelCard | None = None,
    with_state: bool = False,
) -> Family:
    """Write a model as a folder for other programs, then read the folder back and compare every tensor.

    Takes the same arguments and raises the same errors as `archetype.export`.

    Args:
        card: contents of the model card (README.md), in addition to the specification.

    Returns:
        The family whose format was written.
    """
    if format not in get_args(ExportFormat):
        raise CheckpointError(
            "format", f"{format!r:.40} is not a format", f"use one of {', '.join(get_args(ExportFormat))}"
        )
    if type is not None and format != "gguf":
        raise CheckpointError("--type", "applies to GGUF files only", "add --format gguf, or use --dtype")
    if with_code and format != "archetype-hf":
        raise CheckpointError("--with-code", "applies to archetype-hf only", "remove it")
    if with_state and not is_program(format):
        raise CheckpointError("--with-state", "applies to torch-export and onnx only", "remove it")
    if family is not None and family not in published():
        raise CheckpointError("family", f"{family!r} is not a published format", f"use one of {', '.join(designs())}")
    if family is not None and _takes_all(format):
        raise CheckpointError("family", f"cannot be combined with format {format}", "remove one of them")
    if shard_bytes is not None and is_program(format):
        raise CheckpointError("shard_bytes", f"a program of {format} is one file", "remove it")
    chosen = _family(lm, family, format)
    # GGUF has quantized types; the other formats store floats
    if format != "gguf" and is_packed(lm.model):
        cause = "the format cannot store packed matrices"
        raise CheckpointError("model", cause, "export the unpacked model, or use --format gguf")
    if format != "gguf":
        chosen.format.config_for(lm.spec)  # refuses before anything is written
    # tensors of the original folder that this model does not use only fit its original format
    left_out = hf_folder.with_copies(lm.model, chosen, lm.left_out) if chosen is lm.family else {}
    special = _special_ids(lm)
    with atomic.new_folder(Path(folder)) as temporary:
        if format == "gguf":
            # a GGUF file holds tokenizer and template too, so nothing below is written for it
            ids: dict[str, Any] = {"eos_token_id": lm.ends}
            ids |= {name: id for name, id in lm.special.items() if name == "pad_token_id"}
            ids |= {name: id for name, id in special.items() if name == "decoder_start_token_id"}
            gguf.write_gguf(
                lm.model, chosen, lm.tokenizer, temporary / gguf.FILE, lm.template, ids, type, allow_different_tokens
            )
            return chosen
        config = special | _label_names(lm)
        # transformers cannot load such a folder before these files are loaded; the record names them
        if chosen is OWN and (extensions := extensions_of([lm.spec])):
            config["extensions"] = [extension.model_dump(mode="json") for extension in extensions]
        if is_program(format):
            atomic.write_json(temporary / "config.json", chosen.format.config_for(lm.spec) | config)
            write_program(lm.model, format, temporary, with_state)
        else:
            if with_code:
                config["auto_map"] = write_own_code(temporary, chosen.format.architecture_of(lm.spec))
            hf_folder.write_model(lm.model, chosen, temporary, config, shard_bytes or SHARD_BYTES, left_out)
        if lm.spec.is_causal or lm.spec.reads_source:
            atomic.write_json(temporary / GENERATION_CONFIG, special | generation_config(lm.sampling, lm.generation))
        if lm.spec.image_shape is not None:
            # a model trained on numbers other than pixels gets a processor that changes nothing
            pictures = lm.image_processor or numbers_as_they_are(*lm.spec.image_shape).contents()
            atomic.write_json(temporary / IMAGE_PROCESSOR, pictures)
        if lm.tokenizer is not None:
            # the tokenizer in its original form first, then tokenizer.json, which is derived from it and compared
            lm.tokenizer.save(temporary)
            write_fast(lm.tokenizer, temporary, chosen is lm.family, allow_different_tokens)
        if lm.template is not None:
            write_template(lm.template, temporary)
        if is_program(format):
            return chosen
        write_files(head_files(lm.model, lm.sentence_files), temporary)
        (card or ModelCard()).write(lm.spec, chosen, temporary)
        # inside the block: if a tensor differs, the unfinished folder is removed
        hf_folder.compare(lm.model, chosen, temporary, left_out)
    return chosen


def fitting_format(lm: LanguageModel) -> ExportFormat:
    """Return "hf" if a published family can express the model, else "archetype-hf"."""
    try:
        _family(lm, None, "hf").format.config_for(lm.spec)
    except CheckpointError:
        return "archetype-hf"
    return "hf"


def export_adapter(folder: Path, to: str | Path, family: str | None = None) -> Family:
    """Export the adapter of a run in PEFT format.

    Args:
        folder: a run directory whose model has an adapter.
        to: must not exist, or be empty.
        family: format of the base model (default: as loaded, or the first format that can express the model).

    Raises:
        CheckpointError: the run does not exist or has no adapter, or the format cannot express the adapter.
    """
    if not folder.is_dir():
        raise CheckpointError(str(folder), "there is no such folder", "pass a run directory with an adapter")
    run = Run(folder)
    if (file := read_adapter(run)) is None:
        raise CheckpointError(str(folder), "has no adapter", "remove --adapter-only, which exports the model")
    # not merged: the adapter's tensors are needed
    model, adapter = read_run_model(run, merged=False), file.adapter
    chosen = published()[family] if family else read_origin(folder).open_family() or family_for(model.spec)
    chosen.format.config_for(model.spec)  # refuses before anything is written
    # parameters that were trained in full, next to the adapter (PEFT's modules_to_save)
    trained = names_matching(model, read_recipe(run.recipe_file).trainable or (), "trainable")
    with atomic.new_folder(Path(to)) as temporary:
        write_peft(model, adapter, chosen, temporary, file.base, trained)
    return chosen


def _takes_all(format: ExportFormat) -> bool:
    # Its config.json contains the specification.
    return format == "archetype-hf" or is_program(format)


def _family(lm: LanguageModel, name: str | None, format: ExportFormat) -> Family:
    # the named family, else that of the loaded folder, else the first that fits
    if _takes_all(format):
        return OWN
    if name is not None:
        return published()[name]
    if format == "gguf":
        return gguf_family(lm.spec, lm.family)
    return family_for(lm.spec) if lm.family is None else lm.family


def _special_ids(lm: LanguageModel) -> dict[str, Any]:
    # Ids for config.json. Targets of an encoder-decoder start with the end token unless the model's files differ.
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if lm.tokenizer is not None:
        eos = lm.tokenizer.eos
        ids |= {"bos_token_id": lm.tokenizer.bos, "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None}
        if eos and lm.spec.reads_source:
            ids |= {"pad_token_id": eos[0], "decoder_start_token_id": eos[0]}
    # the files that the model was loaded from take precedence over its tokenizer
    ids |= {name: value for name, value in lm.special.items() if value is not None}
    if lm.spec.is_causal and lm.spec.head.has_classes and ids["pad_token_id"] is None:
        # transformers classifies the last token that is not padding
        ids["pad_token_id"] = lm.tokenizer.eos[0] if lm.tokenizer and lm.tokenizer.eos else 0
    return ids


def _label_names(lm: LanguageModel) -> dict[str, dict[str, str | int]]:
    if not lm.labels:
        return {}
    return {
        "id2label": {str(id): name for id, name in enumerate(lm.labels)},
        "label2id": {name: id for id, name in enumerate(lm.labels)},
    }
