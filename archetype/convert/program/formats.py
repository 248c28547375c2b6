"""Formats and file names of exported programs."""

from typing import Literal, TypeGuard

from archetype.convert.program import onnx

ProgramFormat = Literal["torch-export", "onnx"]
FILES: dict[ProgramFormat, str] = {"torch-export": "model.pt2", "onnx": onnx.FILE}
SIGNATURE = "signature.json"
README = "README.md"


def is_program(format: str) -> TypeGuard[ProgramFormat]:
    """Return whether an export format is a program."""
    return format in FILES
