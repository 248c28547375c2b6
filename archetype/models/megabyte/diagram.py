"""Diagrams of MegaByte."""

from archetype.models.megabyte.cost import MegaByteCost
from archetype.models.megabyte.spec import MegaByte
from archetype.parts.head.diagram import head_steps
from archetype.roles.drawing import Blocks, Item, Link, Step, Stream, Streams, Text, pill
from archetype.spec.registry import provides


@provides("diagram", MegaByte)
def megabyte(model: MegaByte, cost: MegaByteCost, text: Text) -> Streams:
    byte, wide, local = text(cost.byte_d), text(cost.global_d), text(cost.local_d)
    # the global model is on the left; on the right, the local model reads its output
    patches: tuple[Item, ...] = (
        pill("bytes", "bytes", "(B, T)"),
        Step("global_embedding.token", "embedding", f"V × {byte}", field="vocab_size"),
        Step(
            "global_embedding.position",
            "positions",
            f"{model.context_length:,} × {byte}",
            "position",
            "context_length",
            joins="global_embedding.sum",
        ),
        Step("patches", f"{model.patch_size} bytes: a patch", "", "operation", "patch_size", slim=True),
        Step("global_embedding.start", "start", wide, joins="global_embedding.concatenation", is_before=True),
        f"(B, M, {wide})",
        Blocks("global_model."),
        Step("projection", "projection", f"{byte} → {local}"),
    )
    bytes_of_patch: tuple[Item, ...] = (
        pill("patch", "bytes of a patch", "(BM, J)"),
        Step("local_embedding.token", "embedding", f"V × {local}", field="vocab_size"),
        Step("local_embedding.start", "start", local, joins="local_embedding.concatenation", is_before=True),
        Step("local_embedding.sum", "+", kind="add"),
        f"(BM, J, {local})",
        Blocks("local_model."),
        *head_steps(model.head, local, "local_embedding.token"),
    )
    global_stream = Stream(patches, {"T": "M", "S": "M"})
    local_stream = Stream(bytes_of_patch, {"B": "BM", "T": "J", "S": "J"})
    return Streams((global_stream, local_stream), (Link("sum", "projection", "local_embedding.sum"),))
