"""The commands `generate` and `translate`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.apps.cli.fields import settings_of, takes, values_of, with_groups
from archetype.apps.cli.options import (
    Deterministic,
    Device,
    Dtype,
    Json,
    Minutes,
    Model,
    Opening,
    StateDtype,
    Template,
    Weights,
)
from archetype.apps.cli.output import print_device, print_json, show_warnings
from archetype.machine.time_budget import in_time
from archetype.settings.generation import Beam, Sampling, Unmasking

if TYPE_CHECKING:
    from archetype.api.causal_lm import CausalLM
    from archetype.api.text_encoder import TextEncoder
    from archetype.api.text_generator import Draft, TextGenerator
    from archetype.apps.cli.prompt_file import Prompt
    from archetype.generate import Engine
    from archetype.tokenizers.chat_template import Message

SAMPLING = settings_of(
    Sampling,
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "ignore_eos",
    "json_whitespace",
    "regex",
)
OWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # generation_config.json may set them
UNMASKING = settings_of(Unmasking, "tokens_per_step", "block", "order")
BEAM = settings_of(Beam, "num_beams", "length_penalty", "max_extra_tokens")
SECTIONS = {  # of the options, in the help
    "Text": ("max_new_tokens", "minutes", "stop", "ignore_eos", "json_schema", "json_whitespace", "regex", "lark"),
    "Sampling": ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
    "Conversation": ("chat", "system", "template"),
    "Speculation": ("draft", "lookup"),
    "Unmasking": tuple(UNMASKING),
    "Beam search": tuple(BEAM),
    "Files": ("input", "output", "slots"),
}
NEEDS = {
    "system": ("chat",),
    "template": ("chat", "input"),
    "slots": ("input",),
    "input": ("output",),
    "output": ("input",),
    "json_whitespace": ("json_schema", "input"),
}
# each line of --input is a prompt or a conversation, so the whole file needs no --chat
EXCLUDES = {"input": ("prompts", "texts", "chat"), "chat": ("draft", "lookup")}
SELF = Path("self")  # --draft self: the model's own multi-token prediction layers
LINES_AT_ONCE = 512  # lines of standard input translated as one batch


@with_groups
@takes(SAMPLING | UNMASKING, dict.fromkeys(OWN, "the model's"))
def generate(
    model: Model,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help="One or more prompts; - reads standard input.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON schema that the text must match; needs llguidance.")
    ] = None,
    lark: Annotated[
        Path | None, typer.Option(help="File with a Lark grammar that the text must match; needs llguidance.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Treat each prompt as a chat message and print the answer.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message; needs --chat.")] = None,
    template: Template = None,
    draft: Annotated[
        Path | None,
        typer.Option(
            help="Draft model for speculative decoding, with the same tokenizer; self uses the model's own extra heads."
        ),
    ] = None,
    lookup: Annotated[
        bool, typer.Option("--lookup", help="Speculative decoding with n-grams of the text itself (prompt lookup).")
    ] = False,
    input: Annotated[
        Path | None, typer.Option(help='JSON lines with "prompt" or "messages", "id", and optionally settings.')
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="With --input: output file; results are appended and finished prompts are skipped."),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="With --input: number of prompts decoded together.")] = 32,
    minutes: Minutes = None,
    state_dtype: StateDtype = None,
    deterministic: Deterministic = False,
    *,
    opening: Opening,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Generate text from one or more prompts, as one batch.

    For an encoder-decoder, a prompt is the source and the output its target. A model that predicts masked tokens
    generates by unmasking.
    """
    show_warnings()
    from archetype.io.text import read_text

    settings = values_of(SAMPLING, options)
    settings |= {name: read_text(file) for name, file in (("json_schema", json_schema), ("lark", lark)) if file}
    unmasking = values_of(UNMASKING, options)
    from archetype.api.causal_lm import CausalLM
    from archetype.api.language_model import LanguageModel
    from archetype.api.text_encoder import TextEncoder
    from archetype.api.text_generator import TextGenerator
    from archetype.errors import SpecError
    from archetype.generate import Engine

    Sampling.parse(settings)  # invalid settings fail before a large model is loaded
    Unmasking.parse(unmasking)

    def open_model() -> LanguageModel:
        lm = LanguageModel.load(
            model,
            **opening.settings,
            further_tokens=draft == SELF,
            deterministic=deterministic,
            state_dtype=state_dtype,
        )
        return lm if template is None else lm.use_template(template)

    def left_to_right(lm: LanguageModel) -> TextGenerator:
        generator = lm.expect(TextGenerator)
        for option in unmasking:
            cause = f"a model of kind {lm.spec.kind} generates from left to right"
            raise SpecError(f"--{option.replace('_', '-')}", cause, "remove it")
        return generator

    if input is not None and output is not None:
        from archetype.apps.cli.prompt_file import read_prompts

        lines = read_prompts(input)  # wrong lines are refused before a large model is read
        lm = left_to_right(open_model())
        engine = Engine(lm, slots, draft=_draft(draft, opening, state_dtype), lookup=lookup)
        _generate_file(lm, engine, lines, output, settings, as_json)
        return
    # standard input that is not UTF-8 fails before a large model is loaded
    prompts_read = [_standard_input() if prompt == "-" else prompt for prompt in prompts or [""]]
    opened = open_model()
    if opened.spec.fills_masks:
        for option, value in {"chat": chat, "lookup": lookup, "draft": draft}.items():
            if value:
                raise SpecError(f"--{option}", "needs a model that generates from left to right", "remove it")
        _print_unmasked(opened.expect(TextEncoder), prompts_read, unmasking, settings, as_json)
        return
    lm = left_to_right(opened)
    if chat:
        _print_answers(lm.expect(CausalLM), [_conversation(system, text) for text in prompts_read], settings, as_json)
        return
    guesses: dict[str, Any] = {"draft": _draft(draft, opening, state_dtype), "lookup": lookup}
    if as_json:
        continuations = lm.generate(prompts_read, **guesses, **settings)
        print_json(
            {"prompts": prompts_read, "texts": continuations, "settings": lm.settings(**settings).dump(full=True)}
        )
    elif len(prompts_read) == 1:
        engine = lm.engine(**guesses)
        _print_stream(lm, engine, prompts_read[0], settings, shown="" if lm.spec.reads_source else prompts_read[0])
        _print_speed(engine)
    else:
        engine = lm.engine(len(prompts_read), **guesses)
        requests = [engine.submit(text, id=index, **settings) for index, text in enumerate(prompts_read, start=1)]
        print_device(lm.model.device)
        for prompt, request in zip(prompts_read, requests, strict=True):
            shown = "" if lm.spec.reads_source else prompt
            print(f"{shown}{request.result()}\n")
        _print_speed(engine)


@takes(BEAM)
def translate(
    model: Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="One or more texts.  [default: the lines of standard input]"),
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option(help='Text file with one source per line, or .jsonl with "source" and optionally "id".'),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="With --input: output file (lines or .jsonl); finished targets are kept."),
    ] = None,
    dtype: Dtype = None,
    weights: Weights = None,
    device: Device = "auto",
    minutes: Minutes = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Translate source texts, one line each."""
    show_warnings()
    from archetype.api.seq2seq_lm import Seq2SeqLM
    from archetype.apps.cli.source_file import read_sources, translate_file

    settings = values_of(BEAM, options)
    Beam.parse(settings)  # invalid settings fail before a model is loaded
    lines = None if input is None else read_sources(input)  # wrong lines, too
    lm = Seq2SeqLM.load(model, dtype=dtype, device=device, weights=weights)
    if lines is not None and output is not None:
        summary = translate_file(lm, lines, output, settings)
        if as_json:
            print_json({"output": str(output)} | summary)
        print(
            f"{output}: {summary['finished']:,} new targets, {summary['before']:,} from before; "
            f"{summary['targets_per_second']:,.1f} targets/s",
            file=sys.stderr,
        )
        return
    sources = texts or _lines()
    targets: list[str] = []
    # printed batch by batch, so that a long input shows results before its end
    for start in in_time(range(0, len(sources), LINES_AT_ONCE)):
        batch = lm.translate(sources[start : start + LINES_AT_ONCE], **settings)
        targets += batch
        if not as_json:
            if not start:
                print_device(lm.model.device)
            # one line for each source, whatever the target has
            print(*(" ".join(target.splitlines()) for target in batch), sep="\n", flush=True)
    if as_json:
        print_json({"targets": [{"source": s, "target": t} for s, t in zip(sources, targets, strict=False)]})


def _print_stream(
    lm: "TextGenerator", engine: "Engine", prompt: str | list[int], settings: dict[str, Any], shown: str = ""
) -> None:
    # the device is printed once, before the first of several answers
    first = not engine.stats().finished
    request = engine.submit(prompt, **settings)  # an invalid prompt fails before anything is printed
    if first:
        print_device(lm.model.device)
    print(shown, end="", flush=True)
    for piece in request.pieces():
        print(piece, end="", flush=True)
    print(flush=True)


def _print_unmasked(
    lm: "TextEncoder", prompts: list[str], unmasking: dict[str, Any], settings: dict[str, Any], as_json: bool
) -> None:
    fields: Any = unmasking
    texts = [lm.unmask(prompt, fields, **settings) for prompt in in_time(prompts)]
    prompts = prompts[: len(texts)]
    if as_json:
        print_json({"prompts": prompts, "texts": texts, "settings": settings | unmasking})
        return
    print_device(lm.model.device)
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"{prompt}{text}")


def _print_speed(engine: "Engine") -> None:
    # on stderr: standard output has the text only; the rate includes prefill
    stats = engine.stats()
    print(f"({stats.generated_tokens:,} tokens, {stats.tokens_per_second:,.1f} tokens/s)", file=sys.stderr)


def _generate_file(
    lm: "TextGenerator",
    engine: "Engine",
    prompts: list["Prompt"],
    output: Path,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    from archetype.apps.cli.prompt_file import generate_file

    summary = generate_file(lm, engine, prompts, output, settings)
    if as_json:
        print_json({"output": str(output)} | summary)
    failed = f", {summary['failed']} failed" if summary["failed"] else ""
    print(
        f"{output}: {summary['finished']:,} new texts, {summary['before']:,} from before{failed}; "
        f"{summary['tokens']:,} tokens, {summary['tokens_per_second']:,.0f} tokens/s",
        file=sys.stderr,
    )


def _draft(draft: Path | None, opening: Opening, state_dtype: str | None) -> "Draft | None":
    from archetype.api.functions import load

    if draft is None:
        return None
    return "self" if draft == SELF else load(draft, opening.dtype, opening.device, state_dtype=state_dtype)


def _conversation(system: str | None, text: str) -> list["Message"]:
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _print_answers(
    lm: "CausalLM", conversations: list[list["Message"]], settings: dict[str, Any], as_json: bool
) -> None:
    if as_json:
        answers = [{"messages": messages, "text": lm.chat(messages, **settings)} for messages in in_time(conversations)]
        print_json({"chats": answers, "settings": lm.settings(**settings).dump(full=True)})
        return
    engine = lm.engine()
    for messages in in_time(conversations):
        # the answer does not continue the template's last word, so no space is kept between them
        _print_stream(lm, engine, lm.encode_chat(messages), settings | {"continues": False})
    _print_speed(engine)


def _standard_input() -> str:
    from archetype.io.text import decode_text

    return decode_text(sys.stdin.buffer.read(), "standard input")


def _lines() -> list[str]:
    # split as the lines of a training file are: at \n and \r\n only, and an empty line is an empty source
    text = _standard_input().replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []
