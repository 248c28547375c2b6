"""Every architecture that llama.cpp and the library `gguf` know is written and read, or refused for a reason."""

import gguf
import pytest

from archetype.convert.gguf.architectures import GGUF, families_of
from archetype.convert.gguf.refused import REFUSED
from archetype.errors import CheckpointError
from benchmarks.gguf import PAGE, page, written

NOT_MODELS = {"mmproj"}  # for the part of a file that reads images


def test_every_architecture_is_written_or_refused() -> None:
    known = set(gguf.MODEL_ARCH_NAMES.values()) - NOT_MODELS
    ours = {target.architecture for target in GGUF.values()}
    assert known - ours - {*REFUSED} == set()
    assert not ours & {*REFUSED}


def test_the_page_lists_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert set(written()) == {target.architecture for target in GGUF.values()}


def test_a_refused_architecture_says_what_is_missing() -> None:
    with pytest.raises(CheckpointError, match=r"'rwkv6' is not supported: the RWKV-6 recurrence"):
        families_of("rwkv6", "file.gguf")
    with pytest.raises(CheckpointError, match=r"'new' is not supported; use one of"):
        families_of("new", "file.gguf")
