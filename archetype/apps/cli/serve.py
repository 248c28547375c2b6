"""`archetype serve`: models behind OpenAI's HTTP API."""

import os
import sys
import webbrowser
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archetype.apps.cli.options import (
    TEMPLATE_HELP,
    AcceptUnproved,
    Deterministic,
    Device,
    Dtype,
    Json,
    StateDtype,
    Weights,
)
from archetype.apps.cli.output import device_name, print_json_line, show_warnings

if TYPE_CHECKING:
    from archetype.apps.serve.models import Source

OF_MODELS = (
    "alias",
    "memory",
    "dtype",
    "state_dtype",
    "weights",
    "deterministic",
    "chat_template",
    "generation_config",
)
SECTIONS = {
    "Network": ("host", "port", "api_key", "allow_host", "allow_origin", "in_browser"),
    "Models": (*OF_MODELS, "accept_unproved", "device"),
    "Web UI": ("runs", "reports"),
    "Limits": ("slots", "max_queue", "prefix_cache", "max_body", "timeout", "grace"),
}
NEEDS = dict.fromkeys((*OF_MODELS, "slots", "max_queue", "prefix_cache"), ("models",))
KEY = "ARCHETYPE_API_KEY"
REPORTS = [Path("claims/reports"), Path("studies")]
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # all interfaces: address for a browser
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MODELS = typer.Argument(
    metavar="MODEL...",
    help="Model folders, or owner/name[@revision] on huggingface.co; NAME=FOLDER sets the name in the API.",
)


def serve(
    models: Annotated[list[str] | None, MODELS] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")] = 8000,
    api_key: Annotated[
        list[str] | None, typer.Option(help=f"API key that requests must send; may be repeated.  [default: ${KEY}]")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Host name that clients use for this machine; may be repeated.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin allowed for CORS, such as https://example.org, or * for all; may be repeated."),
    ] = None,
    in_browser: Annotated[bool, typer.Option("--open", help="Open the web UI in this machine's browser.")] = False,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="ALIAS=NAME", help="Additional name of a model; may be repeated.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0, help="Memory for models and requests, in GiB.  [default: 90% of the device's free memory]"),
    ] = None,
    chat_template: Annotated[Path | None, typer.Option(help=TEMPLATE_HELP)] = None,
    generation_config: Annotated[
        Literal["model", "none"],
        typer.Option(help="Default sampling settings: the model's generation_config.json, if present."),
    ] = "model",
    runs: Annotated[Path, typer.Option(help="Folder of training runs shown in the web UI.")] = Path("runs"),
    reports: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of study reports; may be repeated.  [default: claims/reports and studies]"),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Number of requests per model decoded in one batch.")] = 16,
    max_queue: Annotated[
        int, typer.Option(min=0, help="Number of requests that may queue when all slots are busy.")
    ] = 256,
    prefix_cache: Annotated[int, typer.Option(min=0, help="Prefix cache size in MiB.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, help="Maximum size of a request body, in KiB.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.1, help="Time limit of a request, in seconds.")] = 600.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Time for running requests to finish when the server stops, in seconds.")
    ] = 30.0,
    dtype: Dtype = None,
    state_dtype: StateDtype = None,
    weights: Weights = None,
    deterministic: Deterministic = False,
    accept_unproved: AcceptUnproved = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Serve models over OpenAI's HTTP API.

    Completions, chat completions, embeddings, classification, tokenization, health and metrics. The server listens only
    on this machine unless --host is given. Without MODEL it serves a small example model. On Ctrl-C or SIGTERM it
    finishes running requests and refuses new ones.
    """
    show_warnings()
    from archetype.api.functions import load
    from archetype.apps.serve import page
    from archetype.apps.serve.app import App
    from archetype.apps.serve.example import example
    from archetype.apps.serve.limits import Limits
    from archetype.apps.serve.models import ModelOptions, Models
    from archetype.apps.serve.server import listen
    from archetype.apps.serve.server import serve as run
    from archetype.errors import SpecError

    # an unset shell variable would otherwise serve without a key: --api-key "$KEY"
    if "" in (api_key or ()):
        raise SpecError("--api-key", "is empty", "pass a key, or remove --api-key to serve without authentication")
    if in_browser and not page.is_built():
        raise SpecError("--open", "the web UI is not built", page.HOW_TO_BUILD)
    options = ModelOptions(
        # called when a request first needs the model
        open=lambda source: load(
            source,
            dtype,
            device,
            weights=weights,
            deterministic=deterministic,
            accept_unproved=accept_unproved,
            state_dtype=state_dtype,
        ),
        slots=slots,
        max_queue=max_queue,
        prefix_bytes=prefix_cache << 20,
        memory_bytes=None if memory is None else int(memory * 2**30),
        device=device,
        own_sampling=generation_config == "model",
        chat_template=chat_template,
    )
    served = Models(sources_of(models or [], alias or []) or [example()], options)
    keys = api_key or [key for key in [os.environ.get(KEY)] if key]
    app = App(
        served,
        keys,
        [host, *(allow_host or [])],
        Limits(max_body << 10, seconds=timeout),
        runs,
        reports or REPORTS,
        allow_origin or [],
    )
    # a port in use fails here, before anything is printed or loaded
    listening = listen(host, port)
    # port 0 has become a free one
    names = ", ".join(source.name for source in served.sources) if models else "the example model"
    web_ui, api = addresses(host, listening.getsockname()[1])
    shown = f"web UI at {web_ui}" if page.is_built() else f"the web UI is not built: {page.HOW_TO_BUILD}"
    if not keys and host not in LOOPBACK:
        print("archetype: without --api-key anyone who can reach this machine can use its models", file=sys.stderr)

    def tell() -> None:  # called when the server accepts connections
        on_device = ""
        if models:  # the example is loaded by its first request; torch is not imported yet
            from archetype.machine.device import resolve_device

            on_device = f" on {device_name(resolve_device(device))}"
        print(f"archetype: {names}{on_device}; {shown}\narchetype: API at {api}", file=sys.stderr, flush=True)
        if as_json:
            named = [source.name for source in served.sources]
            print_json_line({"api": api, "web_ui": web_ui if page.is_built() else None, "models": named})
        if in_browser:  # in a thread: a terminal browser blocks until it is closed
            Thread(target=open_browser, args=[web_ui], daemon=True).start()

    run(app, listening, grace, tell)


def addresses(host: str, port: int) -> tuple[str, str]:
    """Return the addresses of the web UI, for a browser on this machine, and of the API."""
    # RFC 3986: an IPv6 address in a URL is in brackets
    shown = f"[{host}]" if ":" in host else host
    return f"http://{ANY_ADDRESS.get(host, shown)}:{port}/", f"http://{shown}:{port}/v1"


def open_browser(address: str) -> None:
    """Open an address in the browser, or print that there is none."""
    try:
        is_open = webbrowser.open(address)
    except webbrowser.Error:
        is_open = False
    if not is_open:
        print(f"archetype: --open: found no browser; open {address} in one", file=sys.stderr, flush=True)


def sources_of(models: list[str], aliases: list[str]) -> list["Source"]:
    """Return the models of the command line with their aliases.

    Raises:
        SpecError: an alias names an unknown model, or a folder contains no model.
    """
    from archetype.apps.serve.models import Source
    from archetype.convert.gguf.header import is_gguf
    from archetype.errors import SpecError
    from archetype.io import hub

    others: dict[str, list[str]] = {}
    for text in aliases:
        name, equals, of = text.partition("=")
        if not (name and equals and of):
            raise SpecError("--alias", f"{text!r:.80} is not ALIAS=NAME", "write --alias gpt-4=llama")
        others.setdefault(of, []).append(name)
    sources = []
    for text in models:
        name, equals, path = text.partition("=") if "=" in text else ("", "", text)
        # a local folder comes before a name on huggingface.co that is spelled as its path is
        here = Path(path).is_dir() or is_gguf(path)
        if not here and not hub.is_name(path):
            from archetype.convert.source import without_weights

            raise without_weights(path)
        name = name or Path(path).resolve().name if here else name or path
        # the path as written names the model, too
        sources.append(Source(name, path, tuple({path, *others.pop(name, [])} - {name})))
    if others:
        raise SpecError("--alias", f"no served model is named {next(iter(others))!r:.80}", "use the name of a MODEL")
    return sources
