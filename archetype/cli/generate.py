"""The verb that makes text."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.cli.output import print_json

if TYPE_CHECKING:
    from archetype.language_model import LanguageModel
    from archetype.tokenizers.chat_template import Message


def generate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run directory or a Hugging Face folder.")],
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help="One or several; - reads standard input.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens at most.  [default: 256]")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.  [default: the model's]")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the fewest tokens that reach this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens this likely, relative to the likeliest.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1 discourages tokens seen.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random choices.  [default: 0]")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; may be given again.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the token that ends a text.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Take each prompt as a message, and print the answer.")] = False,
    system: Annotated[str | None, typer.Option(help="What comes before a conversation; with --chat.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Type to compute in.  [default: as stored]")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue a text, streaming it as it is made; several prompts run as one batch."""
    given = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": tuple(stop) if stop else None,
        "ignore_eos": ignore_eos or None,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    texts = [_input() if prompt == "-" else prompt for prompt in prompts or [""]]

    from archetype.errors import SpecError
    from archetype.generate.settings import Sampling
    from archetype.io.tensors import dtype_of
    from archetype.loading import load

    Sampling.parse(settings)  # a wrong setting is told before a large model is read
    if system is not None and not chat:
        raise SpecError("--system", "belongs to a conversation", "add --chat")
    lm = load(model, dtype_of(dtype), device)
    if chat:
        _answer(lm, [_conversation(system, text) for text in texts], settings, as_json)
    elif as_json:
        made = lm.generate(texts, **settings)
        print_json({"prompts": texts, "texts": made, "settings": lm.settings(**settings).dump(full=True)})
    elif len(texts) == 1:
        print_stream(lm, texts[0], settings)
    else:
        for prompt, text in zip(texts, lm.generate(texts, **settings), strict=True):
            print(f"{prompt}{text}\n")


def print_stream(lm: "LanguageModel", prompt: str, settings: dict[str, Any]) -> None:
    """The prompt and its continuation as it comes; the speed goes to standard error."""
    started, made = time.perf_counter(), 0
    pieces = lm.stream(prompt, **settings)  # refuses a wrong prompt before anything is printed
    print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
        made += len(piece.encode())
    print(flush=True)
    print(f"({made:,} bytes in {time.perf_counter() - started:.1f} s)", file=sys.stderr)


def _conversation(system: str | None, text: str) -> list["Message"]:
    """One message of the user."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _answer(lm: "LanguageModel", conversations: list[list["Message"]], settings: dict[str, Any], as_json: bool) -> None:
    """The answer to each conversation; one alone as it comes."""
    if as_json:
        answers = [{"messages": messages, "text": lm.chat(messages, **settings)} for messages in conversations]
        print_json({"chats": answers, "settings": lm.settings(**settings).dump(full=True)})
        return
    for messages in conversations:
        for piece in lm.stream_chat(messages, **settings):
            print(piece, end="", flush=True)
        print(flush=True)


def _input() -> str:
    from archetype.errors import DataError

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise DataError("standard input", f"is not UTF-8 at byte {error.start}", "convert it") from None
