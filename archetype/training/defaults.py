"""Default settings of a run, chosen to fit the data, the model and each other."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

from archetype.convert.source import open_spec
from archetype.data.columns import has_no_names, text_column
from archetype.data.images import IMAGE_SUFFIXES, has_pictures, shape_of_images
from archetype.data.records import columns_by_field
from archetype.data.sources import HUGGING_FACE, RECORD_SUFFIXES, SUFFIXES, TEXT_SUFFIXES, expand
from archetype.errors import DataError, SpecError, errors_at
from archetype.io.yaml import read_mapping
from archetype.models.spec import ModelSpec, leaves_vocabulary_open
from archetype.spec.edit import assign, put, put_value
from archetype.surgery.layers import assigned
from archetype.tokenizers import open_tokenizer
from archetype.training.budget import NUM_EVALUATIONS, Budget
from archetype.training.datasets import Data, ImageData, RunningText, TokenizedData
from archetype.training.examples import RecordData
from archetype.training.learning_rate import suitable_rate
from archetype.training.objectives.base import ObjectiveConfig
from archetype.training.pretrained import Pretrained
from archetype.training.recipe import Recipe

SPEC = "llama-tiny"
LEARNED = ("bpe", "byte_bpe", "words")  # tokenizers whose vocabulary size can be set
MAX_VOCAB_SIZE = 4096
MAX_LENGTH = 1024  # tokens per row chosen for a model with a longer context
EPOCHS, MIN_STEPS, MAX_STEPS = 3, 200, 2000
MAX_CORPUS = 2**28  # bytes of text that are held in memory
UNKNOWN_SIZE = 2**30  # bytes assumed for a dataset on the hub
MAX_WARMUP = 100
BYTES = 256  # ids of all bytes; byte_bpe has at least one more, the end token
PICTURE_SIDE, PATCHES_OF_SIDE = 32, 8  # size to which image files are scaled; maximal number of patches per side


def assemble(
    file: Path | None,
    fields: Mapping[str, Any],
    assignments: Sequence[str] = (),
    budget: Budget | None = None,
    pretrained: Pretrained | None = None,
) -> tuple[Recipe, str]:
    """Override fields of a recipe file, or without a file, choose the missing fields of a recipe.

    Args:
        file: recipe file, if any.
        fields: values by path, such as optimizer.learning_rate; None values are ignored.
        assignments: overrides as PATH=VALUE; spec.PATH edits the recipe's specification.
        budget: determines the number of steps.
        pretrained: model to start from, with its tokenizer, and its specification unless another one is set.

    Returns:
        The recipe, and a line that lists the choices made.

    Raises:
        ArchetypeError: a field is invalid; the message names the field, and the file if it contains the field.
    """
    data: dict[str, Any] = read_mapping(file) if file else {}
    for path, value in fields.items():
        if value is not None:
            put_value(data, path, value)
    columns_chosen = _choose_kind(data) if isinstance(data.get("data", {}), dict) else []
    of_spec = [assignment for assignment in assignments if assignment.startswith("spec.")]
    put(data, [assignment for assignment in assignments if assignment not in of_spec])
    objective = data.get("objective")
    # an objective without a kind: its settings are kept until model and data determine the kind
    of_objective = data.pop("objective") if isinstance(objective, dict) and "kind" not in objective else None
    with errors_at(str(file)) if file else nullcontext():
        Recipe.parse(data)  # the given fields must be valid before others are chosen
        if pretrained is not None:
            _take_from(pretrained, data)
        elif isinstance(data.get("teacher"), dict):
            _take_tokenizer(data["teacher"].get("model"), data.setdefault("data", {}))
        chosen = columns_chosen + (_choose(data, bool(budget)) if file is None else [])
        if of_spec:
            edits = [assignment.removeprefix("spec.") for assignment in of_spec]
            donor = None if pretrained is None else pretrained.model.spec
            data["spec"] = _edited(data.get("spec", SPEC), edits, donor)
        if file is None or pretrained is not None:  # after the edits, since the rate depends on the width
            chosen += _choose_rate(data, pretrained is not None)
        if of_objective is not None:
            data["objective"] = _kind_of_objective(data) | of_objective
        return Recipe.parse(data), ", ".join(chosen)


def _take_from(pretrained: Pretrained, data: dict[str, Any]) -> None:
    # another specification is a transplant (see `Pretrained.for_recipe`); another tokenizer is refused
    spec, examples, conflicts = pretrained.model.spec, data.setdefault("data", {}), list[str]()
    written = data.get("spec")
    if isinstance(written, dict) and leaves_vocabulary_open(written):
        written = {"vocab_size": getattr(spec, "vocab_size", None)} | written
    if pretrained.tokenizer is not None:
        source = Path(pretrained.source).absolute()
        conflicts += [
            f"data.{field}"
            for field in ("tokenizer", "vocab_size", "lowercase")
            if (value := examples.get(field)) and not (field == "tokenizer" and Path(value).absolute() == source)
        ]
        examples["tokenizer"] = pretrained.source
    if conflicts:
        raise SpecError(conflicts[0], f"{pretrained.source} already determines it", "remove one of them")
    data["spec"] = (spec if written is None else open_spec(written)).dump()


def _take_tokenizer(teacher: Any, examples: dict[str, Any]) -> None:
    # a new model can learn from a teacher only with the teacher's tokens
    if "tokenizer" not in examples and Path(str(teacher)).exists():
        try:
            open_tokenizer(Path(teacher))
        except DataError as error:
            if error.place != str(teacher):  # a file of the tokenizer is damaged
                raise
            cause = f"{teacher} has no files of a tokenizer, and a new model needs the teacher's"
            raise SpecError("teacher.model", cause, "import the teacher, or name its tokenizer") from None
    examples.setdefault("tokenizer", teacher)


def recipe_for(source: str | dict[str, Any], data: Mapping[str, Any], size: int) -> Recipe:
    """Return the recipe that `assemble` would choose for a specification and `size` bytes of text."""
    fields: dict[str, Any] = {"spec": source, "data": dict(data)}
    _choose(fields, False, size)
    _choose_rate(fields, is_trained=False)
    return Recipe.parse(fields)


def _edited(source: Any, assignments: list[str], donor: ModelSpec | None) -> dict[str, Any]:
    # a vocabulary size that the tokenizer determines stays open
    spec, is_open = _opened(source)
    data = (assigned if spec == donor else assign)(spec, assignments).dump()
    if is_open and not any(assignment.startswith("vocab_size") for assignment in assignments):
        del data["vocab_size"]
    return data


def _opened(source: Any) -> tuple[ModelSpec, bool]:
    # whether the tokenizer determines the vocabulary size; 1 is a placeholder
    is_open = leaves_vocabulary_open(source)
    return open_spec({"vocab_size": 1} | source if is_open else source), is_open


def _kind_of_objective(data: dict[str, Any]) -> dict[str, str]:
    """Return {"kind": KIND} for the first objective that fits a recipe's model and data; {} if no objective fits."""
    (spec, _), examples = _opened(data.get("spec", SPEC)), Recipe.parse(data).data
    configs: dict[str, Any] = ObjectiveConfig.kinds
    return next(({"kind": kind} for kind, cls in configs.items() if cls.model_construct().suits(spec, examples)), {})


def _choose(data: dict[str, Any], has_budget: bool, size: int | None = None) -> list[str]:
    """Fill in the missing fields of a recipe for `size` bytes of text (default: measured). Describe the choices."""
    chosen: dict[str, Any] = {}

    def choose(path: str, value: Any) -> None:
        section: Any = data
        for key in path.split("."):
            section = section.get(key) if isinstance(section, dict) else None
        if section is None:
            put_value(data, path, value)
            chosen[path.rpartition(".")[2]] = value

    examples = data.get("data", {})
    files, kind = examples.get("text"), examples.get("kind", "corpus")
    cls: type[Data] = cast(Any, Data.kinds)[kind]
    if any(examples.get(field) for field in cls.path_fields) and not issubclass(cls, RunningText):
        if "spec" not in data:
            data["spec"], chosen["spec"] = _model_for(cls.parse(examples))
        if issubclass(cls, TokenizedData):
            spec, is_open = _opened(data["spec"])
            room = MAX_VOCAB_SIZE if is_open else getattr(spec, "vocab_size", MAX_VOCAB_SIZE)
            choose("data.tokenizer", "byte_bpe" if room > BYTES else "bytes" if room == BYTES else "characters")
    if files and kind in ("corpus", "documents"):
        if "spec" not in data and data["data"].get("tokenizer", "bytes") != "bytes":
            data["spec"] = {key: value for key, value in open_spec(SPEC).dump().items() if key != "vocab_size"}
            chosen["spec"] = f"{SPEC} with the tokenizer's vocabulary"
        choose("spec", SPEC)
        size = _size(files, TEXT_SUFFIXES if kind == "corpus" else SUFFIXES) if size is None else size
        _choose_for_text(choose, data, size, has_budget)
    if not has_budget and "steps" in data:
        choose("schedule.warmup_steps", min(MAX_WARMUP, int(data["steps"]) // 10))
        choose("evaluate_every", max(1, -(-int(data["steps"]) // NUM_EVALUATIONS)))
    return [f"{name} {value}" for name, value in chosen.items()]


def _model_for(data: Data) -> tuple[dict[str, Any], str]:
    spec = open_spec(data.preset)
    if not isinstance(data, ImageData):
        open_vocabulary = {key: value for key, value in spec.dump().items() if not key.endswith("vocab_size")}
        return open_vocabulary, f"{data.preset} with the tokenizer's vocabulary"
    num_channels, side, num_classes = shape_of_images(Path(data.file)) or (3, PICTURE_SIDE, None)
    fields: dict[str, Any] = {} if num_classes is None else {"head.num_classes": num_classes}
    if spec.image_shape != (num_channels, side):
        # the smallest patch that divides the image into at most PATCHES_OF_SIDE per side
        patch = next(size for size in range(1, side + 1) if side % size == 0 and side // size <= PATCHES_OF_SIDE)
        fields |= {"num_channels": num_channels, "image_size": side, "patch_size": patch}
    spec = assign(spec, [f"{name}={value}" for name, value in fields.items()])
    return spec.dump(), f"{data.preset} for images of {num_channels} x {side} x {side}"


def _choose_for_text(choose: Any, data: dict[str, Any], size: int, has_budget: bool) -> None:
    spec, is_open = _opened(data["spec"])
    vocab_size = MAX_VOCAB_SIZE if is_open else getattr(spec, "vocab_size", MAX_VOCAB_SIZE)
    room = vocab_size if spec.is_causal else vocab_size - 200  # ids for the mask, or the sentinels of spans
    small = "characters" if spec.reads_source else "bytes"  # bytes would leave no ids for sentinels
    choose("data.tokenizer", "byte_bpe" if room > 300 else small)
    if data["data"]["tokenizer"] in LEARNED:
        choose("data.vocab_size", min(room, MAX_VOCAB_SIZE, max(300, size // 200)))
    num_tokens = size if data["data"]["tokenizer"] in ("bytes", "characters") else size // 4  # about 4 bytes per token
    length = min(MAX_LENGTH, num_tokens // 3)
    if length < spec.context_length:
        choose("sequence_length", max(8, length))
    choose("batch_size", 16)
    if not has_budget:  # a few epochs, within bounds
        tokens = data["batch_size"] * (data.get("sequence_length") or spec.context_length)
        choose("steps", min(MAX_STEPS, max(MIN_STEPS, EPOCHS * num_tokens // tokens)))


def _choose_rate(data: dict[str, Any], is_trained: bool) -> list[str]:
    recipe = Recipe.parse({name: value for name, value in data.items() if name != "objective"})
    is_given = "learning_rate" in recipe.optimizer.model_fields_set
    if is_given or not (is_trained or isinstance(recipe.data, RunningText)):
        return []
    spec, adapter = _opened(recipe.spec)[0], recipe.adapter.kind if recipe.adapter else ""
    rate, why = suitable_rate(type(recipe.optimizer), spec, is_trained, adapter)
    put_value(data, "optimizer", recipe.optimizer.dump() | {"learning_rate": rate})
    return [f"learning_rate {rate:g} ({why})"]


def _choose_kind(data: dict[str, Any]) -> list[str]:
    # the kind of the texts, and the text column of records; returns a description of the choices
    examples = data.get("data", {})
    text_files, columns, chosen = examples.get("text"), examples.get("columns", ()), []
    if not _are_names(text_files) or not _are_names(columns):
        return []  # there is no text, or the recipe refuses the fields
    if text_files and "kind" not in examples:
        for name in text_files:
            _check_is_text(name)
        if _are_documents(text_files):
            examples["kind"] = "documents"
    if text_files and columns:
        if examples.get("kind") != "documents":
            raise SpecError("--column", "plain text has no columns", "remove it, or use a file of records")
        examples["field"] = columns_by_field(examples.pop("columns"), ("text",))["text"]
    if examples.get("kind") == "documents" and text_files and "field" not in examples:
        files = [Path(name) for name in expand(text_files, SUFFIXES) if name.endswith(RECORD_SUFFIXES)]
        if files and files[0].is_file() and (column := text_column(files[0], partial(_option_of, files[0]))) != "text":
            examples["field"] = column
            chosen = [f"column {column}"]
    return chosen


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _option_of(file: Path, columns: dict[str, list[Any]]) -> str:
    """Return the remedy if the records fit another kind of data or lack a header; otherwise an empty string."""
    for kind in cast(Any, Data.kinds).values():
        if issubclass(kind, RecordData) and kind.fits(columns):
            return f"train on these records with {kind.option} {file}"
    return "add a header line, such as text, or pass --set data.kind=corpus" if has_no_names(columns) else ""


def _check_is_text(name: str) -> None:
    path = Path(name)
    if name == "-":
        raise DataError("-", "a resumed run has to read its text again", "save it to a file and name the file")
    if name.endswith(RECORD_SUFFIXES) and not any(letter in name for letter in "*?[") and not path.exists():
        raise DataError(name, "there is no such file", "check the path")
    if name.endswith((".npz", *IMAGE_SUFFIXES)) or (path.is_dir() and has_pictures(path)):
        raise DataError(name, "contains images, not text", f"pass it with --images {name}")


def _are_documents(names: Sequence[str]) -> bool:
    # by their file type, or because they are too large to be held in memory
    if any(name.startswith(HUGGING_FACE) for name in names):
        return True
    files = [file for name in names for file in (expand([name], SUFFIXES) if Path(name).is_dir() else [name])]
    return any(name.endswith(RECORD_SUFFIXES) for name in files) or _size(names, SUFFIXES) > MAX_CORPUS


def _size(names: Sequence[str], suffixes: Sequence[str]) -> int:
    if any(name.startswith(HUGGING_FACE) for name in names):
        return UNKNOWN_SIZE
    return sum(Path(file).stat().st_size for file in expand(names, suffixes) if Path(file).is_file())
