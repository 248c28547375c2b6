"""`archetype VERB ...`: all verbs, and what happens when one fails."""

import os
import sys
import warnings
from typing import Any

import typer

from archetype.cli import demo, encoder, generate, models, parity, specs, tokenizer, train, translate
from archetype.errors import ArchetypeError, UnknownFamily

app = typer.Typer(
    name="archetype",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The architecture workbench for language models: one specification, from its cost to its text.",
)
for verb in (
    demo.demo,
    specs.list_,
    specs.show,
    specs.diff,
    specs.set_,
    specs.schema,
    specs.cost,
    train.train,
    generate.generate,
    translate.translate,
    encoder.fill,
    encoder.embed,
    encoder.classify,
    models.load,
    models.export,
    parity.parity,
):
    app.command(verb.__name__.rstrip("_"))(verb)
app.add_typer(tokenizer.app, name="tokenizer")


def main() -> None:
    """Exit 0 when done, 2 with one line for the user's mistake, 130 when interrupted; a trace is our fault."""
    warnings.simplefilter("default", UnknownFamily)
    warnings.showwarning = _tell
    try:
        result = app(standalone_mode=False)
        sys.stdout.flush()  # a reader that has seen enough shows here at the latest
    except ArchetypeError as error:
        _fail(str(error), 2)
    except typer.TyperException as error:
        _fail(f"{error.format_message()} See `archetype --help`.".replace("\n", " "), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(result if isinstance(result, int) else 0)


def _tell(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
    """A warning of ours is one line, as errors are; what libraries warn of says where."""
    said = message if issubclass(category, UnknownFamily) else f"{category.__name__}: {message} ({place[0]}:{place[1]})"
    print(f"archetype: {said}", file=sys.stderr)


def _fail(message: str, status: int) -> None:
    print(f"archetype: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
