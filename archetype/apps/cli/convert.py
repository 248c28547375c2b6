"""The commands `import`, `export` and `parity`: conversion from and to other libraries' formats, and comparison."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archetype.apps.cli.options import AcceptUnproved, Exported, Json, Model, Output, Overrides, StoredDtype, Weights
from archetype.apps.cli.output import print_json
from archetype.convert.gguf.types import FileType

if TYPE_CHECKING:
    from archetype.convert.parity import Parity

# an adapter is exported as it is: these choose or change the full model
EXCLUDES = {
    "adapter_only": (
        "format",
        "type",
        "allow_different_tokens",
        "weights",
        "dtype",
        "seed",
        "overrides",
        "accept_unproved",
        "with_code",
        "with_state",
    ),
}


def import_(
    model: Model,
    to: Output,
    dtype: StoredDtype = None,
    weights: Weights = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Also read pytorch_model.bin (tensors only).")
    ] = False,
    overrides: Overrides = None,
    further_tokens: Annotated[
        bool, typer.Option("--further-tokens", help="Also import the multi-token prediction layers.")
    ] = False,
    accept_unproved: AcceptUnproved = False,
    as_json: Json = False,
) -> None:
    """Import a Hugging Face folder, a GGUF file or a model on huggingface.co as a run directory."""
    from archetype.api.loading import load
    from archetype.io.tensors import dtype_of

    lm = load(
        model,
        dtype_of(dtype),
        allow_pickle=allow_pickle,
        overrides=overrides or (),
        weights=weights,
        mapped=True,
        further_tokens=further_tokens,
        accept_unproved=accept_unproved,
    )
    lm.save(to)
    if as_json:
        print_json({"folder": str(to), "kind": lm.spec.kind, "family": lm.family and lm.family.name})
    else:
        print(f"wrote {to}")


def export(
    model: Exported,
    to: Output,
    family: Annotated[
        str | None, typer.Option(help="Model family, such as llama.  [default: as loaded, or the one that fits]")
    ] = None,
    format: Annotated[
        Literal["hf", "gguf", "archetype-hf", "torch-export", "onnx"],
        typer.Option(
            help="Format: hf (transformers), gguf (llama.cpp), archetype-hf (transformers with import archetype.hf), "
            "torch-export or onnx (a program from tokens to logits)."
        ),
    ] = "hf",
    type: Annotated[
        FileType | None,
        typer.Option(case_sensitive=False, help="Data type of most matrices of a GGUF file.  [default: the model's]"),
    ] = None,
    allow_different_tokens: Annotated[
        bool,
        typer.Option(
            "--allow-different-tokens", help="Export even if other programs would tokenize some texts differently."
        ),
    ] = False,
    with_code: Annotated[
        bool,
        typer.Option("--with-code", help="With archetype-hf: add a code file for trust_remote_code."),
    ] = False,
    with_state: Annotated[
        bool,
        typer.Option(
            "--with-state",
            help="With torch-export or onnx: a step whose inputs and outputs include its state.",
        ),
    ] = False,
    weights: Weights = None,
    dtype: StoredDtype = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the initial weights, if the source is a specification.  [default: 0]")
    ] = None,
    adapter_only: Annotated[
        bool, typer.Option("--adapter-only", help="Export only the adapter, in PEFT format.")
    ] = False,
    overrides: Overrides = None,
    accept_unproved: AcceptUnproved = False,
    as_json: Json = False,
) -> None:
    """Export a model for transformers, llama.cpp, torch or ONNX, and verify the result.

    A preset or a specification file is exported with random weights. A run's adapter is merged into its base.
    """
    from archetype.api.exporting import export, export_adapter
    from archetype.api.loading import build_untrained, load, names_weights
    from archetype.convert.model_card import ModelCard
    from archetype.errors import SpecError
    from archetype.io.tensors import dtype_of
    from archetype.runs.directory import Run
    from archetype.training.metrics import last_evaluation

    if adapter_only:
        written = export_adapter(Path(model), to, family)
        if as_json:
            print_json({"folder": str(to), "format": "peft", "family": written.name, "seed": None})
        else:
            print(f"wrote {to} as an adapter of {written.name}")
        return
    trained = names_weights(model)
    if trained and seed is not None:
        raise SpecError("--seed", f"{model} has trained weights, so no seed is needed", "remove it")
    if not trained and (overrides or accept_unproved):
        option = "--set" if overrides else "--accept-unproved"
        raise SpecError(option, f"{model} is a specification without weights", "change it with `archetype set`")
    seed = seed or 0
    lm = (
        load(
            model,
            dtype_of(dtype),
            overrides=overrides or (),
            mapped=True,
            weights=weights,
            accept_unproved=accept_unproved,
        )
        if trained
        else build_untrained(model, seed, dtype_of(dtype))
    )
    # `load` has done this for trained weights
    if weights is not None and not trained:
        lm.pack(weights)
    # empty if the source is not a run
    card = ModelCard(evaluation=last_evaluation(Run(Path(model)).metrics_file))
    written = export(
        lm,
        to,
        family,
        format=format,
        type=type,
        allow_different_tokens=allow_different_tokens,
        with_code=with_code,
        with_state=with_state,
        card=card,
    )
    if as_json:  # written, reloaded and compared
        own_seed = None if trained else seed
        print_json({"folder": str(to), "format": format, "family": written.name, "seed": own_seed})
        return
    names = {"gguf": f"GGUF of {written.name}", "torch-export": "a torch.export program", "onnx": "an ONNX program"}
    name = names.get(format) or written.format.architecture_of(lm.spec)
    fresh = "" if trained else f"; {model} has no weights, so these are random (seed {seed})"
    print(f"wrote {to} as {name}, reloaded and compared{fresh}")


def parity(
    model: Model,
    reference: Annotated[
        Literal["transformers", "llama.cpp"] | None,
        typer.Option(help="Program to compare with.  [default: llama.cpp for a GGUF file, transformers for a folder]"),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Data type; may be repeated.  [default: float32, and bfloat16 for a folder]"),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Input text.  [default: random tokens]")] = None,
    overrides: Overrides = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Tolerance, relative to the largest magnitude.  [default: by data type]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare outputs with transformers, module by module, or with llama.cpp for a GGUF file.

    The exit status is 1 if they differ.
    """
    from archetype.convert.gguf.header import is_gguf
    from archetype.convert.parity import compare
    from archetype.errors import DataError

    # each library reads one of the two formats
    library = "llama.cpp" if is_gguf(model) else "transformers"
    if reference not in (None, library):
        raise DataError("--reference", f"{reference} does not read {model}", f"use {library}")
    # llama.cpp computes in the data types of its file, whichever is ours
    dtypes = dtype or ("float32", "bfloat16")[: 1 if is_gguf(model) else 2]
    results = [compare(model, name, text, tolerance, overrides or ()) for name in dtypes]
    if as_json:
        rows = [
            asdict(result) | {"agrees": result.agrees, "first": result.first and result.first.module}
            for result in results
        ]
        print_json({"folder": str(model), "reference": library, "dtypes": rows})
    else:
        for result in results:
            _print_parity(result)
    # after the output, so that a script gets both it and the status
    if not all(result.agrees for result in results):
        raise typer.Exit(1)


def _print_parity(result: "Parity") -> None:
    from archetype.table import Table

    rows = []
    for module in result.modules:
        mark = "" if module.difference <= result.tolerance else "  <- exceeds the tolerance"
        rows.append((module.module, module.reference, f"{module.difference:.1e}{mark}"))
    if rows:
        print(Table((f"module, {result.dtype}", "transformers", "difference"), rows, text_columns=3))
    if result.left_out:
        print(f"not compared: {'; '.join(result.left_out)}")
    summary = f"logits: largest difference {result.difference:.1e}, relative to the largest magnitude"
    if result.kl is not None and result.top1 is not None:
        summary += f", KL {result.kl:.1e} nats, same most likely token at {result.top1:.1%} of positions"
    print(summary)
    if result.first is not None:
        print(f"first above {result.tolerance:g}: {result.first.module} ({result.first.reference})")
