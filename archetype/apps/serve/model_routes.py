"""The paths that loaded models answer; whoever imports this loads torch."""

from collections.abc import Awaitable, Callable
from functools import partial

from archetype.apps.serve import chat, completions, embeddings, fill, inspections, responses, token_way, tokens
from archetype.apps.serve.captures import Captures
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.metrics import Metrics
from archetype.apps.serve.models import Models


def model_routes(models: Models, metrics: Metrics) -> dict[str, Callable[[Exchange], Awaitable[None]]]:
    """The handler of each path.

    Args:
        models: that are served.
        metrics: which count.
    """
    captures = Captures(models)
    return {
        "/api/inspect": partial(inspections.inspect, captures, metrics),
        "/api/inspect/{id}/exact": partial(inspections.exact, captures),
        "/api/inspect/{id}/attention": partial(inspections.attention, captures),
        "/api/inspect/{id}/heads": partial(inspections.heads, captures),
        "/api/inspect/{id}/lens": partial(inspections.lens, captures),
        "/api/inspect/{id}/experts": partial(inspections.experts, captures),
        "/api/inspect/{id}/recurrent": partial(inspections.recurrent, captures),
        "/api/inspect/{id}/way": partial(token_way.token_way, captures),
        "/api/inspect/{id}/station": partial(token_way.station, captures),
        "/api/inspect/{id}/choice": partial(token_way.choice, captures),
        "/v1/completions": partial(completions.completions, models, metrics),
        "/v1/chat/completions": partial(chat.chat_completions, models, metrics),
        "/v1/chat/completions/render": partial(chat.render, models),
        "/v1/responses": partial(responses.responses, models, metrics),
        "/v1/embeddings": partial(embeddings.embeddings, models),
        "/v1/classify": partial(embeddings.classify, models),
        "/tokenize": partial(tokens.tokenize, models),
        "/detokenize": partial(tokens.detokenize, models),
        "/tokenizer_info": partial(tokens.tokenizer_info, models),
        "/api/fill": partial(fill.fill, models),
    }
