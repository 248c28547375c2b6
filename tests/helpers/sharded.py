"""Shards that a process draws or reads, beside those of a model that was built whole and then shared out."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from archetype.io.tensors import save
from archetype.models.build import Model, build, build_on_meta
from archetype.training.parallel.layout import Parallel
from archetype.training.parallel.pipeline import Pipeline
from archetype.training.parallel.processes import WEIGHTS_MESH, share_model
from archetype.training.parallel.shards import local, materialize
from tests.helpers.live_bytes import LiveBytes
from tests.helpers.specs import block, decoder, experts

ROWS, WIDTH = 500, 64  # of the largest tensor
NUM_PROCESSES, CPU = 4, torch.device("cpu")
LAYOUTS: list[dict[str, int]] = [
    {"shard": 4}, {"shard": 2, "tensor": 2}, {"shard": 2, "context": 2}, {"shard": 2, "expert": 2}, {"tensor": 2},
    {"pipeline": 2, "tensor": 2},
]  # fmt: skip
MAMBA = {"kind": "mamba", "state_size": 4}
SPEC = decoder(
    block(), block(mixer=MAMBA), block(feedforward=experts(), wiring={"kind": "pre_norm", "norm": {"kind": "batch"}}),
    embedding={"position": {"kind": "learned"}}, head={"kind": "language_model", "tied": False}, vocab_size=ROWS,
    d_model=WIDTH,
)  # fmt: skip


def shared_out(model: Model, sizes: dict[str, int]) -> Model:
    """The model with what this process has of it."""
    layout = Parallel(**sizes).for_world(NUM_PROCESSES)
    share_model(model, layout, CPU, "float32")
    if layout.pipeline > 1:
        mesh = init_device_mesh("cpu", (layout.pipeline, 1, 1, layout.tensor), mesh_dim_names=WEIGHTS_MESH)
        Pipeline(model, mesh["pipeline"], layout.schedule, CPU)
    return model


def check(sizes: dict[str, int], weights: Path) -> None:
    """Equal to the bit, drawn and read, and the peak is the shards and one tensor."""
    for seed, file in ((3, None), (7, weights)):
        expected = shared_out(build(SPEC, seed), sizes).state_dict()
        model = shared_out(build_on_meta(SPEC), sizes)
        with LiveBytes(()) as bytes_held:
            materialize(model, CPU, seed, file)
        tensors = model.state_dict()
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            assert type(tensor) is type(expected[name]), name
            assert torch.equal(local(tensor), local(expected[name])), (sizes, name)
        storages = {(storage := local(tensor).untyped_storage()).data_ptr(): storage for tensor in tensors.values()}
        shards, largest = sum(storage.nbytes() for storage in storages.values()), 4 * ROWS * WIDTH
        numbers_of_rows = 16 * ROWS  # with which torch finds the share of a process
        assert shards <= bytes_held.peak <= shards + largest + numbers_of_rows, (sizes, bytes_held.peak - shards)


def main(rank: int) -> None:
    """What a process of this rank would have, without the others."""
    dist.init_process_group("fake", rank=rank, world_size=NUM_PROCESSES, store=FakeStore())
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "model.safetensors"
        save(weights, build(SPEC, 7).state_dict())
        for sizes in LAYOUTS:
            check(sizes, weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
