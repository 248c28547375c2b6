"""What langchain-openai gets from a server: a program for an environment that holds little else.

It reads `tests.clients.test_clients.Questions` as JSON and writes what the client got.
"""

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import openai
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

questions = json.load(sys.stdin)
model, prompt = questions["model"], questions["prompt"]
messages = [(message["role"], message["content"]) for message in questions["messages"]]
connection = {"model": model, "base_url": questions["url"], "api_key": questions["key"], "max_retries": 0}


def refusal(ask: Callable[[], Any]) -> list[Any]:
    """The class, status and code of the error that a question ends with."""
    try:
        ask()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]
    return []


writer = OpenAI(**connection, max_tokens=8, temperature=0, logprobs=1, model_kwargs={"echo": True})
[[generation]] = writer.generate([prompt]).generations
chat = ChatOpenAI(**connection, max_tokens=12, temperature=0)
form = {"title": "answer", "description": "An answer.", **questions["schema"]}
constrained = ChatOpenAI(**connection).with_structured_output(form, method="json_schema", strict=True)
answers = {
    "version": version("langchain-openai"),
    "models": [one.id for one in chat.root_client.models.list()],
    "text": generation.text,
    "logprobs": generation.generation_info["logprobs"]["token_logprobs"],
    "chat": [chunk.content for chunk in chat.stream(messages)],
    "json": json.dumps(constrained.invoke(messages)),
    # as texts: otherwise it cuts them into the tokens of OpenAI's own models
    "embedding": OpenAIEmbeddings(**connection, check_embedding_ctx_length=False).embed_query(prompt),
    "refused": {
        "too long": refusal(lambda: chat.invoke(questions["too_long"])),
        "model": refusal(lambda: ChatOpenAI(**connection | {"model": "other"}).invoke(messages)),
        "key": refusal(lambda: ChatOpenAI(**connection | {"api_key": "wrong"}).invoke(messages)),
    },
}
stream = OpenAI(**connection, max_tokens=questions["long"]["max_tokens"], n=1).stream(
    prompt, extra_body=questions["long"]["extra_body"]
)
next(stream)
stream.close()
json.dump(answers, sys.stdout)
