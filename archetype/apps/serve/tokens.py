"""POST /tokenize and /detokenize, GET /tokenizer_info: tokenization for clients without the model's tokenizer."""

from typing import NotRequired

from typing_extensions import TypedDict

from archetype.apps.serve.chat import conversation
from archetype.apps.serve.completions import encode
from archetype.apps.serve.errors import invalid_value
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.generation import check_tokens
from archetype.apps.serve.requests import DetokenizeRequest, TokenizeRequest


class Tokens(TypedDict):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class Text(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    tokenizer_class: str
    vocab_size: int
    model_max_length: int | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


async def tokenize(exchange: Exchange, body: TokenizeRequest) -> Tokens:
    """Respond with the token ids of a text or a conversation."""
    if (body.prompt is None) == (body.messages is None):
        raise invalid_value("prompt", "send either prompt or messages")
    async with exchange.app.models.use(body.model) as model:
        tokenizer, text = model.tokenizer, body.prompt
        if body.messages is not None:
            _, ids = await model.worker.text(
                conversation(model, body.messages, body.add_generation_prompt, body.continue_final_message, body.tools)
            )
        # an empty text still has a begin token, if the tokenizer adds one; without special tokens it has none
        elif text is not None and (text or body.add_special_tokens is not False):
            added = body.add_special_tokens is not False
            ids = await model.worker.text(
                lambda: encode(model, text, added) if text or tokenizer.bos is not None else []
            )
        else:
            ids = []
        answer: Tokens = {"count": len(ids), "max_model_len": model.context_length, "tokens": ids}
        if body.return_token_strs:
            # a token may be part of a character
            answer["token_strs"] = [model.bytes_of(id).decode("utf-8", "replace") for id in ids]
    return answer


async def detokenize(exchange: Exchange, body: DetokenizeRequest) -> Text:
    """Respond with the text of token ids."""
    async with exchange.app.models.use(body.model) as model:
        tokenizer = model.tokenizer
        ids = check_tokens(model, body.tokens, "tokens") if body.tokens else []
        text = await model.worker.text(lambda: tokenizer.decode(ids))
    return {"prompt": text}


async def tokenizer_info(exchange: Exchange) -> TokenizerInfo:
    """Respond with the special tokens and chat template of the model named in the query (default: the first model)."""
    async with exchange.app.models.use(exchange.query.get("model")) as model:
        tokenizer, names = model.tokenizer, model.lm.special_names
        template = None if model.lm.template is None else model.lm.template.source
    return {
        "tokenizer_class": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": model.context_length,
        "bos_token": names.get("bos_token"),
        "eos_token": names.get("eos_token"),
        "pad_token": names.get("pad_token"),
        "chat_template": template,
    }
