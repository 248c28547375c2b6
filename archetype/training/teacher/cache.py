"""Cache of a teacher's most likely tokens: one file per micro-batch, named by a hash of the teacher's input."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.io.tensors import Tensors, save
from archetype.training.teacher.divergence import Classes

TEACHER = "teacher.json"


class TeacherCache:
    """Most likely tokens of one teacher. Runs with the same teacher, data and batches may share a folder.

    Args:
        folder: the folder.
        teacher: the settings that determine the tokens; stored with them.

    Raises:
        SpecError: the folder has tokens of another teacher, or other files.
    """

    def __init__(self, folder: Path, teacher: Mapping[str, object]) -> None:
        self.folder, self.teacher, self.writes = folder, dict(teacher), False
        file = folder / TEACHER
        if file.is_file():
            if read_json(file) != self.teacher:
                cause = f"{folder} has tokens of another teacher, or of other settings"
                raise SpecError("teacher.cache", cause, "name another folder")
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SpecError("teacher.cache", f"{folder} exists and has other files", "name another folder")

    def begin(self) -> None:
        """Create the folder. Without this, nothing is written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.write_json(self.folder / TEACHER, self.teacher)
        self.writes = True

    def name(self, tensors: Mapping[str, Tensor]) -> str:
        """Return the name of the file for these inputs."""
        digest = hashlib.sha256(str(torch.is_autocast_enabled(next(iter(tensors.values())).device.type)).encode())
        for name, tensor in sorted(tensors.items()):
            array = tensor.detach().cpu().contiguous().numpy()
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return digest.hexdigest()[:32]

    def read(self, name: str, device: torch.device) -> Classes | None:
        """Return the tokens in a file; None if it was not written yet."""
        file = self.folder / f"{name}.safetensors"
        if not file.is_file():
            return None
        tensors = Tensors.single(file)
        return Classes(tensors.stored("log_p").to(device), tensors.stored("ids").to(device).long())

    def write(self, name: str, classes: Classes) -> None:
        if self.writes and classes.ids is not None:
            save(self.folder / f"{name}.safetensors", {"log_p": classes.log_p, "ids": classes.ids.int()})
