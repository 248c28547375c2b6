"""Options of `train`: recipe fields, budget fields, and all others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from archetype.apps.cli.fields import setting, settings_of, values_of
from archetype.settings import training as settings

HERE = "here"  # the value of --plan without an argument
GPU = "H100-SXM"
OPTIONAL_VALUES = {"--plan": (HERE, r"\d+x\d+")}  # option: (value if none is given, pattern of a value)

TO_FIT = "chosen to fit the text"
DEFAULTS = {  # shown in the help, if neither an option nor a recipe file sets the field
    "tokenizer": TO_FIT,
    "vocab_size": TO_FIT,
    "steps": TO_FIT,
    "learning_rate": "chosen by the model's width",
    "warmup_steps": "a tenth of the steps",
    "sequence_length": "the model's context, if the text is long enough",
    "train": "all parameters, or only the adapter's",
    "adapter": "none",
    "teacher": "none",
    "micro_batch_size": "the whole batch",
    "patience": "never",
    "skip_bad": "0",
}
SECTIONS = {
    "Run": ("recipe", "to", "resume", "track", "assignments", "allow_changes"),
    "Model and data": (
        "spec", "start_from", "teacher", "train", "adapter", "new_tokens", "text", "source", "target", "images",
        "labelled", "labelled_tokens", "chat", "preferences", "pairs", "scored_pairs", "column", "skip_bad",
        "tokenizer", "vocab_size",
    ),
    "Optimization": (
        "steps", "epochs", "tokens", "flops", "minutes", "batch_size", "micro_batch_size", "sequence_length",
        "learning_rate", "warmup_steps", "patience", "seed",
    ),
    "Machine": ("dtype", "device", "force", "plan", "gpu", "find_rate"),
}  # fmt: skip
FIELDS = {
    **settings_of(
        settings.RunSettings,
        "spec",
        "steps",
        "batch_size",
        "micro_batch_size",
        "sequence_length",
        "patience",
        "dtype",
        "seed",
        train="trainable",
        adapter="adapter.kind",
    ),
    "teacher": setting("teacher.model", settings.TeacherModel),
    "text": setting("data.text", settings.TextFiles),
    "source": setting("data.source", settings.SourceFiles),
    "target": setting("data.target", settings.TargetFiles),
    "images": setting("data.file", settings.ImageFiles),
    "labelled": setting("data.examples", settings.LabelledTextFiles),
    "labelled_tokens": setting("data.examples", settings.LabelledTokenFiles),
    "chat": setting("data.examples", settings.ConversationFiles),
    "preferences": setting("data.examples", settings.PreferenceFiles),
    "pairs": setting("data.examples", settings.TextPairFiles),
    "scored_pairs": setting("data.examples", settings.ScoredPairFiles),
    "column": setting("data.columns", settings.Columns),
    "skip_bad": setting("data.skip_bad", settings.SkipBad),
    "tokenizer": setting("data.tokenizer", settings.TokenizerName),
    "vocab_size": setting("data.vocab_size", settings.VocabSize),
    "learning_rate": setting("optimizer.learning_rate", settings.LearningRate),
    "warmup_steps": setting("schedule.warmup_steps", settings.WarmupSteps),
    "track": setting("trackers", Annotated[tuple[str, ...], settings.TRACKERS]),
}
BUDGET = settings_of(settings.Limits, "epochs", "tokens", "flops", "minutes")
KINDS = {  # kind of the data that an option names; for --text the files decide
    "source": "pairs",
    "target": "pairs",
    "images": "images",
    "labelled": "labelled_text",
    "labelled_tokens": "labelled_tokens",
    "chat": "chat",
    "preferences": "preferences",
    "pairs": "text_pairs",
    "scored_pairs": "scored_pairs",
}
NEEDS = {"allow_changes": ("resume",), "gpu": ("plan",)}
EXCLUDES = {
    "resume": (
        "texts",
        "recipe",
        "to",
        "start_from",
        "new_tokens",
        "plan",
        "find_rate",
        *(name for name in FIELDS if name != "steps"),
        *BUDGET,
    ),
    "steps": tuple(BUDGET),
    "text": tuple(KINDS),
    "texts": tuple(KINDS),
    "images": ("tokenizer", "vocab_size", "sequence_length", "new_tokens", "column"),
    "find_rate": ("plan", "force", "steps", "learning_rate", "warmup_steps", "patience", "track", *BUDGET),
}


Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="Training text, as for --text.")]
RecipeFile = Annotated[Path | None, typer.Option(help="Recipe file; options override it.")]
Resume = Annotated[Path | None, typer.Option(help="Resume this run; --steps sets a new total number of steps.")]
AllowChanges = Annotated[
    bool, typer.Option("--allow-changes", help="Resume even if the recipe, the data or extensions have changed.")
]
From = Annotated[
    Path | None, typer.Option("--from", metavar="MODEL", help="Start from the weights and tokenizer of this model.")
]
AddTokens = Annotated[
    str | None,
    typer.Option(
        "--add-tokens",
        metavar="A,B|FILE",
        help="Tokens to add to the tokenizer: comma-separated, or a file with one per line.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set another field of the recipe, or of the model as spec.PATH; may be repeated.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Train even if the estimated memory exceeds the free memory.")]
Plan = Annotated[
    str | None,
    typer.Option(
        metavar="[NODESxGPUS]",
        help="Only estimate cost, memory and time, on this machine or on a cluster such as 16x8.",
    ),
]
Gpu = Annotated[str | None, typer.Option(help=f"Device type of the cluster.  [default: {GPU}]")]
FindRate = Annotated[
    bool,
    typer.Option("--find-rate", help="Only run a learning rate range test and suggest a rate; --to FILE.png plots it."),
]


def recipe_fields(options: dict[str, Any], text_files: list[str] | None, new_tokens: str | None) -> dict[str, Any]:
    """Return the recipe fields set on the command line, by path.

    Args:
        options: values of the options in `FIELDS`.
        text_files: positional arguments, added to --text.
        new_tokens: value of --add-tokens.

    Raises:
        SpecError: the options name data of several kinds.
    """
    from archetype.errors import SpecError

    options = options | {"text": [*(options.get("text") or ()), *(text_files or ())] or None}
    fields = values_of(FIELDS, options)
    for option, kind in KINDS.items():
        # two options may name the same kind, such as --source and --target
        if options.get(option) and fields.setdefault("data.kind", kind) != kind:
            cause = f"cannot be combined with data of kind {fields['data.kind']}"
            raise SpecError(f"--{option}", cause, "use data of one kind")
    return fields if new_tokens is None else fields | {"add_tokens": _names(new_tokens)}


def _names(value: str) -> tuple[str, ...]:
    # commas separate tokens, unless the value is the name of a file: there a token may have commas
    from archetype.data.text_files import read_lines_text

    file, remedy = Path(value), "write a text file with one token per line"
    return tuple(filter(None, read_lines_text(file, remedy).splitlines() if file.is_file() else value.split(",")))
