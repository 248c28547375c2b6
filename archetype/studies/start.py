"""Trained weights that an arm starts from: a donor, or a model that `archetype transplant` made of it."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from archetype.api.pretrained import open_pretrained
from archetype.convert.gguf.header import parts_of
from archetype.convert.peft.config import CONFIG as ADAPTER_CONFIG
from archetype.errors import DataError, SpecError
from archetype.training.pretrained import Pretrained
from archetype.training.recipe import Recipe

SUFFIXES = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class Start:
    """Weights that an arm starts from.

    Attributes:
        folder: absolute path of a run directory, a model folder or a GGUF file.
        sha256: hash of its weights.
        is_trained: whether the arm is trained further; otherwise it is only evaluated.
    """

    folder: str
    sha256: str
    is_trained: bool = True

    def open(self, recipe: Recipe) -> Pretrained:
        """Load the weights. If the recipe has another specification, they are transplanted with its seed.

        Raises:
            DataError: they have changed since the study was planned.
        """
        if weights_hash(Path(self.folder)) != self.sha256:
            cause = "has other weights than when the study was planned"
            raise DataError(self.folder, cause, "run the same command again, which plans it anew")
        return open_pretrained(Path(self.folder)).for_recipe(recipe)


def start_from(source: str, is_trained: bool) -> Start:
    """Return the weights of a folder or file.

    Raises:
        SpecError: there are none.
    """
    folder = Path(source).expanduser().absolute()
    return Start(str(folder), weights_hash(folder), is_trained)


def teacher_identity(recipe: Recipe) -> dict[str, Any] | None:
    """Return a recipe's teacher settings, with the hash of the weights instead of the path."""
    teacher = recipe.teacher
    if teacher is None:
        return None
    model = Path(teacher.model)
    return teacher.dump(full=True) | {"cache": "", "model": weights_hash(model) if model.exists() else teacher.model}


def with_shared_teacher(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe whose teacher stores its most likely tokens in a folder, where all runs find them."""
    teacher = recipe.teacher
    if teacher is None or teacher.top_k is None or teacher.cache or teacher.layers:
        return recipe
    name = hashlib.sha256(json.dumps(teacher_identity(recipe), sort_keys=True).encode()).hexdigest()[:16]
    return recipe.replace(teacher=teacher.replace(cache=str(folder / name)))


def weights_hash(folder: Path) -> str:
    """Return a hash of the weights of a folder or file. Files are read again only if they have changed.

    Raises:
        SpecError: there are no weights.
    """
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file():
        remedy = f"merge it into its base: archetype import {folder} --to RUN"
        raise SpecError(str(folder), "is an adapter, and its weights depend on its base", remedy)
    files = sorted(folder.iterdir()) if folder.is_dir() else parts_of(folder) if folder.is_file() else []
    files = [file for file in files if file.suffix in SUFFIXES]
    if not files:
        cause = "is not a folder with trained weights"
        raise SpecError(str(folder), cause, "name a finished run, a model folder or a GGUF file")
    return _hash(tuple((str(file), file.stat().st_mtime_ns) for file in files))


@cache
def _hash(files: tuple[tuple[str, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, _ in files:
        with Path(name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
