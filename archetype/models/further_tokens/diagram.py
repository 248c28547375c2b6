"""Diagrams of multi-token prediction, as a separate stream."""

from archetype.models.further_tokens.cost import FurtherTokensCost
from archetype.models.further_tokens.spec import FurtherTokens
from archetype.roles.drawing import Blocks, Step, Stream, Text, pill, title

PLACE = "further_tokens"


def further_stream(further: FurtherTokens, cost: FurtherTokensCost, text: Text) -> Stream:
    """Draw the path from the head's input and the next token's embedding to the head's input for the token after it."""
    norm, d = further.norm, text(cost.stack.d)

    def normed(name: str) -> tuple[Step, ...]:
        box = Step(f"{PLACE}.{name}", title(norm), d, "norm", PLACE, slim=True)
        return () if norm.is_absent else (box,)

    return Stream(
        (
            pill(f"{PLACE}.hidden", "vectors", "(B, T, D)"),
            *normed("hidden_norms"),
            Step(f"{PLACE}.embedding_norms", "token ahead", d, field=PLACE, joins=f"{PLACE}.joined", is_before=True),
            Step(f"{PLACE}.projections", "projection", " → ".join(map(text, cost.projection[:2])), field=PLACE),
            Blocks(f"{PLACE}."),
            *normed("final_norms"),
            pill(f"{PLACE}.further", "next vectors", "(B, T, D)", "output"),
        )
    )
