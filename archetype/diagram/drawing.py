"""A diagram as a notebook shows it and as a file holds it."""

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
    """A diagram; a notebook shows it.

    Attributes:
        scene: boxes, containers, wires and notes with their places, as plain data.
    """

    scene: Scene

    @cached_property
    def svg(self) -> str:
        """As the text of an SVG file."""
        from archetype.diagram.svg import svg

        return svg(self.scene)

    def png(self, scale: float = 2.0) -> bytes:
        """As the bytes of a PNG file; `scale` pixels of the file for each of the scene."""
        from archetype.diagram.figure import png

        return png(self.scene, scale)

    def pdf(self) -> bytes:
        """Return the bytes of a PDF file."""
        from archetype.diagram.figure import pdf

        return pdf(self.scene)

    def save(self, path: str | Path) -> Path:
        """Write a file, by the ending of its name: .svg, .png, .pdf, or .json, which is the scene.

        Raises:
            SpecError: the name ends otherwise.
            ArchetypeError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise SpecError(str(path), f"the ending {path.suffix!r} is not known", f"use {', '.join(SUFFIXES)}")
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
