"""Checkpoints that all processes write together, with torch.distributed.checkpoint.

The safetensors files have metadata on their slices, so that any number of processes can read them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save

from archetype.errors import CheckpointError, one_line
from archetype.runs import checkpoints

if TYPE_CHECKING:
    from archetype.training.parallel.processes import ManyProcesses


def write(
    processes: "ManyProcesses", folder: Path, step: int, pieces: dict[str, dict[str, Tensor]], *arguments: Any
) -> None:
    """Write the shards of all processes atomically as one checkpoint.

    Args:
        processes: processes that train the run; all must call this function, from any thread.
        pieces: whole or sharded tensors as {subfolder: {name: tensor}}.
        arguments: remaining arguments of `checkpoints.write_with`.

    Raises:
        CheckpointError: the checkpoint cannot be written.
    """
    is_told = False  # whether the other processes no longer wait for the folder's name

    def fill(temporary: Path) -> list[str]:
        nonlocal is_told
        is_told = True
        _tell(str(temporary), processes.saving)
        _save(temporary, pieces, processes.saving)
        return sorted(file.relative_to(temporary).as_posix() for file in temporary.rglob("*.safetensors"))

    def main() -> None:
        try:
            checkpoints.write_with(folder, step, fill, *arguments)
        finally:
            if not is_told:  # the checkpoint exists already, or its folder could not be created; "" releases them
                _tell("", processes.saving)

    def other() -> None:
        if temporary := _tell("", processes.saving):
            _save(Path(temporary), pieces, processes.saving)

    processes.together(main if processes.is_main else other, processes.saving)


def _save(folder: Path, pieces: dict[str, dict[str, Tensor]], group: dist.ProcessGroup | None) -> None:
    for name, tensors in pieces.items():
        try:
            writer = HuggingFaceStorageWriter(str(folder / name), save_distributed=True)
            shards = {key: tensor.detach() for key, tensor in tensors.items()}
            save(shards, storage_writer=writer, process_group=group)
        except CheckpointException as error:
            cause = one_line(f"cannot be written: {next(iter(error.failures.values()))[0]}", 200)
            raise CheckpointError(str(folder / name), cause, "check space and permissions") from None


def _tell(text: str, group: dist.ProcessGroup | None) -> str:
    texts = [text]  # replaced in all processes but the main one
    dist.broadcast_object_list(texts, src=0, group=group)
    return texts[0]
