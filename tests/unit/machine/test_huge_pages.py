"""Weights leave their file for huge pages as the same parameters, and no second copy of them stays."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from archetype.machine import huge_pages
from archetype.machine.huge_pages import SMALLEST, move_to_huge_pages

MAPS = Path("/proc/self/smaps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="needs /proc/self/smaps, which says what is in memory")


class Model(nn.Module):
    """A table and a head that share their weights, a frozen matrix, and a buffer with strides."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Parameter(tensors["embedding"])
        self.lm_head = nn.Parameter(self.embedding.data)
        self.up = nn.Parameter(tensors["up"], requires_grad=False)
        self.register_buffer("statistics", tensors["statistics"])
        self.register_buffer("columns", tensors["up"][:, ::2])
        self.register_buffer("nothing", torch.empty(0))


@pytest.fixture(params=[1, 64], ids=["small", "large"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    rows = request.param * 1024
    tensors = {
        "embedding": torch.randn(rows, 64),
        "up": torch.randn(rows, 32).bfloat16(),
        "statistics": torch.arange(7.0).double(),
    }
    save_file(tensors, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def bytes_of_file_in_memory(file: Path) -> int:
    """What /proc/self/smaps counts as resident of the mappings of a file."""
    resident, is_of_file = 0, False
    for line in MAPS.read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            is_of_file = line.endswith(str(file))
        elif is_of_file and line.startswith("Rss:"):
            resident += 1024 * int(line.split()[1])
    return resident


@needs_maps
@pytest.mark.parametrize("piece", [huge_pages.PIECE, 1_000_002])
def test_weights_move_and_their_file_leaves_memory(file: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "PIECE", piece)
    mapped = load_file(file)
    model = Model(mapped)
    parameters, is_large = list(model.parameters()), file.stat().st_size > SMALLEST
    before = {name: (tensor.clone(), tensor.data_ptr()) for name, tensor in model.state_dict().items()}
    resident = bytes_of_file_in_memory(file)
    assert resident > file.stat().st_size / 2
    move_to_huge_pages(model)
    assert (bytes_of_file_in_memory(file) < resident / 100) == is_large
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    moved = {name for name, tensor in model.state_dict().items() if tensor.data_ptr() != before[name][1]}
    assert moved == ({"embedding", "lm_head", "up", "statistics"} if is_large else set())
    assert all(torch.equal(tensor, before[name][0]) for name, tensor in model.state_dict().items())
    assert all(tensor.data_ptr() % 64 == 0 for name, tensor in model.state_dict().items() if name in moved)
    assert model.lm_head.data_ptr() == model.embedding.data_ptr()
    assert not model.up.requires_grad
    assert all(torch.equal(mapped[name], tensor) for name, tensor in load_file(file).items())


def test_a_moved_model_learns_and_leaves_its_file_alone(file: Path) -> None:
    content = file.read_bytes()
    model = Model(load_file(file))
    move_to_huge_pages(model)
    (model.embedding @ model.embedding[0]).sum().backward()
    torch.optim.SGD([model.embedding], lr=1.0).step()
    assert torch.equal(model.lm_head, model.embedding)
    assert file.read_bytes() == content and not torch.equal(model.embedding, load_file(file)["embedding"])


def test_a_system_without_huge_pages_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    model = Model(load_file(file))
    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
    move_to_huge_pages(model)
    assert addresses == [tensor.data_ptr() for tensor in model.state_dict().values()]
