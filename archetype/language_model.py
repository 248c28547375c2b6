"""A model with its tokenizer: what `archetype.load` gives and every verb takes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

import torch

from archetype import generate
from archetype.checkpoint import durable, hf
from archetype.checkpoint.run import Run, read_run_model, write_run_spec, write_weights
from archetype.checkpoint.tensors import SHARD_BYTES
from archetype.data.tokenizer import Tokenizer, open_tokenizer
from archetype.errors import ArchetypeError, CheckpointError, DataError, SpecError
from archetype.families import PUBLISHED, Family, family_for
from archetype.families.source import read_config
from archetype.generate import Beam, Guess, Pooling
from archetype.generate.settings import GENERATION_CONFIG, Sampling, generation_config, read_generation_config
from archetype.model import CausalModel, Decoder, Encoder, EncoderDecoder, MegaByte, Model, NGram, VisionEncoder
from archetype.spec import ModelSpec

M = TypeVar("M")
# What each kind of model is for, in the words of the command line.
VERBS: dict[type, str] = {
    Decoder: "generate",
    NGram: "generate",
    MegaByte: "generate",
    EncoderDecoder: "translate",
    Encoder: "fill or embed",
    VisionEncoder: "classify images",
}


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
        model = self._writer()
        texts = generate.generate(model, self._tokenizer(), prompts, self.settings(**sampling))
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompt: str, **sampling: Any) -> Iterator[str]:
        """The continuation of a prompt, piece by piece, never cutting a character in two."""
        return (piece for _, piece in self.stream_all([prompt], **sampling))

    def stream_all(self, prompts: list[str], **sampling: Any) -> Iterator[tuple[int, str]]:
        """(number of the prompt, next piece) for several prompts at once."""
        model = self._writer()
        return generate.stream(model, self._tokenizer(), prompts, self.settings(**sampling))

    @overload
    def translate(self, text: str, **beam: Any) -> str: ...

    @overload
    def translate(self, text: list[str], **beam: Any) -> list[str]: ...

    def translate(self, text: str | list[str], **beam: Any) -> str | list[str]:
        """The target of a source text, or of each of several, by an encoder-decoder.

        Args:
            text: a source, or a list of sources.
            beam: any field of `Beam`, such as beams=5 or length_penalty=1.0.
        """
        sources = [text] if isinstance(text, str) else text
        model = self._model(EncoderDecoder)
        targets = generate.translate(model, self._tokenizer(), sources, Beam.parse(beam))
        return targets[0] if isinstance(text, str) else targets

    def fill(self, text: str, top: int = 5) -> list[list[Guess]]:
        """The likeliest tokens for every [MASK] of a text, by an encoder."""
        return generate.fill(self._model(Encoder), self._tokenizer(), text, top)

    def embed(self, texts: list[str], pooling: Pooling = "mean", normalized: bool = True) -> torch.Tensor:
        """A vector for each text, by an encoder: the mean of its tokens' vectors, or the first's; of length 1."""
        return generate.embed(self._model(Encoder), self._tokenizer(), texts, pooling, normalized)

    def classify(self, images: torch.Tensor) -> torch.Tensor:
        """The probability of each class, (B, classes), for pictures (B, C, H, W), by a vision encoder."""
        return generate.classify(self._model(VisionEncoder), images)

    def settings(self, **sampling: Any) -> Sampling:
        """The model's own settings with some replaced."""
        return self.sampling.changed(**sampling)

    def _writer(self) -> CausalModel:
        """The model, where it is of a kind that writes text."""
        if isinstance(self.model, CausalModel):
            return self.model
        raise self._other_kind()

    def _model(self, kind: type[M]) -> M:
        """The model, where it is of the kind that can do what was asked."""
        if isinstance(self.model, kind):
            return self.model
        raise self._other_kind()

    def _other_kind(self) -> SpecError:
        verb = VERBS[type(self.model)]
        return SpecError("model", f"a model of kind {self.spec.kind} cannot do this", f"it is there to {verb}")

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
    if family is not None and family not in PUBLISHED:
        raise CheckpointError("family", f"{family!r} has no format known here", f"use one of {', '.join(PUBLISHED)}")
    chosen = PUBLISHED[family] if family else lm.family or family_for(lm.spec)
    chosen.format.config_for(lm.spec)  # refuses before anything is written
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
