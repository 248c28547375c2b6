"""A model with its tokenizer: what `archetype.load` gives and every verb takes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch

from archetype import generate
from archetype.checkpoint import durable, hf
from archetype.checkpoint.run import Run, read_run_model, write_run_spec, write_weights
from archetype.checkpoint.tensors import SHARD_BYTES
from archetype.data.tokenizer import Tokenizer, open_tokenizer
from archetype.errors import ArchetypeError, CheckpointError, DataError
from archetype.families import FAMILIES, Family, family_for
from archetype.families.source import read_config
from archetype.generate.settings import GENERATION_CONFIG, Sampling, generation_config, read_generation_config
from archetype.model import Model
from archetype.spec import ModelSpec


@dataclass
class LanguageModel:
    """A specification, its model and its tokenizer, ready to generate.

    Attributes:
        tokenizer: None where the folder holds none; text then cannot go in or out.
        sampling: what generation does where the caller says nothing.
        special: ids that start, end and pad a text, as the folder's files give them.
    """

    spec: ModelSpec
    model: Model
    tokenizer: Tokenizer | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    special: dict[str, Any] = field(default_factory=dict)
    family: Family | None = None

    @overload
    def generate(self, prompt: str, **sampling: Any) -> str: ...

    @overload
    def generate(self, prompt: list[str], **sampling: Any) -> list[str]: ...

    def generate(self, prompt: str | list[str], **sampling: Any) -> str | list[str]:
        """The continuation of a prompt, or of each of several at once.

        Args:
            prompt: text, or a list of texts.
            sampling: any field of `Sampling`, such as max_new_tokens=200 or temperature=0.8.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        texts = generate.generate(self.model, self._tokenizer(), prompts, self.settings(**sampling))
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompt: str, **sampling: Any) -> Iterator[str]:
        """The continuation of a prompt, piece by piece, never cutting a character in two."""
        return (piece for _, piece in self.stream_all([prompt], **sampling))

    def stream_all(self, prompts: list[str], **sampling: Any) -> Iterator[tuple[int, str]]:
        """(number of the prompt, next piece) for several prompts at once."""
        return generate.stream(self.model, self._tokenizer(), prompts, self.settings(**sampling))

    def settings(self, **sampling: Any) -> Sampling:
        """The model's own settings with some replaced."""
        return self.sampling.changed(**sampling)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise DataError("tokenizer", "the model's folder holds none", "add its tokenizer.json or tokenizer.model")
        return self.tokenizer


def load(folder: str | Path, dtype: torch.dtype | None = None, device: str | torch.device = "cpu") -> LanguageModel:
    """The model in a run directory or a Hugging Face folder.

    Args:
        folder: holds spec.yaml (a run) or config.json (Hugging Face).
        dtype: type of the weights (absent: as stored).
        device: where they go.

    Raises:
        CheckpointError: names the file and what is wrong with it.
    """
    folder, device = Path(folder), torch.device(device)
    run = Run(folder)
    if run.exists:
        model = read_run_model(run, dtype, device)
        tokenizer = open_tokenizer(run.tokenizer_folder) if run.tokenizer_folder.is_dir() else None
        sampling, special = read_generation_config(folder)
        if not (folder / GENERATION_CONFIG).is_file():
            sampling = Sampling(temperature=0.8)
        return LanguageModel(model.spec, model, tokenizer, sampling, special)
    if not folder.is_dir():
        raise CheckpointError(str(folder), "there is no such folder", "give a run directory or a Hugging Face folder")
    if not (folder / "config.json").is_file():
        cause = "is neither a run directory (spec.yaml) nor a Hugging Face folder (config.json)"
        raise CheckpointError(str(folder), cause, "check the path")
    return _load_hf(folder, dtype, device)


def save_run(lm: LanguageModel, folder: Path) -> None:
    """Write a language model as a run directory."""
    with durable.new_folder(folder) as temporary:
        run = Run(temporary)
        write_run_spec(run, lm.spec)
        write_weights(run, lm.model)
        durable.write_json(temporary / GENERATION_CONFIG, lm.special | generation_config(lm.sampling))
        if lm.tokenizer is not None:
            run.tokenizer_folder.mkdir()
            lm.tokenizer.save(run.tokenizer_folder)


def export(lm: LanguageModel, folder: str | Path, family: str | None = None, shard_bytes: int | None = None) -> Family:
    """Write a language model as a Hugging Face folder, whole or not at all.

    Args:
        folder: must not exist, or be empty.
        family: the published format (absent: the one it was loaded from, or the first that can express it).
        shard_bytes: the size above which the weights go into several files.

    Raises:
        CheckpointError: names the field that the format cannot express.
    """
    if family is not None and family not in FAMILIES:
        raise CheckpointError("family", f"{family!r} is not known", f"use one of {', '.join(FAMILIES)}")
    chosen = FAMILIES[family] if family else lm.family or family_for(lm.spec)
    chosen.config_for(lm.spec)  # refuses before anything is written
    special = _special_ids(lm)
    with durable.new_folder(Path(folder)) as temporary:
        hf.write_model(lm.model, chosen, temporary, special, shard_bytes or SHARD_BYTES)
        durable.write_json(temporary / GENERATION_CONFIG, special | generation_config(lm.sampling))
        if lm.tokenizer is not None:
            lm.tokenizer.save(temporary)
    return chosen


def _load_hf(folder: Path, dtype: torch.dtype | None, device: torch.device) -> LanguageModel:
    family, config = read_config(folder)
    model = hf.read_model(folder, dtype, device)
    sampling, special = read_generation_config(folder)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    special = {name: config.get(name) for name in names} | {k: v for k, v in special.items() if k in names}
    tokenizer = _tokenizer_of(folder)
    if tokenizer is not None:
        _apply_special(tokenizer, special, str(folder))
    return LanguageModel(model.spec, model, tokenizer, sampling, special, family)


def _tokenizer_of(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer; None where there is no file of one."""
    try:
        return open_tokenizer(folder)
    except DataError as error:
        if error.place == str(folder):
            return None
        raise


def _apply_special(tokenizer: Tokenizer, special: dict[str, Any], place: str) -> None:
    """The ids in the model's files go before the tokenizer's own."""
    bos, eos = special.get("bos_token_id"), special.get("eos_token_id")
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(isinstance(end, int) for end in ends) or not isinstance(bos, int | None):
        raise ArchetypeError(place, f"bos_token_id {bos!r} or eos_token_id {eos!r} is no id", "mend config.json")
    tokenizer.bos = tokenizer.bos if bos is None else bos
    tokenizer.eos = tuple(ends) or tokenizer.eos


def _special_ids(lm: LanguageModel) -> dict[str, Any]:
    """What config.json says of a text's first and last token; null where there is none."""
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if lm.tokenizer is not None:
        ends = lm.tokenizer.eos
        ids |= {"bos_token_id": lm.tokenizer.bos, "eos_token_id": ends[0] if len(ends) == 1 else list(ends) or None}
    return ids | {name: value for name, value in lm.special.items() if value is not None}
