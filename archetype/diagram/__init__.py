"""Diagrams of architectures: a specification and its costs become a scene, and the scene becomes SVG, PNG, PDF or JSON.

    draw = archetype.draw("llama-3-8b")    # a notebook shows it; .svg, .scene, .save("llama.png")

No module of this package loads torch.
"""

from archetype.diagram.drawing import Drawing
from archetype.diagram.scene import MEASURES, Measure, Scene
from archetype.roles.drawing import Cell, Group, Inside, inside_of

__all__ = ["MEASURES", "Cell", "Drawing", "Group", "Inside", "Measure", "Scene", "inside_of"]
