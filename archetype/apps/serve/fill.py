"""POST /api/fill: the most likely tokens for each masked position of a text, predicted by an encoder."""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from archetype.api.text_encoder import TextEncoder
from archetype.apps.serve.body import Body
from archetype.apps.serve.errors import blaming, invalid_value
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.generation import check_answer
from archetype.apps.serve.limits import FILLED_BYTES
from archetype.generate.encoder import MASK


class FillRequest(Body):
    """POST /api/fill."""

    model: str | None = None
    text: Annotated[str, Field(max_length=2**20)]
    top: Annotated[int, Field(ge=1, le=100)] = 10


class Filled(TypedDict):
    model: str
    slots: list[list[dict[str, Any]]]


async def fill(exchange: Exchange, body: FillRequest) -> Filled:
    """Respond with the predictions for each [MASK], in order."""
    async with exchange.app.models.use(body.model) as model:
        lm = model.lm
        if not isinstance(lm, TextEncoder):
            raise invalid_value("model", f"{model.name} is not an encoder and cannot fill masks")
        count = body.text.count(MASK) * body.top
        check_answer(count * FILLED_BYTES, f"{count:,} predictions", "top")
        with blaming("text"):
            slots = await model.worker.run(lambda: lm.fill(body.text, body.top))
    return {"model": model.name, "slots": [[asdict(prediction) for prediction in slot] for slot in slots]}
