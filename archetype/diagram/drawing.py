"""Diagram that notebooks display and that can be saved to a file."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archetype.diagram.scene import Scene
from archetype.errors import SpecError
from archetype.io import atomic

SUFFIXES = (".svg", ".png", ".pdf", ".json")


@dataclass(frozen=True, repr=False)
class Drawing:
    """Diagram of an architecture. Notebooks display it.

    Attributes:
        scene: boxes, containers, wires and notes with positions, as plain data.
    """

    scene: Scene

    @cached_property
    def svg(self) -> str:
        from archetype.diagram.svg import svg

        return svg(self.scene)

    def png(self, scale: float = 2.0) -> bytes:
        """Return the diagram as PNG. `scale` is the number of pixels per pixel of the scene."""
        from archetype.diagram.figure import png

        return png(self.scene, scale)

    def pdf(self) -> bytes:
        from archetype.diagram.figure import pdf

        return pdf(self.scene)

    def save(self, path: str | Path) -> Path:
        """Write the diagram to a file. The suffix selects .svg, .png, .pdf, or .json (the scene).

        Raises:
            SpecError: the suffix is unknown.
            ArchetypeError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise SpecError(str(path), f"unknown suffix {path.suffix!r}", f"use {', '.join(SUFFIXES)}")
        match path.suffix:
            case ".png":
                data = self.png()
            case ".pdf":
                data = self.pdf()
            case ".svg":
                data = self.svg.encode()
            case _:
                data = json.dumps(self.scene.to_json(), indent=1).encode()
        atomic.write_bytes(path, data)
        return path

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Drawing({self.scene.name}, {len(self.scene.boxes)} boxes)"
