"""What tests against other programs share."""

import ctypes
from typing import Any

import pytest


@pytest.fixture(scope="session")
def c() -> Any:
    """The functions of llama.cpp, silent."""
    try:
        import llama_cpp
    except ImportError:
        pytest.skip("needs llama-cpp-python (compiles for ten minutes; pip install llama-cpp-python)")
    silent = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    llama_cpp.silent = silent  # called as long as the library is in use
    return llama_cpp
