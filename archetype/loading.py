"""Language models from and to folders: run directories, Hugging Face folders, names of the hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from archetype.convert import hf_folder
from archetype.convert.gguf import file as gguf
from archetype.convert.model_card import MODEL_CARD, model_card
from archetype.errors import CheckpointError, DataError, SpecError
from archetype.families import PUBLISHED, Family, family_for
from archetype.families.classes import read_labels
from archetype.generate.settings import GENERATION_CONFIG, Sampling, generation_config, read_generation_config
from archetype.generate.special_ids import special_ids
from archetype.io import atomic, hub
from archetype.io.tensors import SHARD_BYTES
from archetype.io.yaml import read_mapping
from archetype.language_model import LanguageModel
from archetype.models import CausalModel, EncoderDecoder
from archetype.runs.directory import Run, read_run_model, write_run_spec, write_weights
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.chat_template import FILE as CHAT_TEMPLATE
from archetype.tokenizers.chat_template import read_template


def load(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    pickled: bool = False,
    changes: Sequence[str] = (),
) -> LanguageModel:
    """The model in a run directory or a Hugging Face folder, or one of huggingface.co.

    Args:
        folder: holds spec.yaml (a run) or config.json (Hugging Face); or the name of a model there, owner/name.
        dtype: type of the weights (absent: as stored).
        device: where they go.
        pickled: also read pytorch_model.bin, by an unpickler that makes nothing but tensors.
        changes: path=value, as `archetype set` takes them: what is to be read otherwise than the files say. They settle
            what was assumed of a family that is not registered.

    Raises:
        CheckpointError: names the file and what is wrong with it.

    Warns:
        UnknownFamily: the family is not registered, and was read by what the files show.
    """
    folder, device = hub.local(Path(folder), pickled), torch.device(device)
    run = Run(folder)
    if run.exists:
        if changes:
            raise SpecError(changes[0], "a run is as it was trained", "change the folder that it was read from")
        model = read_run_model(run, dtype, device)
        tokenizer = open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
        sampling, special = read_generation_config(folder)
        special = special_ids(special, folder / GENERATION_CONFIG)
        if not (folder / GENERATION_CONFIG).is_file():
            sampling = Sampling(temperature=0.8)
        return LanguageModel(model.spec, model, tokenizer, sampling, special)
    if not folder.is_dir():
        raise CheckpointError(str(folder), "there is no such folder", "give a run directory or a Hugging Face folder")
    if not (folder / "config.json").is_file():
        cause = "is neither a run directory (spec.yaml) nor a Hugging Face folder (config.json)"
        raise CheckpointError(str(folder), cause, "check the path")
    return _load_hf(folder, dtype, device, pickled, changes)


def save_run(lm: LanguageModel, folder: Path) -> None:
    """Write a language model as a run directory."""
    with atomic.new_folder(folder) as temporary:
        run = Run(temporary)
        write_run_spec(run, lm.spec)
        write_weights(run, lm.model)
        atomic.write_json(temporary / GENERATION_CONFIG, lm.special | generation_config(lm.sampling))
        if lm.tokenizer is not None:
            run.tokenizer_folder.mkdir()
            lm.tokenizer.save(run.tokenizer_folder)


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: Literal["hf", "gguf"] = "hf",
) -> Family:
    """Write a language model as a folder for other programs, whole or not at all, and compare what is read back.

    Args:
        folder: must not exist, or be empty.
        family: the published format (absent: the one it was loaded from, or the first that can express it).
        shard_bytes: the size above which the weights go into several files.
        format: hf for transformers and what reads its folders, gguf for llama.cpp.

    Raises:
        CheckpointError: names the field that the format cannot express.
    """
    if family is not None and family not in PUBLISHED:
        raise CheckpointError("family", f"{family!r} has no format known here", f"use one of {', '.join(PUBLISHED)}")
    registered = lm.family is not None and lm.family.reading is None
    chosen = PUBLISHED[family] if family else lm.family if lm.family and registered else family_for(lm.spec)
    chosen.format.config_for(lm.spec)  # refuses before anything is written
    special = _special_ids(lm)
    with atomic.new_folder(Path(folder)) as temporary:
        if format == "gguf":
            start = special.get("decoder_start_token_id")
            gguf.write_gguf(lm.model, chosen, lm.tokenizer, temporary / gguf.FILE, lm.template, start)
            return chosen
        hf_folder.write_model(lm.model, chosen, temporary, special | _label_names(lm), shard_bytes or SHARD_BYTES)
        if isinstance(lm.model, CausalModel | EncoderDecoder):
            atomic.write_json(temporary / GENERATION_CONFIG, special | generation_config(lm.sampling))
        if lm.tokenizer is not None:
            lm.tokenizer.save(temporary)
        if lm.template is not None:
            atomic.write_bytes(temporary / CHAT_TEMPLATE, lm.template.source.encode())
        atomic.write_bytes(temporary / MODEL_CARD, model_card(lm.spec, chosen).encode())
        hf_folder.compare(lm.model, temporary)
    return chosen


def _load_hf(
    folder: Path, dtype: torch.dtype | None, device: torch.device, pickled: bool, changes: Sequence[str]
) -> LanguageModel:
    family, model = hf_folder.read_model(folder, dtype, device, pickled, changes)
    config = read_mapping(folder / "config.json")
    sampling, special = read_generation_config(folder)
    special = special_ids(config, folder / "config.json") | special_ids(special, folder / GENERATION_CONFIG)
    tokenizer = _tokenizer_of(folder)
    if tokenizer is not None:
        _apply_special(tokenizer, special)
    return LanguageModel(
        model.spec, model, tokenizer, sampling, special, family, read_labels(config), read_template(folder)
    )


def _tokenizer_of(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer; None where there is no file of one."""
    try:
        return open_tokenizer(folder)
    except DataError as error:
        if error.place == str(folder):
            return None
        raise


def _apply_special(tokenizer: Tokenizer, special: dict[str, Any]) -> None:
    """The ids in the model's files go before the tokenizer's own."""
    bos, eos = special.get("bos_token_id"), special.get("eos_token_id")
    tokenizer.bos = tokenizer.bos if bos is None else bos
    tokenizer.eos = tuple(eos if isinstance(eos, list) else [] if eos is None else [eos]) or tokenizer.eos


def _special_ids(lm: LanguageModel) -> dict[str, Any]:
    """What config.json says of a text's first and last token; null where there is none.

    A target begins with the token that ends it, unless the files say otherwise.
    """
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if lm.tokenizer is not None:
        ends = lm.tokenizer.eos
        ids |= {"bos_token_id": lm.tokenizer.bos, "eos_token_id": ends[0] if len(ends) == 1 else list(ends) or None}
        if ends and isinstance(lm.model, EncoderDecoder):
            ids |= {"pad_token_id": ends[0], "decoder_start_token_id": ends[0]}
    return ids | {name: value for name, value in lm.special.items() if value is not None}


def _label_names(lm: LanguageModel) -> dict[str, Any]:
    """What config.json says of classes that have names."""
    if not lm.labels:
        return {}
    names = dict(enumerate(lm.labels))
    return {"id2label": {str(id): name for id, name in names.items()}, "label2id": {n: id for id, n in names.items()}}
