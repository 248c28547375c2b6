"""What litellm gets from a server: a program for an environment that holds little else.

It reads `tests.clients.test_clients.Questions` as JSON and writes what the client got.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it is asked for at GitHub
import litellm

litellm.suppress_debug_info = True  # which goes to standard output

questions = json.load(sys.stdin)
messages, prompt = questions["messages"], questions["prompt"]
connection = {"api_base": questions["url"], "api_key": questions["key"], "max_retries": 0}
model, completed = f"openai/{questions['model']}", f"text-completion-openai/{questions['model']}"


def refusal(ask: Callable[[], Any]) -> list[Any]:
    """The class and status of the error that a question ends with."""
    try:
        ask()
    except litellm.exceptions.APIError as error:
        return [type(error).__name__, error.status_code]
    except Exception as error:
        return [type(error).__name__, getattr(error, "status_code", None)]
    return []


completion = litellm.text_completion(
    model=completed, prompt=prompt, max_tokens=8, temperature=0, logprobs=1, echo=True, **connection
)
chat = litellm.completion(model=model, messages=messages, max_tokens=12, temperature=0, stream=True, **connection)
form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": questions["schema"], "strict": True}}
constrained = litellm.completion(model=model, messages=messages, response_format=form, **connection)
[embedding] = litellm.embedding(model=model, input=[prompt], **connection).data
listed = litellm.get_valid_models(
    check_provider_endpoint=True, custom_llm_provider="openai", api_base=questions["url"], api_key=questions["key"]
)
too_long = [{"role": "user", "content": questions["too_long"]}]
answers = {
    "version": version("litellm"),
    "models": [name.removeprefix("openai/") for name in listed],
    "text": completion.choices[0].text,
    "logprobs": completion.choices[0].logprobs.token_logprobs,
    "chat": [chunk.choices[0].delta.content or "" for chunk in chat],
    "json": constrained.choices[0].message.content,
    "embedding": embedding["embedding"],
    "refused": {
        "too long": refusal(lambda: litellm.completion(model=model, messages=too_long, **connection)),
        "model": refusal(lambda: litellm.completion(model="openai/other", messages=messages, **connection)),
        "key": refusal(lambda: litellm.completion(model=model, messages=messages, **connection | {"api_key": "x"})),
    },
}
stream = litellm.text_completion(model=completed, prompt=prompt, stream=True, **questions["long"], **connection)
next(iter(stream))
json.dump(answers, sys.stdout)
sys.stdout.flush()
os._exit(0)  # the connection of the stream that is not read to its end closes with the process
