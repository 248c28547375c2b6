"""Drawing of embeddings, at the start of a stream."""

from archetype.parts.embedding.cost import EmbeddingCost, TokenEmbeddingCost
from archetype.parts.embedding.spec import Embedding
from archetype.roles.drawing import Step, Stream, Text, pill, title
from archetype.spec.registry import provided, provides


def embedding_steps(
    cost: TokenEmbeddingCost,
    text: Text,
    prefix: str = "embedding",
    length: str = "T",
    shared: bool = False,
) -> tuple[Step | str, ...]:
    """Return the boxes of an embedding, and the shape of its output.

    Args:
        text: formats a formula with the letters of shapes.
        prefix: prefix of its modules.
        length: letter for the stream's positions.
        shared: whether its tables belong to another stream, which shows their cost.
    """
    steps: tuple[Step, ...] = (provided("diagram", type(cost.part)) or unknown_embedding)(cost, text, prefix)
    return (*(map(_shared, steps) if shared else steps), f"(B, {length}, D)")


@provides("diagram", Embedding)
def embedding(cost: EmbeddingCost, text: Text, prefix: str) -> tuple[Step, ...]:
    part, width = cost.part, text(cost.added)

    def step(name: str, label: str, shape: str, kind: str = "embedding", joins: str = "", slim: bool = False) -> Step:
        field = "embedding.position" if name == "position" else "embedding"
        return Step(f"{prefix}.{name}", label, shape, kind, field, slim, joins and f"{prefix}.{joins}")

    scale = "" if part.scale == 1 else f", times {part.scale:.4g}"
    steps = [step("token", "embedding", f"{text(cost.rows)} × {text(cost.width)}{scale}")]
    projection = step("project", "projection", f"{text(cost.width)} → {text(cost.d)}") if part.width else None
    if not part.position.is_absent:
        has_table = bool(cost.position.parameters(cost.context_length))
        shape = f"{cost.context_length:,} × {width}" if has_table else f"(T, {width})"
        steps.append(step("position", title(part.position), shape, "position", "sum"))
    if part.num_token_types:
        shape = f"{part.num_token_types} × {width}"
        steps.append(step("token_type", "token types", shape, joins="token_type.sum"))
    if not part.norm.is_absent:
        norm = step("norm", title(part.norm), "D", "norm", slim=True)
        steps.insert(1 if part.norm_first else len(steps), norm)
    if projection is not None:
        steps.insert(1 if part.project_first else len(steps), projection)
    return tuple(steps)


def per_layer_streams(cost: TokenEmbeddingCost, text: Text) -> tuple[Stream, ...]:
    if cost.per_layer is None:
        return ()
    prefix, part = "embedding.per_layer", cost.per_layer
    inputs, outputs = map(text, part.projection[:2])

    def step(name: str, label: str, shape: str, kind: str = "embedding", slim: bool = False, joins: str = "") -> Step:
        return Step(f"{prefix}.{name}", label, shape, kind, prefix, slim, joins)

    norm = () if part.part.norm.is_absent else (step("norm", title(part.part.norm), "D_p", "norm", slim=True),)
    items = (
        pill(f"{prefix}.vectors", "vectors", "(B, T, D)"),
        step("projection", "projection", f"{inputs} → {outputs}"),
        *norm,
        step("token", "per-layer embedding", f"{text(cost.vocabulary)} × {outputs}", joins=f"{prefix}.sum"),
        pill(f"{prefix}.inputs", "each layer's own", "(B, T, D_p)", "output"),
    )
    return (Stream(items, is_residual=False),)


def unknown_embedding(cost: TokenEmbeddingCost, text: Text, prefix: str) -> tuple[Step, ...]:
    # only the table: where other modules of an unknown embedding belong is not known
    return (Step(f"{prefix}.token", title(cost.part), "", field="embedding"),)


def _shared(step: Step) -> Step:
    # another stream shows its cost
    joins = step.joins and f"{step.joins}.source"
    gives = f"{step.name}.out"
    return step._replace(name=f"{step.name}.source", joins=joins, kind="shared", detail="shared", gives=gives)
