"""Packages of the package index that hold published models and programs: installed by name into a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def install(folder: Path, *packages: str, dependencies: bool = False) -> Path:
    """Install packages into a folder; without an index the test is skipped.

    Args:
        folder: to put on PYTHONPATH; made where it is missing.
        packages: their names.
        dependencies: also install what they ask for.

    Returns:
        The folder.
    """
    needs = () if dependencies else ("--no-deps",)
    command = [sys.executable, "-m", "pip", "install", "--quiet", *needs, "--target", str(folder), *packages]
    if (done := subprocess.run(command, capture_output=True)).returncode:
        pytest.skip("needs a package index, for pip install: " + done.stderr.decode()[-200:])
    return folder


def run_python(program: str, folder: Path, *arguments: str) -> str:
    """Return what a Python program prints that imports the packages of a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
