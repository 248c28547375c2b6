"""Drawing of a sentence head."""

from archetype.parts.sentence_head.spec import SentenceEmbeddingHead
from archetype.roles.drawing import Step, pill, title
from archetype.spec.registry import provides


@provides("diagram", SentenceEmbeddingHead)
def sentence_embedding_head(head: SentenceEmbeddingHead, width: str, table: str) -> tuple[Step, ...]:
    poolings = " + ".join(mode.replace("_", " ") for mode in head.pooling)
    inner = width if len(head.pooling) == 1 else f"{len(head.pooling)} {width}"
    steps = [Step("sentence_head", f"{poolings} pooling", inner, "operation", "head", slim=True)]
    for index, layer in enumerate(head.layers):
        label = "dense" if layer.activation.is_absent else f"dense, {title(layer.activation)}"
        steps.append(Step(f"sentence_head.layers.{index}", label, f"{inner} → {layer.width:,}", "head", "head"))
        inner = f"{layer.width:,}"
    if head.normalize:
        steps.append(Step("normalize", "x / ‖x‖", inner, "operation", "head", slim=True))
    return (*steps, pill("vectors", "vectors", f"(B, {inner})", "output"))
