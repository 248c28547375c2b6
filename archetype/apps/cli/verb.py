"""Commands with sectioned help, and checks of options that exclude or need each other."""

import gc
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from archetype.errors import SpecError, enumeration

WRITTEN = "archetype.written"  # context key: the arguments after the command
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH"}  # placeholders of values, by typer's type names
LARGEST = {bool: 1, int: 2**63 - 1, float: 3.4e38}  # int64, float32
KEPT = 2**30  # bytes of freed memory kept by commands that run models: each layer reuses what the previous one freed


class Verb(TyperCommand):
    """Command that reads the option tables of its module.

    Attributes:
        sections: heading -> names of its options; other options come last (`SECTIONS`).
        optional_values: option -> (value if none is given, pattern of a value) (`OPTIONAL_VALUES`).
        needs: option -> options of which at least one must be given (`NEEDS`).
        excludes: option -> options that it cannot be combined with (`EXCLUDES`).
        reads_texts: whether the command reads large texts, so that freed memory is kept for reuse.
        ends_soon: whether the command is short, so that garbage collection is disabled.
    """

    sections: Mapping[str, tuple[str, ...]] = {}
    optional_values: Mapping[str, tuple[str, str]] = {}
    needs: Mapping[str, tuple[str, ...]] = {}
    excludes: Mapping[str, tuple[str, ...]] = {}
    reads_texts = False
    ends_soon = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments and check their combination. An option given without a value gets its default value."""
        # for messages that show the command to run next
        ctx.meta[WRITTEN] = shlex.join(args)
        for option, (alone, form) in self.optional_values.items():
            # typer has no options with an optional value, so the value is inserted
            if option in args and not re.fullmatch(form, (*args, "")[args.index(option) + 1]):
                args = [*args]
                args.insert(args.index(option) + 1, alone)
        rest = super().parse_args(ctx, args)  # --help exits here
        self._refuse_extreme_numbers(ctx)
        self._refuse_without_effect(ctx)
        if not self.ends_soon:
            gc.enable()  # `main` has disabled it
        if self.reads_texts:
            from archetype.machine.allocation import keep_freed_memory

            keep_freed_memory(KEPT)
        return rest

    def _refuse_extreme_numbers(self, ctx: Any) -> None:
        # Python's numbers have no limits, tensors have: beyond int64 or float32 they fail later, with a traceback
        for parameter in self.params:
            written = _written(parameter)
            value = ctx.params.get(parameter.name)
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, float) and not math.isfinite(item):
                    cause, remedy = f"{item} is not a finite number", "use a number"
                elif isinstance(item, int | float) and abs(item) > (limit := LARGEST[type(item)]):
                    side = ("large", f"most {limit}") if item > 0 else ("small", f"least {-limit}")
                    cause, remedy = f"{item:.9g} is too {side[0]}", f"use at {side[1]}"
                else:
                    continue
                raise SpecError(written, cause, remedy)

    def _refuse_without_effect(self, ctx: Any) -> None:
        # an option that the command would ignore is refused, so that nobody believes it to have worked
        written = {str(parameter.name): _written(parameter) for parameter in self.params}
        chosen = [name for name in written if ctx.get_parameter_source(name).name == "COMMANDLINE"]
        for name in chosen:
            partners = [partner for partner in self.needs.get(name, ()) if partner in written]
            if partners and not any(partner in chosen for partner in partners):
                needed = enumeration((written[partner] for partner in partners), "or")
                remedy = f"add {needed}, or remove {written[name]}"
                raise SpecError(written[name], f"has no effect without {needed}", remedy)
            for other in self.excludes.get(name, ()):
                if other in chosen:
                    cause = f"cannot be combined with {written[name]}"
                    raise SpecError(written[other], cause, "use exactly one of them")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return `[OPTIONS]` and the arguments, with optional arguments in brackets."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_name(each) if each.required else f"[{_name(each)}]" for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, sections, and the remaining options."""
        section_of = {name: section for section, names in self.sections.items() for name in names}
        section_order = {name: index for index, name in enumerate(section_of)}
        records: dict[str, list[Any]] = {name: [] for name in ("Arguments", *self.sections, "Options")}
        for parameter in sorted(
            self.get_params(ctx), key=lambda one: section_order.get(one.name or "", len(section_order))
        ):
            is_option = parameter.param_type_name == "option"
            if record := parameter.get_help_record(ctx):
                name, help_ = record
                name = re.sub(r" <(.*)>", lambda kind: f" {_metavar(kind[1])}", name) if is_option else _name(parameter)
                section = section_of.get(parameter.name or "", "Options") if is_option else "Arguments"
                records[section].append((name, help_))
        for section, rows in records.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


def _written(parameter: Any) -> str:
    # --steps, or MODEL without brackets and dots
    is_option = parameter.param_type_name == "option"
    return str(parameter.opts[0]) if is_option else _name(parameter).strip("[].")


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _metavar(kind: str) -> str:
    # typer writes INTEGER RANGE or [a|b]; a choice is its own placeholder
    kind = kind.removesuffix(" range").removeprefix("list[").removesuffix("]").lower() if "|" not in kind else kind
    return METAVARS.get(kind, kind)
