"""Served models, loaded at their first request within a memory budget."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from archetype.apps.serve.errors import ApiError, invalid_value
from archetype.apps.serve.memory import Memory
from archetype.errors import ArchetypeError, SpecError, nearest

if TYPE_CHECKING:  # without a model nothing of torch is loaded
    from archetype.api.language_model import LanguageModel
    from archetype.apps.serve.served_model import ServedModel

WEIGHTS = ("*.safetensors", "*.gguf", "pytorch_model*.bin")


@dataclass(frozen=True)
class Source:
    """Model that can be served.

    Attributes:
        name: name in requests.
        place: folder, or name on huggingface.co.
        aliases: other names in requests.
        on_demand: whether the first request loads the model, instead of the start of the server.
        prompt: prompt shown first in the web UI.
    """

    name: str
    place: str
    aliases: tuple[str, ...] = ()
    on_demand: bool = False
    prompt: str | None = None

    def nbytes(self) -> int:
        """Return the number of bytes of the stored weights; 0 if they are not on this machine."""
        folder = Path(self.place)
        if folder.is_file():
            return folder.stat().st_size
        return sum(file.stat().st_size for pattern in WEIGHTS for file in folder.glob(pattern))


@dataclass(frozen=True)
class ModelOptions:
    """Options for loading and running models.

    Attributes:
        open: function that loads a folder.
        slots: number of requests of one model that are decoded together.
        max_queue: requests that may queue when all slots are busy.
        prefix_bytes: size of the prefix cache.
        memory_bytes: memory for all models and requests; None for nine tenths of the device's free memory.
        device: device of the models, as in --device.
        load_seconds: time that a request waits for its model.
        own_sampling: whether generation_config.json sets the sampling defaults.
        chat_template: file or name of a template that replaces the model's template.
    """

    open: "Callable[[str], LanguageModel]"
    slots: int = 16
    max_queue: int = 256
    prefix_bytes: int = 2**28
    memory_bytes: int | None = None
    device: str = "cpu"
    load_seconds: float = 60.0
    own_sampling: bool = True
    chat_template: Path | None = None


@dataclass
class _Entry:
    source: Source
    model: "ServedModel | None" = None
    num_users: int = 0
    last_used: float = 0.0
    loading: "asyncio.Task[ServedModel] | None" = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        return self.source.nbytes() if self.model is None else self.model.nbytes


class Models:
    """All models by name. If a model needs memory, the least recently used idle models are unloaded.

    Args:
        sources: the models. The first model serves requests that do not name a model.
        options: options for loading and running the models.

    Raises:
        SpecError: two models have the same name.
    """

    def __init__(self, sources: list[Source], options: ModelOptions) -> None:
        self.options = options
        self._entries = {source.name: _Entry(source) for source in sources}
        self._names = {alias: source.name for source in sources for alias in (*source.aliases, source.name)}
        if len(self._entries) < len(sources):
            raise SpecError("MODEL", "two models have the same name", "write NAME=FOLDER for one of them")
        if options.chat_template is not None:
            from archetype.tokenizers.known_templates import template_source

            template_source(options.chat_template)  # raises before a model is loaded
        self._turn = asyncio.Lock()  # one model is loaded at a time
        self.on_unload: Callable[[ServedModel], None] = lambda model: None
        self.memory = Memory(options.memory_bytes, options.device)
        self.memory.weights = lambda: sum(model.nbytes for model in self.loaded)
        self.memory.others.append(lambda: sum(model.worker.nbytes for model in self.loaded))

    @property
    def sources(self) -> list[Source]:
        """Return the models in the order of the command line."""
        return [entry.source for entry in self._entries.values()]

    @property
    def loaded(self) -> "list[ServedModel]":
        return [entry.model for entry in self._entries.values() if entry.model is not None]

    def has_chat_template(self, source: Source) -> bool | None:
        """Return whether a model has a chat template; None for a model on huggingface.co that is not loaded yet.

        Raises:
            DataError: the template's file is damaged.
        """
        if (model := self._entries[source.name].model) is not None:
            return model.lm.template is not None
        if self.options.chat_template is not None:
            return True
        from archetype.tokenizers.chat_template import read_template

        folder = Path(source.place)
        tokenizer = folder / "tokenizer"  # of a run
        return read_template(tokenizer if tokenizer.is_dir() else folder) is not None if folder.is_dir() else None

    def source(self, name: str | None) -> Source:
        """Return the model with a name or alias; the first model if no name is given.

        Raises:
            ApiError: no model has this name.
        """
        if not self._entries:
            raise ApiError("model_not_found", "no model is served; start `archetype serve MODEL`", "model")
        if name is None:
            return next(iter(self._entries.values())).source
        if (known := self._names.get(name)) is None:
            message = f"model: no served model is named {name!r:.80}; {nearest(name, self._entries)}"
            names = f" ({', '.join(self._entries)})" if "did you mean" in message else ""
            raise ApiError("model_not_found", message + names, "model")
        return self._entries[known].source

    @asynccontextmanager
    async def use(self, name: str | None) -> "AsyncIterator[ServedModel]":
        """Provide a loaded model, which stays in memory while the context is open.

        Raises:
            ApiError: no model has this name, or the model cannot be loaded now.
        """
        entry = self._entries[self.source(name).name]
        entry.num_users += 1
        entry.last_used = time.monotonic()
        try:
            # counted as a user while it loads, so that it is not unloaded for another model meanwhile
            yield entry.model or await self._load(entry)
        finally:
            entry.num_users -= 1

    async def load_first(self) -> None:
        """Load the first model, unless it is loaded on demand.

        Raises:
            ArchetypeError: the model cannot be loaded.
        """
        if self._entries and not self.sources[0].on_demand:
            await self._start(next(iter(self._entries.values())))

    def close(self) -> None:
        for model in self.loaded:
            model.worker.stop()

    async def _load(self, entry: _Entry) -> "ServedModel":
        if entry.loading is None or entry.loading.done():
            entry.loading = asyncio.create_task(self._start(entry))
        try:
            async with asyncio.timeout(self.options.load_seconds):
                # shielded: if this client leaves, loading goes on for the others that wait
                return await asyncio.shield(entry.loading)
        except TimeoutError:
            raise ApiError("model_loading", f"{entry.source.name} is still being loaded; try again later") from None
        except ArchetypeError as error:
            raise invalid_value("model", f"{entry.source.name} cannot be loaded: {error}") from None

    async def _start(self, entry: _Entry) -> "ServedModel":
        from archetype.apps.serve.served_model import ServedModel

        async with self._turn:
            if entry.model is None:
                self._make_room(entry)
                lm = await _in_own_thread(partial(self.options.open, entry.source.place))
                entry.model = ServedModel(entry.source, lm, self.options, self.memory)
            return entry.model

    def _make_room(self, entry: _Entry) -> None:
        # unload idle models until this one fits, the least recently used first
        others = [loaded for loaded in self._entries.values() if loaded.model is not None]
        needed, budget = entry.nbytes, self.memory.total - self.memory.used
        # without other models, this one is loaded in any case
        if others and needed > self.memory.total:
            cause = f"{entry.source.name} needs {needed >> 20:,} MiB, more than the {self.memory.total >> 20:,} MiB"
            raise invalid_value("model", f"{cause}; start the server with a larger --memory")
        for other in sorted(others, key=lambda loaded: loaded.last_used):
            if sum(loaded.nbytes for loaded in others) + needed <= budget:
                return
            if other.num_users == 0 and other.model is not None:
                other.model.worker.stop()
                self.on_unload(other.model)
                gc.unfreeze()  # the server froze the objects of its start, the first model among them
                other.model = None
                others.remove(other)
        gc.collect()
        if (used := sum(loaded.nbytes for loaded in others)) and used + needed > budget:
            names = ", ".join(loaded.source.name for loaded in others)
            cause = f"{entry.source.name} needs {needed >> 20:,} of {self.memory.total >> 20:,} MiB"
            message = f"{cause}, which does not fit next to {names}, now in use; try again later"
            raise ApiError("model_loading", message, "model")


async def _in_own_thread(work: "Callable[[], LanguageModel]") -> "LanguageModel":
    # A thread that has computed with tensors keeps its OpenMP helper threads until it ends. With more helpers than
    # cores, OpenMP puts all of them to sleep between operations, and every step of the model's thread gets slower.
    import torch

    from archetype.apps.serve.worker import compute_with

    thread = ThreadPoolExecutor(1, "archetype-load", compute_with, (torch.get_num_threads(),))
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)
