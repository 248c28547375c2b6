"""The models that are served: loaded when they are first asked for, within a budget of memory."""

import asyncio
import gc
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from archetype import __version__
from archetype.errors import ArchetypeError, SpecError
from archetype.generate import Engine, Sampling
from archetype.io.files import check_regular
from archetype.io.text import read_text
from archetype.language_model import LanguageModel
from archetype.models import CausalModel, Encoder, EncoderDecoder, GenerativeModel, VisionEncoder
from archetype.serve.errors import ApiError
from archetype.serve.worker import Worker
from archetype.spec.base import fingerprint, nearest
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.token_bytes import TokenBytes
from archetype.training.memory import free_memory

WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin")
NUM_SAMPLED = 64  # numbers of each tensor that its fingerprint is made of
FALLBACK_MEMORY = 2**32  # bytes, where the system does not say how much is free


@dataclass(frozen=True)
class Source:
    """A model that can be served.

    Attributes:
        name: by which requests ask for it.
        place: its folder, or its name on the hub.
        aliases: other names.
    """

    name: str
    place: str
    aliases: tuple[str, ...] = ()

    def nbytes(self) -> int:
        """Bytes of its weights as they are stored; 0 where they are not on this machine."""
        folder = Path(self.place)
        return sum(file.stat().st_size for pattern in WEIGHTS for file in folder.glob(pattern))


@dataclass(frozen=True)
class ModelOptions:
    """How models are loaded and run.

    Attributes:
        open: loads a folder.
        slots: requests of one model that are decoded together.
        max_queue: further ones that may wait.
        prefix_bytes: memory for the states of texts that later prompts may begin with.
        memory_bytes: for the weights of all models together; None for nine tenths of what is free at first.
        load_seconds: a request waits so long for its model.
        own_sampling: whether what a request leaves out is what the model's generation_config.json says.
        chat_template: a file to use in place of the model's own template.
    """

    open: Callable[[str], LanguageModel]
    slots: int = 16
    max_queue: int = 256
    prefix_bytes: int = 2**28
    memory_bytes: int | None = None
    load_seconds: float = 60.0
    own_sampling: bool = True
    chat_template: Path | None = None


class ServedModel:
    """A loaded model and what answers are made with.

    Args:
        source: its name.
        lm: the model.
        options: how it is run.
    """

    def __init__(self, source: Source, lm: LanguageModel, options: ModelOptions) -> None:
        if not options.own_sampling:
            lm = replace(lm, sampling=Sampling())
        if options.chat_template is not None:
            lm = replace(lm, template=ChatTemplate(read_text(options.chat_template), special_names(lm)))
        self.name, self.source, self.lm = source.name, source, lm
        self.created = int(time.time())
        self.fingerprint = _fingerprint(lm)
        self.nbytes = sum(tensor.nbytes for tensor in (*lm.model.parameters(), *lm.model.buffers()))
        engine = Engine(lm, options.slots, options.prefix_bytes) if self.generates else None
        self.worker = Worker(lm, engine, options.max_queue)

    @property
    def generates(self) -> bool:
        """Whether it continues texts, or writes the targets of sources."""
        return isinstance(self.lm.model, GenerativeModel) and getattr(self.lm.model, "classifier", None) is None

    @property
    def translates(self) -> bool:
        """Whether it is an encoder-decoder."""
        return isinstance(self.lm.model, EncoderDecoder)

    @property
    def context_length(self) -> int | None:
        """Tokens of a text at most; None for a model of images."""
        return None if isinstance(self.lm.model, VisionEncoder) else self.lm.model.spec.context_length

    @property
    def vocab_size(self) -> int:
        """Tokens that it can read; 0 for a model of images."""
        if isinstance(self.lm.model, EncoderDecoder):
            return self.lm.model.spec.source_vocab_size or self.lm.model.spec.vocab_size
        return 0 if isinstance(self.lm.model, VisionEncoder) else self.lm.model.spec.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            ApiError: it has none.
        """
        if self.lm.tokenizer is None:
            raise ApiError("invalid_value", f"the model {self.name} has no tokenizer; send token ids", "prompt")
        return self.lm.tokenizer

    @cached_property
    def token_bytes(self) -> Callable[[int], bytes]:
        """The bytes of a token."""
        return _no_bytes if self.lm.tokenizer is None else TokenBytes(self.lm.tokenizer)

    @cached_property
    def special(self) -> dict[int, str]:
        """The names of tokens that stand for no text."""
        return {} if self.lm.tokenizer is None else {id: name for name, id in self.lm.tokenizer.special_tokens.items()}

    def bytes_of(self, token: int) -> bytes:
        """What a token is displayed by: its own bytes; the name of a special token, or of one beyond the tokenizer."""
        if (name := self.special.get(token)) is not None:
            return name.encode()
        if self.lm.tokenizer is None or token >= self.lm.tokenizer.vocab_size:
            return f"token_id:{token}".encode()
        return self.token_bytes(token) or self.lm.tokenizer.token(token).encode()

    def check(self, task: str) -> None:
        """See that the model is of the kind for a task.

        Args:
            task: "completions", "chat completions", "embeddings" or "classes".

        Raises:
            ApiError: it is of another kind; names what it can do.
        """
        model = self.lm.model
        classifies = getattr(model, "classifier", None) is not None
        embeds = isinstance(model, Encoder) or (isinstance(model, CausalModel) and hasattr(model, "blocks"))
        able = {
            "completions": self.generates,
            "chat completions": self.generates and not self.translates,
            "embeddings": embeds,
            "classes": classifies,
        }
        if not able[task]:
            verbs = ", ".join(name for name, possible in able.items() if possible) or "nothing over this interface"
            message = f"model: {self.name} is of kind {self.lm.spec.kind} and has no {task}; it has {verbs}"
            raise ApiError("invalid_value", message, "model")


def special_names(lm: LanguageModel) -> dict[str, str]:
    """bos_token, eos_token and pad_token as they are spelled, where the model has them."""
    if lm.template is not None and lm.template.tokens:
        return dict(lm.template.tokens)
    if lm.tokenizer is None:
        return {}
    eos, pad = lm.tokenizer.eos, lm.special.get("pad_token_id")
    ids = {"bos_token": lm.tokenizer.bos, "eos_token": eos[0] if eos else None, "pad_token": pad}
    names = {id: name for name, id in lm.tokenizer.special_tokens.items()}
    known = (isinstance(id, int) and 0 <= id < lm.tokenizer.vocab_size for id in ids.values())
    return {
        key: names.get(id) or lm.tokenizer.token(id)
        for (key, id), there in zip(ids.items(), known, strict=True)
        if there and id is not None
    }


def _no_bytes(token: int) -> bytes:
    return b""


def _fingerprint(lm: LanguageModel) -> str:
    """A hash of the specification, of some numbers of every tensor, of its type, and of the version."""
    digest = hashlib.sha256(f"{__version__} {fingerprint(lm.spec)}".encode())
    for name, tensor in lm.model.state_dict().items():
        values = tensor.detach().flatten()
        values = values[:: max(1, len(values) // NUM_SAMPLED)]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {values.double().tolist()}".encode())
    return f"fp_{digest.hexdigest()[:16]}"


@dataclass
class _Entry:
    source: Source
    model: ServedModel | None = None
    num_users: int = 0
    last_used: float = 0.0
    loading: "asyncio.Task[ServedModel] | None" = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return self.source.nbytes() if self.model is None else self.model.nbytes


class Models:
    """All models by name; those that nobody uses leave when another needs their memory, the least recent first.

    Args:
        sources: the models; the first answers requests that name none.
        options: how they are loaded and run.

    Raises:
        SpecError: two have one name.
    """

    def __init__(self, sources: list[Source], options: ModelOptions) -> None:
        self.options = options
        self._entries = {source.name: _Entry(source) for source in sources}
        self._names = {alias: source.name for source in sources for alias in (*source.aliases, source.name)}
        if len(self._entries) < len(sources):
            raise SpecError("MODEL", "two models have the same name", "write NAME=FOLDER for one of them")
        free = free_memory(torch.device("cpu")) or FALLBACK_MEMORY
        self.budget = free * 9 // 10 if options.memory_bytes is None else options.memory_bytes
        if options.chat_template is not None:
            check_regular(options.chat_template)
        self._turn = asyncio.Lock()  # one is loaded at a time

    @property
    def sources(self) -> list[Source]:
        """The models in the order of the command line."""
        return [entry.source for entry in self._entries.values()]

    @property
    def loaded(self) -> list[ServedModel]:
        """Those that are in memory."""
        return [entry.model for entry in self._entries.values() if entry.model is not None]

    def source(self, name: str | None) -> Source:
        """The model of a name or an alias; without one, the first.

        Raises:
            ApiError: there is none.
        """
        if not self._entries:
            raise ApiError("model_not_found", "no model is served; start `archetype serve MODEL`", "model")
        if name is None:
            return next(iter(self._entries.values())).source
        if (known := self._names.get(name)) is None:
            message = f"model: there is no {name!r:.80}; {nearest(name, self._entries)}"
            names = f" ({', '.join(self._entries)})" if "did you mean" in message else ""
            raise ApiError("model_not_found", message + names, "model")
        return self._entries[known].source

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """A loaded model, which stays in memory until this ends.

        Raises:
            ApiError: there is none of this name, or it cannot be loaded now.
        """
        entry = self._entries[self.source(name).name]
        entry.num_users += 1
        entry.last_used = time.monotonic()
        try:
            yield entry.model or await self._load(entry)
        finally:
            entry.num_users -= 1

    async def load_first(self) -> None:
        """Load the first model.

        Raises:
            ArchetypeError: it cannot be loaded.
        """
        if self._entries:
            await self._start(next(iter(self._entries.values())))

    def close(self) -> None:
        """Stop all models."""
        for model in self.loaded:
            model.worker.stop()

    async def _load(self, entry: _Entry) -> ServedModel:
        if entry.loading is None or entry.loading.done():
            entry.loading = asyncio.create_task(self._start(entry))
        try:
            return await asyncio.wait_for(asyncio.shield(entry.loading), self.options.load_seconds)
        except TimeoutError:
            raise ApiError("model_loading", f"{entry.source.name} is still being loaded; try again later") from None
        except ArchetypeError as error:
            raise ApiError("internal_error", f"{entry.source.name} cannot be loaded: {error}") from None

    async def _start(self, entry: _Entry) -> ServedModel:
        async with self._turn:
            if entry.model is None:
                self._make_room(entry)
                lm = await asyncio.to_thread(self.options.open, entry.source.place)
                entry.model = ServedModel(entry.source, lm, self.options)
            return entry.model

    def _make_room(self, entry: _Entry) -> None:
        """Let models leave until this one fits.

        Raises:
            ApiError: those that are in use need the memory.
        """
        others = [one for one in self._entries.values() if one.model is not None]
        needed = entry.nbytes
        for other in sorted(others, key=lambda one: one.last_used):
            if sum(one.nbytes for one in others) + needed <= self.budget:
                return
            if other.num_users == 0 and other.model is not None:
                other.model.worker.stop()
                other.model = None
                others.remove(other)
        gc.collect()
        if (used := sum(one.nbytes for one in others)) and used + needed > self.budget:
            names = ", ".join(one.source.name for one in others)
            raise ApiError("model_loading", f"{entry.source.name} waits for the memory of {names}; try again later")


def summary(source: Source, model: ServedModel | None, created: int) -> dict[str, Any]:
    """What the list of models says of one."""
    created = created if model is None else model.created
    item = {"id": source.name, "object": "model", "created": created, "owned_by": "archetype"}
    return item | {"max_model_len": None if model is None else model.context_length}
