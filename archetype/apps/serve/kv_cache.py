"""The web UI's requests about the KV cache: its bytes by length, and the work of a token with it and without."""

import asyncio
from typing import Any

from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.specs import Count, SpecRequest, problems, read
from archetype.errors import SpecError
from archetype.estimate.report import cost_report


class CacheRequest(SpecRequest):
    """POST /api/spec/cache."""

    length: Count | None = None
    dtype: str = "bfloat16"


async def cache(models: Models, exchange: Exchange) -> None:
    """Answer with what decoding keeps, and what it saves."""
    body = exchange.read(CacheRequest)
    await exchange.answer(await asyncio.to_thread(cached, models, body))


def cached(models: Models, body: CacheRequest) -> dict[str, Any]:
    """The state of one text and the FLOPs of its next token, at lengths that double.

    Args:
        models: that are served, whose specifications can be named.
        body: of the request.
    """
    try:
        model = read(models, body)
        longest = min(body.length or model.context_length, model.context_length)
        lengths = [*(1 << power for power in range(longest.bit_length()) if 1 << power < longest), longest]
        reports = [cost_report(model, 1, length, body.dtype) for length in lengths]
    except SpecError as error:
        return {"ok": False, "problems": list(problems(error, body.source or ""))}
    return {
        "ok": True, "problems": [], "name": model.name or model.kind, "kind": model.kind, "lengths": lengths,
        "bytes": [report.state["bytes"] for report in reports], "per_token": reports[-1].state["bytes_per_token"],
        "with_cache": [report.flops["decode"] for report in reports],
        "without_cache": [report.flops["prefill"] for report in reports],
    }  # fmt: skip
