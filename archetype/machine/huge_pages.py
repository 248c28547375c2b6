"""Move weights into huge pages: decoding reads all weights for each token, and loses time at every small page."""

import ctypes
import mmap
from bisect import bisect_right
from pathlib import Path

import torch
from torch import Tensor, nn

SMALLEST = 2**22  # bytes of weights; smaller models fit into the processor's caches
ALIGNMENT = 64  # bytes of a cache line
PIECE = 2**26  # bytes that are copied, and then released, at a time
# MADV_POPULATE_READ and _WRITE (Linux 5.14): map all pages of a range at once, instead of one by one at first use
POPULATE_READ, POPULATE_WRITE = 22, 23


@torch.no_grad()
def move_to_huge_pages(model: nn.Module) -> None:
    """Copy a model's CPU weights into one block of huge pages, if the system has huge pages.

    Parameters and buffers remain the same objects. Nothing else may use the model meanwhile.
    """
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if _is_movable(tensor)]
    sizes = {tensor.data_ptr(): -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors}
    if sum(sizes.values()) < SMALLEST or (block := _allocate(sum(sizes.values()))) is None:
        return
    mappings, offset = _file_mappings(), 0
    copies: dict[int, Tensor] = {}  # by the address of the original, which tied weights share
    for tensor in tensors:
        address = tensor.data_ptr()
        if address not in copies:
            copy = torch.frombuffer(block, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            for part, source in zip(_pieces(copy), _pieces(tensor.view(-1)), strict=True):
                _advise(source.data_ptr(), source.nbytes, POPULATE_READ)
                _advise(part.data_ptr(), part.nbytes, POPULATE_WRITE)
                part.copy_(source)
                _release(source.data_ptr(), source.nbytes, mappings)
            copies[address] = copy.view(tensor.shape)
            offset += sizes[address]
        tensor.data = copies[address].view(tensor.shape)


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    # a large table is not in memory twice while it is copied
    return tensor.split(PIECE // tensor.itemsize)


def _is_movable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.nbytes > 0


def _allocate(num_bytes: int) -> mmap.mmap | None:
    # None if the system has no huge pages
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    block = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        block.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a Linux kernel built without huge pages
        return None
    return block


def _file_mappings() -> list[tuple[int, int]]:
    # (first address, end) of everything that is mapped from files, in order
    mappings = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode = line.split(maxsplit=5)[:5]
        if inode != "0":
            first, _, end = addresses.partition("-")
            mappings.append((int(first, 16), int(end, 16)))
    return mappings


def _release(address: int, num_bytes: int, mappings: list[tuple[int, int]]) -> None:
    # Drop whole pages that are mapped from a file; reading them again would load them from the file.
    index = bisect_right(mappings, (address, 2**64)) - 1
    if index >= 0 and address + num_bytes <= mappings[index][1]:
        _advise(address, num_bytes, mmap.MADV_DONTNEED)


def _advise(address: int, num_bytes: int, advice: int) -> None:
    # for the whole pages of a range; an error, such as advice that an old kernel does not know, is ignored
    page = mmap.PAGESIZE
    first, end = -(-address // page) * page, (address + num_bytes) // page * page
    if first < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), advice)
