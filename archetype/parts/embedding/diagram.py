"""How tokens become vectors, as boxes at the start of a stream."""

from collections.abc import Callable

from archetype.cost.formula import Formula
from archetype.parts.embedding.cost import EmbeddingCost
from archetype.roles.drawing import Step, title


def embedding_steps(
    cost: EmbeddingCost, text: Callable[[Formula], str], place: str = "embedding", length: str = "T",
    shared: bool = False,
) -> tuple[Step | str, ...]:  # fmt: skip
    """Tokens, positions and types of tokens, each where it is added.

    Args:
        cost: of the embedding.
        text: writes a formula in the letters of shapes.
        place: the prefix of its modules.
        length: the letter of the stream's positions.
        shared: whether its tables are those of another stream, which shows their cost.
    """
    embedding, width = cost.embedding, text(cost.d)
    again = ".source" if shared else ""

    def step(name: str, label: str, shape: str, kind: str = "embedding", joins: str = "", slim: bool = False) -> Step:
        field = "embedding.position" if name == "position" else "embedding"
        one = Step(f"{place}.{name}{again}", label, shape, kind, field, slim, joins and f"{place}.{joins}{again}")
        return one._replace(kind="shared", detail="shared") if shared else one

    scale = "" if embedding.scale == 1 else f", times {embedding.scale:.4g}"
    steps: list[Step | str] = [step("token", "embedding", f"{text(cost.vocabulary)} × {width}{scale}")]
    if not embedding.position.is_absent:
        has_table = bool(cost.position.parameters(cost.context_length))
        shape = f"{cost.context_length:,} × {width}" if has_table else f"(T, {width})"
        steps.append(step("position", title(embedding.position), shape, "position", "sum"))
    if embedding.num_token_types:
        shape = f"{embedding.num_token_types} × {width}"
        steps.append(step("token_type", "token types", shape, joins="token_type.sum"))
    if not embedding.norm.is_absent:
        norm = step("norm", title(embedding.norm), "D", "norm", slim=True)
        steps.insert(1 if embedding.norm_first else len(steps), norm)
    return (*steps, f"(B, {length}, D)")
