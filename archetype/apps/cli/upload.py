"""The command `upload`, which uploads a model with a model card to huggingface.co."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archetype.apps.cli.options import Json, Model, StoredDtype
from archetype.apps.cli.output import print_json

if TYPE_CHECKING:
    from archetype.io.hub_upload import Destination


def upload(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository; created if it does not exist.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the folder (NAME, or --to) and print what would be uploaded.")
    ] = False,
    to: Annotated[
        Path | None, typer.Option("--to", "-o", "--output", help="New folder for a copy of the uploaded files.")
    ] = None,
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Visibility.  [default: the account's setting]")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", "--branch", help="Branch.  [default: main]")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Commit message.")] = None,
    format: Annotated[
        Literal["hf", "archetype-hf"] | None,
        typer.Option(help="Format, as for export.  [default: hf, or archetype-hf if no published family fits]"),
    ] = None,
    with_code: Annotated[
        bool, typer.Option("--with-code", help="With archetype-hf: add a code file for trust_remote_code.")
    ] = False,
    dtype: StoredDtype = None,
    as_json: Json = False,
) -> None:
    """Upload a model to huggingface.co with a model card.

    The card has a drawing, the validation loss, costs, the specification and how to load the model. Access tokens are
    those of huggingface_hub: HF_TOKEN, or `hf auth login`. A run's adapter is merged into its base.
    """
    from archetype import __version__
    from archetype.api.exporting import export, fitting_format
    from archetype.api.loading import load
    from archetype.convert.model_card import ModelCard
    from archetype.io.hub_upload import check_account, destination, send
    from archetype.io.tensors import dtype_of
    from archetype.runs.directory import Run
    from archetype.training.metrics import last_evaluation

    target = destination(name, revision, private)
    if not dry_run:
        check_account()  # fails before a large model is loaded
    lm = load(model, dtype_of(dtype), mapped=True)
    card = ModelCard(target.repository, target.revision, last_evaluation(Run(model).metrics_file))
    message = message or f"Upload with Archetype {__version__}"
    with ExitStack() as stack:
        # a folder that nobody asked for is removed after the upload
        scratch = "" if dry_run or to else stack.enter_context(TemporaryDirectory())
        folder = to or (Path(target.repository.partition("/")[2]) if dry_run else Path(scratch) / "model")
        export(lm, folder, format=format or fitting_format(lm), with_code=with_code, card=card)
        sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
        # the commit's address
        address = None if dry_run else send(folder, target, message)
    if as_json:
        folder_entry = {"folder": str(folder)} if dry_run or to else {}
        print_json(
            {
                "to": str(target),
                "private": private,
                "message": message,
                "commit": address,
                **folder_entry,
                "files": sizes,
            }
        )
    elif address is None:
        _print_plan(folder, target, message, sizes)
    else:
        print(f"uploaded {len(sizes)} files, {sum(sizes.values()):,} bytes, to {target}: {address}")


def _print_plan(folder: Path, target: "Destination", message: str, sizes: dict[str, int]) -> None:
    from archetype.table import Table

    print(Table(("file", "bytes"), [(name, f"{size:,}") for name, size in sizes.items()]))
    access = {None: "", True: ", private", False: ", public"}[target.private]
    print(f"wrote {folder}; to upload to {target}{access} as {message!r}, {sum(sizes.values()):,} bytes")
