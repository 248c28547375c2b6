"""Extensions: parts registered in a program or notebook, or by a Python file that the user names."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from archetype.errors import ArchetypeError, SpecError
from archetype.spec.kinds import Part, part
from archetype.spec.registry import PROVIDED, provides

if TYPE_CHECKING:
    from torch import nn

    from archetype.cost.registry import PartCost
    from archetype.models.cost import ModelCost
    from archetype.roles.pattern import PatternRule
    from archetype.tokenizers import Tokenizer

T = TypeVar("T", bound="type[Part] | type[Tokenizer]")
PREFIX = "archetype_extension_"  # prefix of the module names of extensions
INCOMPLETE = {"module": "a part of a specification needs a module", "rule": "a pattern needs a rule"}


def register(
    kind: T,
    *,
    module: type[nn.Module] | Callable[..., Any] | None = None,
    cost: type[PartCost] | type[ModelCost] | None = None,
    rule: type[PatternRule[Any]] | None = None,
) -> T:
    """Register a kind of part, so that specifications and recipes can name it and every command accepts it.

    Args:
        kind: a subclass of a role of `archetype.spec` (Mixer, FeedForward, Norm, Activation, Router, EmbeddingPosition,
            MixerPosition, Pattern, KeySelection, Wiring, Residual, TokenEmbedding, Head, ModelSpec), of
            `archetype.training` (ObjectiveConfig, Optimizer, Schedule, Data, Tracker), `Decision` of
            `archetype.studies.decisions`, or `archetype.tokenizers.Tokenizer`; its `kind` is its name in files.
        module: torch module of the part; `archetype/nn/registry.py` lists the arguments for each role.
        cost: class that computes the part's cost (default: its module is counted on the meta device).
        rule: for a pattern, the function that decides which positions attend to each other.

    Returns:
        The class, so that `register` can decorate a class that needs no other argument.

    Raises:
        SpecError: another class has this kind, or a module or rule is missing.
    """
    if not issubclass(kind, Part):
        from archetype.tokenizers import register_tokenizer

        return register_tokenizer(kind)
    capabilities = {"module": module, "cost": cost, "rule": rule}
    # such as a module for a mixer; settings of a recipe need nothing
    if kind.needs and capabilities[kind.needs] is None:
        raise SpecError(kind.__name__, INCOMPLETE[kind.needs], f"register(..., {kind.needs}={kind.needs.upper()})")
    cls: Any = part(kind)  # checked first, so that a refusal registers nothing
    for name, capability in capabilities.items():
        if capability is not None:
            provides(name, cls)(capability)
    if module is not None and cost is None:  # an inherited cost does not apply to this module
        provides("cost", cls)(None)
    if kind.needs:
        from archetype import built_costs  # noqa: F401  # counts the built modules of external parts
    return kind


def load_extension(file: Path) -> None:
    """Run a Python file that registers parts. Pass only a path that the user gave, never a path read from a file.

    Raises:
        ArchetypeError: the file does not exist or fails; the message names the line.
    """
    name = f"{PREFIX}{file.stem}"
    if not file.is_file():
        raise SpecError(str(file), "there is no such file", "pass the path of a Python file to --extension")
    other = getattr(sys.modules.get(name), "__file__", None)
    if other and Path(other).resolve() != file.resolve():  # a file of the same name in another folder
        name = f"{name}_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    module_spec = importlib.util.spec_from_file_location(name, file)
    if module_spec is None or module_spec.loader is None:
        raise SpecError(str(file), "is not a Python file", "pass a file that ends in .py")
    module = importlib.util.module_from_spec(module_spec)
    # before the code runs: dataclasses and pickle look a class's module up by name
    sys.modules[name] = module
    vars(module)["__sha256__"] = hashlib.sha256(file.read_bytes()).hexdigest()  # the file may be edited later
    with one_line_failure(file, "fix the extension"):
        module_spec.loader.exec_module(module)


def failure_of_extension(error: BaseException) -> SpecError | None:
    """Describe in one line an error raised by an extension: file, line and part. Return None for other errors."""
    files = {
        file: name
        # a copy: another thread may import meanwhile
        for name, module in list(sys.modules.items())
        if name.startswith(PREFIX) and (file := getattr(module, "__file__", None))
    }
    # the innermost frame in an extension; frames below it are in libraries that it calls
    trace, last = error.__traceback__, None
    while trace is not None:
        last = trace if trace.tb_frame.f_code.co_filename in files else last
        trace = trace.tb_next
    if last is None:
        return None
    code, owner = last.tb_frame.f_code, type(last.tb_frame.f_locals.get("self"))
    kinds = [kind for (_, kind), value in list(PROVIDED.items()) if owner in (value, kind) and issubclass(kind, Part)]
    part_of = f"{kinds[0].roles()[0].role_name()} {kinds[0].model_fields['kind'].default}, " if kinds else ""
    cause = f"{part_of}{code.co_qualname}: {type(error).__name__}: {error}"
    return SpecError(f"{code.co_filename}:{last.tb_lineno}", cause, "--verbose shows the trace")


@contextmanager
def one_line_failure(file: Path, remedy: str) -> Iterator[None]:
    """Report an exception of the user's Python file in one line, with the line of the file that failed.

    Raises:
        ArchetypeError: the file fails.
    """
    try:
        yield
    except ArchetypeError as error:
        raise error.at(str(file)) from None
    except Exception as error:
        trace, line = error.__traceback__, 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(file) else line
            trace = trace.tb_next
        # a file that does not compile has no frame
        line = error.lineno or line if isinstance(error, SyntaxError) else line
        raise SpecError(f"{file}:{line}", f"{type(error).__name__}: {error}", remedy) from error
