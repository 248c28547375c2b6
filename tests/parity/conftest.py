"""What tests against other programs share."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest

INSTALLED = Path(__file__).parent.parent.parent / ".venv-llama-cpp"  # by `make llama-cpp`


@pytest.fixture(scope="session")
def c() -> Any:
    """The functions of llama.cpp, silent."""
    sys.path.append(str(INSTALLED))
    try:
        import llama_cpp
    except ImportError:
        pytest.skip("needs llama-cpp-python (make llama-cpp, which compiles for minutes)")
    silent = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    llama_cpp.silent = silent  # called as long as the library is in use
    return llama_cpp
