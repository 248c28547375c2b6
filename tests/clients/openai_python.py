"""What openai-python gets from a server: a program for an environment that holds little else.

It reads `tests.clients.test_clients.Questions` as JSON and writes what the client got.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import openai

questions = json.load(sys.stdin)
connection = {"base_url": questions["url"], "max_retries": 0}
client = openai.OpenAI(api_key=questions["key"], **connection)
model, prompt, messages = (questions[name] for name in ("model", "prompt", "messages"))


def refusal(ask: Callable[[], Any]) -> list[Any]:
    """The class, status and code of the error that a question ends with."""
    try:
        ask()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]
    return []


completion = client.completions.create(model=model, prompt=prompt, max_tokens=8, temperature=0, logprobs=1, echo=True)
chat = client.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0, stream=True)
form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": questions["schema"], "strict": True}}
response = client.responses.create(model=model, input=messages, max_output_tokens=12, temperature=0, stream=True)
constrained = client.chat.completions.create(model=model, messages=messages, response_format=form)
answers = {
    "version": openai.__version__,
    "models": [one.id for one in client.models.list()],
    "text": completion.choices[0].text,
    "logprobs": completion.choices[0].logprobs.token_logprobs,
    "chat": [chunk.choices[0].delta.content or "" for chunk in chat],
    "response": [event.delta for event in response if event.type == "response.output_text.delta"],
    "json": constrained.choices[0].message.content,
    "embedding": client.embeddings.create(model=model, input=prompt).data[0].embedding,
    "refused": {
        "too long": refusal(lambda: client.completions.create(model=model, prompt=questions["too_long"])),
        "model": refusal(lambda: client.completions.create(model="other", prompt=prompt)),
        "key": refusal(lambda: openai.OpenAI(api_key="wrong", **connection).models.list()),
    },
}
with client.completions.create(model=model, prompt=prompt, stream=True, **questions["long"]) as stream:
    next(iter(stream))
json.dump(answers, sys.stdout)
