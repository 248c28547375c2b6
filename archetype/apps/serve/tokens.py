"""POST /tokenize and /detokenize, GET /tokenizer_info: what a client needs in place of the model's own tokenizer."""

from typing import Any

from archetype.apps.serve.chat import conversation
from archetype.apps.serve.completions import encode
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.generation import check_tokens
from archetype.apps.serve.models import Models
from archetype.apps.serve.requests import DetokenizeRequest, TokenizeRequest


async def tokenize(models: Models, exchange: Exchange) -> None:
    """Answer with the token ids of a text or a conversation."""
    body = exchange.read(TokenizeRequest)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("invalid_value", "prompt: or messages says what to encode; give one of them", "prompt")
    async with models.use(body.model) as model:
        tokenizer, text = model.tokenizer, body.prompt
        if body.messages is not None:
            _, ids = await model.worker.text(
                conversation(model, body.messages, body.add_generation_prompt, body.continue_final_message, body.tools)
            )
        elif text is not None and (text or body.add_special_tokens is not False):
            added = body.add_special_tokens is not False
            ids = await model.worker.text(
                lambda: encode(model, text, added) if text or tokenizer.bos is not None else []
            )
        else:
            ids = []
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": model.context_length, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = [model.bytes_of(id).decode("utf-8", "replace") for id in ids]
    await exchange.answer(answer)


async def detokenize(models: Models, exchange: Exchange) -> None:
    """Answer with the text of token ids."""
    body = exchange.read(DetokenizeRequest)
    async with models.use(body.model) as model:
        tokenizer = model.tokenizer
        ids = check_tokens(model, body.tokens, "tokens") if body.tokens else []
        text = await model.worker.text(lambda: tokenizer.decode(ids))
    await exchange.answer({"prompt": text})


async def tokenizer_info(models: Models, exchange: Exchange) -> None:
    """Answer with the special tokens and chat template of the model named by the query (absent: the first)."""
    query = exchange.query.get("model")
    async with models.use(query) as model:
        tokenizer, names = model.tokenizer, model.lm.special_names
        template = None if model.lm.template is None else model.lm.template.source
    await exchange.answer({
        "tokenizer_class": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "model_max_length": model.context_length,
        "bos_token": names.get("bos_token"), "eos_token": names.get("eos_token"), "pad_token": names.get("pad_token"),
        "chat_template": template,
    })  # fmt: skip
