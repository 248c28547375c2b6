"""Padding of a scene to an aspect ratio, such as that of a slide."""

import re
from dataclasses import replace

from archetype.diagram.scene import Layout, Scene
from archetype.errors import SpecError


def proportion(aspect: str) -> float:
    """Return width / height for an aspect ratio.

    Raises:
        SpecError: the ratio does not have the form 16:9.
    """
    match = re.fullmatch(r"([1-9]\d{0,3}):([1-9]\d{0,3})", aspect)
    if match is None:
        raise SpecError("aspect", f"{aspect!r:.40} is not an aspect ratio", "write width and height, such as 16:9")
    return int(match[1]) / int(match[2])


def with_aspect(scene: Scene, aspect: str) -> Scene:
    """Center a scene in a picture with an aspect ratio such as 16:9, without scaling or cropping the scene.

    Raises:
        SpecError: the aspect ratio does not have the form 16:9.
    """
    ratio = proportion(aspect)
    width, height = max(scene.width, ratio * scene.height), max(scene.height, scene.width / ratio)
    moved = Layout()
    drawn = Layout(list(scene.boxes), list(scene.containers), list(scene.wires), list(scene.notes))
    moved.join(drawn, (width - scene.width) / 2, (height - scene.height) / 2)
    return replace(
        scene,
        width=width,
        height=height,
        boxes=tuple(moved.boxes),
        containers=tuple(moved.containers),
        wires=tuple(moved.wires),
        notes=tuple(moved.notes),
    )
