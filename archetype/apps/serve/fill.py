"""POST /api/fill: the most likely tokens for each masked position of a text, predicted by an encoder."""

from dataclasses import asdict
from typing import Annotated

from pydantic import Field

from archetype.apps.serve.body import Body
from archetype.apps.serve.errors import ApiError, api_error
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.generation import check_answer
from archetype.apps.serve.limits import FILLED_BYTES
from archetype.apps.serve.models import Models
from archetype.errors import ArchetypeError
from archetype.generate.encoder import MASK


class FillRequest(Body):
    """POST /api/fill."""

    model: str | None = None
    text: Annotated[str, Field(max_length=2**20)]
    top: Annotated[int, Field(ge=1, le=100)] = 10


async def fill(models: Models, exchange: Exchange) -> None:
    """Answer with the predictions of each [MASK], in order."""
    body = exchange.read(FillRequest)
    async with models.use(body.model) as model:
        if model.lm.spec.kind != "encoder":
            raise ApiError("invalid_value", f"model: {model.name} is no encoder, and fills no masks", "model")
        count = body.text.count(MASK) * body.top
        check_answer(count * FILLED_BYTES, f"{count:,} predictions", "top")
        try:
            slots = await model.worker.run(lambda: model.lm.fill(body.text, body.top))
        except ArchetypeError as error:
            raise api_error(error, "text") from None
    await exchange.answer({"model": model.name, "slots": [[asdict(one) for one in slot] for slot in slots]})
