"""`archetype serve`: models behind OpenAI's HTTP API."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archetype.cli.options import Device, Dtype, Weights
from archetype.cli.output import show_warnings

if TYPE_CHECKING:
    from archetype.serve.models import Source

SECTIONS = {
    "Network": ("host", "port", "api_key", "allow_host"),
    "Models": ("alias", "memory", "dtype", "weights", "device", "chat_template", "generation_config"),
    "Page": ("runs", "reports"),
    "Limits": ("slots", "max_queue", "prefix_cache", "max_body", "timeout", "grace"),
}
KEY = "ARCHETYPE_API_KEY"
REPORTS = [Path("docs/studies"), Path("studies")]
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MODELS = typer.Argument(
    metavar="MODEL...", help="Folders of models, or owner/name of huggingface.co; NAME=FOLDER gives one a name."
)


def serve(
    models: Annotated[list[str] | None, MODELS] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    api_key: Annotated[
        list[str] | None, typer.Option(help=f"A key that requests must bring; may be repeated.  [default: ${KEY}]")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which clients reach this machine; may be repeated.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="ALIAS=NAME", help="Another name of a model; may be repeated.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0, help="GiB for the weights of all models.  [default: 9/10 of what is free]")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A Jinja file to use in place of the models' own templates.")
    ] = None,
    generation_config: Annotated[
        Literal["model", "none"], typer.Option(help="Where settings come from that a request leaves out.")
    ] = "model",
    runs: Annotated[Path, typer.Option(help="The folder of training runs that the page shows.")] = Path("runs"),
    reports: Annotated[
        list[Path] | None,
        typer.Option(help="A folder of reports of studies; may be repeated.  [default: docs/studies and studies]"),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Requests of a model that are decoded together.")] = 16,
    max_queue: Annotated[int, typer.Option(min=0, help="Further ones that may wait.")] = 256,
    prefix_cache: Annotated[int, typer.Option(min=0, help="MiB for the states of beginnings that texts share.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, help="KiB of a request's body.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request is answered.")] = 600.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds in which requests may finish at the end.")] = 30.0,
    dtype: Dtype = None,
    weights: Weights = None,
    device: Device = "cpu",
) -> None:
    """Serve models over OpenAI's HTTP API.

    Completions, chat completions, embeddings, classes, tokenize and detokenize, health and metrics, on this machine
    alone unless --host says otherwise. Ctrl-C or SIGTERM stops it: what runs is finished, what is new is refused.
    """
    show_warnings()
    from archetype.distribution import install_command
    from archetype.errors import DataError

    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise DataError(str(error.name), "is not installed", install_command("serve")) from None
    from archetype.api import load
    from archetype.serve.app import App, Limits
    from archetype.serve.models import ModelOptions, Models
    from archetype.serve.server import listen
    from archetype.serve.server import serve as run

    options = ModelOptions(
        open=lambda place: load(place, dtype, device, weights=weights),
        slots=slots, max_queue=max_queue, prefix_bytes=prefix_cache << 20,
        memory_bytes=None if memory is None else int(memory * 2**30),
        own_sampling=generation_config == "model", chat_template=chat_template,
    )  # fmt: skip
    served = Models(sources_of(models or [], alias or []), options)
    keys = api_key or [key for key in [os.environ.get(KEY)] if key]
    app = App(
        served, keys, [host, *(allow_host or [])], Limits(max_body << 10, seconds=timeout), runs, reports or REPORTS
    )
    listening = listen(host, port)
    names = ", ".join(source.name for source in served.sources) or "no model"
    shown = f"[{host}]" if ":" in host else host
    line = f"archetype: {names} at http://{shown}:{listening.getsockname()[1]}/v1"
    if not keys and host not in LOOPBACK:
        print("archetype: without --api-key whoever reaches this machine can use its models", file=sys.stderr)
    run(app, listening, grace, lambda: print(line, file=sys.stderr, flush=True))


def sources_of(models: list[str], aliases: list[str]) -> list["Source"]:
    """The models of the command line by name, each with its aliases.

    Raises:
        SpecError: an alias is not of a model, or a folder is none.
    """
    from archetype.errors import SpecError
    from archetype.io import hub
    from archetype.serve.models import Source

    others: dict[str, list[str]] = {}
    for text in aliases:
        name, equals, of = text.partition("=")
        if not (name and equals and of):
            raise SpecError("--alias", f"{text!r:.80} is not ALIAS=NAME", "write --alias gpt-4=llama")
        others.setdefault(of, []).append(name)
    sources = []
    for text in models:
        name, equals, place = text.partition("=") if "=" in text else ("", "", text)
        if not Path(place).is_dir() and not hub.is_name(place):
            from archetype.convert.source import without_weights

            raise without_weights(place)
        name = name or Path(place).resolve().name if Path(place).is_dir() else name or place
        sources.append(Source(name, place, tuple({place, *others.pop(name, [])} - {name})))
    if others:
        raise SpecError("--alias", f"there is no model {next(iter(others))!r:.80}", "use a name from MODEL")
    return sources
