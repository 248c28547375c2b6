"""`archetype COMMAND ...`: table of the commands, and handling of their errors."""

import atexit
import codecs
import contextlib
import errno
import gc
import io
import os
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from archetype.apps.cli.output import replace_drawing
from archetype.apps.cli.verb import Verb
from archetype.errors import MAX_MESSAGE, ArchetypeError, Notice, one_line

HELP = "The architecture workbench for language models: one specification, from its cost to its text."
# command: (module.function, first line of the help); only the command that runs is imported
VERBS = {
    "demo": ("demo.demo", "Train a small model on text from this machine, show its cost and loss, and generate."),
    "list": ("specs.list_", "List the presets and the published models, with sizes and sources."),
    "show": ("specs.show", "Print a specification as YAML."),
    "diff": ("specs.diff", "Print every field in which two specifications differ."),
    "set": ("specs.set_", "Change a specification and print the validated result."),
    "check": ("check.check", "Check the invariants of a part and print the results."),
    "explain": ("explain.explain", "Explain a kind: its fields, modules and cost."),
    "schema": ("specs.schema", "Print the JSON Schema of specification files, for editors, or write it to a file."),
    "cost": ("cost.cost", "Print the cost of a specification, by module and with formulas."),
    "draw": ("draw.draw", "Draw an architecture, or the difference of two, as SVG, PNG or PDF, with shapes and costs."),
    "gallery": (
        "gallery.app",
        "Write a static site of published models: cost, state by length, diagram and changes from the ancestor.",
    ),
    "tokenizer": ("tokenizer.app", "Train, show and use tokenizers."),
    "train": ("train.train", "Train a model on text, text pairs or images and write a run directory."),
    "runs": (
        "runs.runs",
        "List runs with their size and best validation loss, and a column for each setting that differs.",
    ),
    "plot": ("runs.plot", "Plot the validation or training losses of several runs."),
    "report": ("runs.report", "Write report.html of a run: curves, cost, recipe, samples and environment."),
    "generate": ("generate.generate", "Generate text from one or more prompts, as one batch."),
    "chat": ("chat.chat", "Chat with a model in the terminal; each line is a message."),
    "evaluate": (
        "evaluate.evaluate",
        "Evaluate a model: loss, accuracy, BLEU and chrF, retrieval, correlation, or lm-eval tasks.",
    ),
    "translate": ("generate.translate", "Translate source texts, one line each."),
    "fill": ("encoder.fill", "Predict the masked tokens of a text."),
    "embed": ("encoder.embed", "Embed texts; without --json, print their cosine similarities."),
    "classify": ("encoder.classify", "Classify texts, tokens or images, with probabilities."),
    "answer": ("encoder.answer", "Answer a question with a span of a text and its probability."),
    "inspect": ("inspect.inspect", "Show what happens inside a model while it reads a text."),
    "serve": ("serve.serve", "Serve models over OpenAI's HTTP API."),
    "compare": (
        "compare.app",
        "Compare architectures in controlled experiments, with seeds, confidence intervals and verdicts.",
    ),
    "transplant": (
        "transplant.transplant",
        "Change the architecture of a trained model, keep its weights, and prove how it starts.",
    ),
    "bench": (
        "bench.bench",
        "Benchmark a model on this machine: tokens per second, and the share of the hardware limit.",
    ),
    "import": (
        "convert.import_",
        "Import a Hugging Face folder, a GGUF file or a model on huggingface.co as a run directory.",
    ),
    "export": ("convert.export", "Export a model for transformers, llama.cpp, torch or ONNX, and verify the result."),
    "upload": ("upload.upload", "Upload a model to huggingface.co with a model card."),
    "parity": (
        "convert.parity",
        "Compare outputs with transformers, module by module, or with llama.cpp for a GGUF file.",
    ),
}
READERS = ("generate", "chat", "evaluate", "encoder", "inspect", "serve", "bench")  # modules that run models
QUICK = ("specs", "cost", "draw")  # modules too short-lived for garbage collection
OF_EXPORT: tuple[str, ...] = ("--format", "--family", "--type", "--seed", "--adapter-only", "--allow-different-tokens")
OF_EXPORT += ("--with-code", "--with-state")
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


class Verbs(TyperGroup):
    """Command group that imports a command's module when the command runs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(VERBS)  # type: ignore[assignment]  # names only, for suggestions

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve `convert` to `export` for a run, specification or preset, or with --format; otherwise to `import`."""
        # other programs have a `convert` command; its arguments tell which of our commands is meant
        if args[0] == "convert":
            ours = any(word.partition("=")[0] in OF_EXPORT or _is_ours(word) for word in args[1:])
            args = ["export" if ours else "import", *args[1:]]
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name; None if the name is unknown."""
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(".")
        source = import_module(f"archetype.apps.cli.{module}")
        # a module has either a function or, with subcommands, an app
        single = verb = getattr(source, name)
        if not isinstance(verb, typer.Typer):
            single = typer.Typer(add_completion=False, **PLAIN)
            single.command(cmd_name, cls=Verb)(verb)
        command = typer.main.get_command(single)
        for verb_command in getattr(command, "commands", {"": command}).values():
            verb_command.sections = getattr(source, "SECTIONS", {})
            verb_command.optional_values = getattr(source, "OPTIONAL_VALUES", {})
            verb_command.needs, verb_command.excludes = getattr(source, "NEEDS", {}), getattr(source, "EXCLUDES", {})
            verb_command.reads_texts, verb_command.ends_soon = module in READERS, module in QUICK
            verb_command.params += _common_options()
        if command is not verb_command:
            command.params += _common_options()
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands and their one-line help without importing their modules."""
        with formatter.section("Commands"):
            convert = ("convert", "Export a run or a specification (or with --format); otherwise import.")
            formatter.write_dl([*((name, line) for name, (_, line) in VERBS.items()), convert])


def _is_ours(word: str) -> bool:
    if (Path(word) / "spec.yaml").is_file() or word.endswith((".yaml", ".yml")):
        return True
    from archetype.families.index import preset_facts

    return word in preset_facts()


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        from archetype import __version__

        python = ".".join(map(str, sys.version_info[:3]))
        print(f"archetype {__version__}, torch {version('torch')}, Python {python}")
        raise typer.Exit


def _show_log(value: bool) -> None:
    if value:
        import logging

        # stderr: standard output has the results only
        logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s", force=True)
        logging.getLogger("archetype").setLevel(logging.INFO)


def _load_extensions(files: list[Path] | None) -> None:
    for file in files or []:
        from archetype.api.extension import load_extension

        load_extension(file)


EXTENSION = typer.Option(
    "--extension",
    callback=_load_extensions,
    is_eager=True,  # before other options, whose checks may need the registered parts
    expose_value=False,
    metavar="FILE.py",
    help="Load a Python file that registers parts; may be repeated.",
)
VERBOSE = typer.Option("--verbose", callback=_show_log, expose_value=False, help="Log progress to stderr.")
VERSION = typer.Option(
    "--version",
    callback=_show_version,
    is_eager=True,
    expose_value=False,
    help="Print the versions of archetype, torch and Python.",
)
app = typer.Typer(
    name="archetype",
    cls=Verbs,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    **PLAIN,
)


@app.callback(help=HELP)
def options(version: Annotated[bool, VERSION] = False, verbose: Annotated[bool, VERBOSE] = False) -> None:
    """Options before a command."""


def _common_options() -> list[Any]:
    # typer makes options of a signature only, so they are taken from a command that does nothing
    def common(
        extension: Annotated[list[Path] | None, EXTENSION] = None, verbose: Annotated[bool, VERBOSE] = False
    ) -> None:
        pass

    single = typer.Typer(add_completion=False)
    single.command()(common)
    return typer.main.get_command(single).params


def main() -> None:
    """Run a command.

    Exit status: 0 done; 1 a check or comparison failed, or the training diverged; 2 user error, with one line on
    standard error; 130 interrupted, or 128 + the signal that stopped a training. A traceback is a bug.
    """
    gc.disable()  # imports stay in memory; collecting among them takes a seventh of the start-up time
    atexit.register(gc.freeze)  # and a third of a second at exit
    # ours once per place, whatever the filters of the libraries
    warnings.simplefilter("default", Notice)
    warnings.showwarning = _print_warning
    _open_streams()
    try:
        # errors are raised rather than printed, and `typer.Exit` becomes the result
        result = app(standalone_mode=False)
        sys.stdout.flush()  # a closed pipe or a full disk fails here at the latest
    except ArchetypeError as error:
        _fail(str(error), 2)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            print(error.format_message())
            sys.exit(0)
        # the message is cut rather than the way to the help: both fit into one line
        help_ = " ".join(["archetype", *_verb_of(error), "--help"])
        cause = one_line(_usage(error), MAX_MESSAGE - len(help_) - 9)
        _fail(f"{cause}{'' if cause.endswith(('.', '?')) else '.'} See `{help_}`.", 2)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(cut := error.__cause__, EOFError):  # typer treats any EOFError as the end of input
            _fail_of_cut_module(cut)
            raise cut from None
        _fail("interrupted", 130)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and error.filename:
            _fail(one_line(f"{error.filename}: this name is too long", MAX_MESSAGE), 2)
        # an error of a file, or of another kind, is a bug: commands turn expected ones into ArchetypeError
        if error.filename or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drop unwritten output
        if error.errno == errno.EPIPE:  # the reader closed the pipe, such as `head`
            sys.exit(0)
        # any other error of standard output: a full disk, or a closed descriptor
        _fail(f"standard output: cannot be written: {error.strerror}", 2)
    except Exception as error:
        # each exits if the error is of its kind
        _fail_of_extension(error)
        _fail_of_memory(error)
        raise
    sys.exit(result if isinstance(result, int) else 0)


def _fail_of_cut_module(error: EOFError) -> None:
    # importlib leaves a truncated file if the disk is full; marshal raises EOFError when it is read again
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    # a local of importlib's `get_code`
    if trace and (compiled := trace.tb_frame.f_locals.get("bytecode_path")):
        message = f"{compiled}: the compiled module is cut off, perhaps by a full disk; remove it"
        _fail(one_line(message, MAX_MESSAGE), 2)


def _fail_of_extension(error: Exception) -> None:
    # without the module no extension has been loaded; --verbose shows the author where it failed
    if (extension := sys.modules.get("archetype.api.extension")) is None:
        return
    if (failure := extension.failure_of_extension(error)) is not None:
        if "--verbose" in sys.argv:
            traceback.print_exception(error)
        _fail(str(failure), 2)


def _fail_of_memory(error: Exception) -> None:
    # torch is not imported for this: only if it has been can it be the cause
    torch = sys.modules.get("torch")
    is_device = torch is not None and isinstance(error, torch.OutOfMemoryError)
    # PyTorch's CPU allocator raises a RuntimeError with these words
    if is_device or isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        if "--verbose" in sys.argv:
            traceback.print_exception(error)
        whose = "the device's memory" if is_device else "memory"
        _fail(f"{whose} is full; use a smaller model or batch, fewer bytes per weight, or end other programs", 2)


def _verb_of(error: typer.TyperException) -> list[str]:
    # such as ["tokenizer", "train"]; empty for an unknown command
    context = getattr(error, "ctx", None)
    words: list[str] = []
    while context is not None and context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return words


def _usage(error: typer.TyperException) -> str:
    # typer's message, or ours if pydantic refuses a value
    message, invalid = error.format_message(), error.__cause__
    if type(invalid).__name__ != "ValidationError":  # from typer's conversion of a value
        return message
    from archetype.spec.errors import in_words

    detail: Any = invalid.errors(include_url=False)[0]  # type: ignore[union-attr]
    if detail["type"] == "value_error":  # not one of the choices: typer's message is clear
        return message.replace("Value error, ", "")
    return f"{message.partition(': ')[0]}: {'; '.join(in_words(detail))}."


def _open_streams() -> None:
    # Python sets a stream to None if its descriptor is closed: `archetype ... 2>&-`
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the program ends
    if sys.stdout is None:
        _fail("standard output: is closed; redirect it to a file or to /dev/null", 2)
    # a terminal or a pipe may be ASCII or Latin-1, which has no box drawing
    codecs.register_error("drawn_plainly", replace_drawing)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="drawn_plainly")


def _print_warning(message: Warning | str, category: type[Warning], *location: Any, **rest: Any) -> None:
    # our warnings are for the user, on one line like errors; warnings of libraries are for us, so with file and line
    ours = issubclass(category, Notice)
    text = str(message) if ours else f"{category.__name__}: {message} ({location[0]}:{location[1]})"
    print(f"archetype: {text}", file=sys.stderr)


def _fail(message: str, status: int) -> None:
    with contextlib.suppress(OSError):  # standard error may be full or closed
        print(f"archetype: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
