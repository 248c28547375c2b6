"""POST /api/spec/cache: KV cache bytes by length, and the FLOPs of a token with and without the cache."""

import asyncio

from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.spec_problems import Answered, Problems, answered, problems
from archetype.apps.serve.specs import LengthRequest, read
from archetype.errors import SpecError
from archetype.estimate.report import cost_report


class CacheCosts(Answered):
    kind: str
    lengths: list[int]
    bytes: list[int]
    per_token: float
    with_cache: list[int]
    without_cache: list[int]


async def cache(exchange: Exchange, body: LengthRequest) -> CacheCosts | Problems:
    return await asyncio.to_thread(cached, exchange.app.models, body)


def cached(models: Models, body: LengthRequest) -> CacheCosts | Problems:
    """Return the state bytes of one sequence and the FLOPs of its next token, at lengths 1, 2, 4, and so on."""
    try:
        model = read(models, body)
        longest = min(body.length or model.context_length, model.context_length)
        lengths = [*(1 << power for power in range(longest.bit_length()) if 1 << power < longest), longest]
        reports = [cost_report(model, 1, length, body.dtype) for length in lengths]
    except SpecError as error:
        return problems(error, body.source or "")
    return {
        **answered(model),
        "kind": model.kind,
        "lengths": lengths,
        "bytes": [report.state["bytes"] for report in reports],
        "per_token": reports[-1].state["bytes_per_token"],
        "with_cache": [report.flops["decode"] for report in reports],
        "without_cache": [report.flops["prefill"] for report in reports],
    }
