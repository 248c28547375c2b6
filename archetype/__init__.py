"""The architecture workbench for language models: one specification, from its cost to its text.

    spec = archetype.spec("llama-2-7b")      # preset, YAML or JSON file, Hugging Face folder, run directory, or dict
    report = archetype.cost(spec, batch=1, length=4096)
    model = archetype.build(spec)            # a torch.nn.Module, randomly initialised
    lm = archetype.load("folder")            # .spec .model .tokenizer .generate(...) .stream(...)

Nothing is imported before it is used: specifications and costs never load torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"
__all__ = ["LanguageModel", "__version__", "build", "cost", "export", "load", "spec"]


class _Room(ModuleType):
    """A subpackage that is also the verb of its name: `archetype.cost` holds classes, `archetype.cost(...)` counts."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        face = getattr(import_module("archetype.api"), self.__name__.rpartition(".")[2])
        return face(*arguments, **options)


class _House(ModuleType):
    """The package itself: hands out its faces lazily, and makes `spec` and `cost` callable when they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("spec", "cost") and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ("spec", "cost"):
            return import_module(f"archetype.{name}")
        if name in __all__:
            return getattr(import_module("archetype.api"), name)
        raise AttributeError(f"module 'archetype' has no attribute {name!r}")


sys.modules[__name__].__class__ = _House
