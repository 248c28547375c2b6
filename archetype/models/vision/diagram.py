"""Diagrams of image encoders."""

from archetype.models.encoder.diagram import POOLER
from archetype.models.vision.cost import VisionEncoderCost
from archetype.models.vision.spec import VisionEncoder
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Blocks, Item, Step, Stream, Streams, Text, pill, title
from archetype.spec.registry import provides


@provides("diagram", VisionEncoder)
def vision_encoder(model: VisionEncoder, cost: VisionEncoderCost, text: Text) -> Streams:
    side, position, norm = model.image_size, model.embedding.position, model.embedding.norm
    items: list[Item] = [
        pill("image", "image", f"(B, {model.num_channels}, {side}, {side})"),
        Step("embedding.patch", "patches", f"{text(cost.patch)} → D", field="patch_size"),
    ]
    for name in model.learned_tokens:
        items.append(
            Step(
                f"embedding.{name}",
                name.replace("_", " "),
                "D",
                field=name,
                joins=f"embedding.{name}.concatenation",
                is_before=True,
            )
        )
    if not position.is_absent:
        shape = f"{model.context_length:,} × D"
        items.append(
            Step("embedding.position", title(position), shape, "position", "embedding.position", joins="embedding.sum")
        )
    if not norm.is_absent:
        items.append(Step("embedding.norm", title(norm), "D", "norm", "embedding.norm", slim=True))
    pooler = (POOLER,) if model.pooler else ()
    return Streams((Stream((*items, "(B, T, D)", Blocks(), *pooler, *head_steps(model.head, text(cost.d)))),))
