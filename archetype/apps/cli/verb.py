"""A verb of the command line: its help in sections, and what may not be chosen together."""

import gc
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from archetype.errors import SpecError, enumeration

WRITTEN = "archetype.written"  # of a context: what stands behind the verb
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH"}  # of values, by typer's names of their types
LARGEST = {bool: 1, int: 2**63 - 1, float: 3.4e38}  # int64, float32
KEPT = 2**30  # bytes of freed memory that stay with verbs that read: each layer takes what the one before gave back


class Verb(TyperCommand):
    """A verb, as constants of its module describe it.

    Attributes:
        sections: of its help, with the names of their options; the others come last (`SECTIONS`).
        optional_values: what an option without a value means, and the form of a value (`OPTIONAL_VALUES`).
        needs: options that have an effect only with one of some others (`NEEDS`).
        excludes: options that leave some others without an effect (`EXCLUDES`).
        reads_texts: whether freed memory is kept.
        ends_soon: whether garbage is never collected.
    """

    sections: Mapping[str, tuple[str, ...]] = {}
    optional_values: Mapping[str, tuple[str, str]] = {}
    needs: Mapping[str, tuple[str, ...]] = {}
    excludes: Mapping[str, tuple[str, ...]] = {}
    reads_texts = False
    ends_soon = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, and be ready to run; an option that may stand alone gets what it means then."""
        ctx.meta[WRITTEN] = shlex.join(args)
        for option, (alone, form) in self.optional_values.items():
            if option in args and not re.fullmatch(form, (*args, "")[args.index(option) + 1]):
                args = [*args]
                args.insert(args.index(option) + 1, alone)
        rest = super().parse_args(ctx, args)  # the help ends here
        self._refuse_extreme_numbers(ctx)
        self._refuse_without_effect(ctx)
        if not self.ends_soon:
            gc.enable()
        if self.reads_texts:
            from archetype.machine.allocation import keep_freed_memory

            keep_freed_memory(KEPT)
        return rest

    def _refuse_extreme_numbers(self, ctx: Any) -> None:
        """Refuse numbers that are not finite, and those beyond what torch and the file formats hold.

        Raises:
            SpecError: names the option and the number.
        """
        for parameter in self.params:
            written = _written(parameter)
            value = ctx.params.get(parameter.name)
            for number in value if isinstance(value, list | tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    cause, remedy = f"{number} is not a finite number", "give a number"
                elif isinstance(number, int | float) and abs(number) > (limit := LARGEST[type(number)]):
                    side = ("large", f"most {limit}") if number > 0 else ("small", f"least {-limit}")
                    cause, remedy = f"{number:.9g} is too {side[0]}", f"use at {side[1]}"
                else:
                    continue
                raise SpecError(written, cause, remedy)

    def _refuse_without_effect(self, ctx: Any) -> None:
        """Refuse an option that changes nothing beside the others, or without another.

        Raises:
            SpecError: names both.
        """
        written = {str(parameter.name): _written(parameter) for parameter in self.params}
        chosen = [name for name in written if ctx.get_parameter_source(name).name == "COMMANDLINE"]
        for name in chosen:
            partners = [one for one in self.needs.get(name, ()) if one in written]
            if partners and not any(one in chosen for one in partners):
                cause = f"has no effect without {enumeration((written[one] for one in partners), 'or')}"
                raise SpecError(written[name], cause, "add it, or leave this out")
            for other in self.excludes.get(name, ()):
                if other in chosen:
                    cause = f"cannot be combined with {written[name]}"
                    raise SpecError(written[other], cause, "give one of them")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return `[OPTIONS]` and the arguments, in brackets if they are optional."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_name(each) if each.required else f"[{_name(each)}]" for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, sections, and options that belong to none."""
        section_of = {name: section for section, names in self.sections.items() for name in names}
        places = {name: place for place, name in enumerate(section_of)}
        records: dict[str, list[Any]] = {name: [] for name in ("Arguments", *self.sections, "Options")}
        for parameter in sorted(self.get_params(ctx), key=lambda one: places.get(one.name or "", len(places))):
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
    """Return the name of a parameter in messages: --steps, MODEL."""
    is_option = parameter.param_type_name == "option"
    return str(parameter.opts[0]) if is_option else _name(parameter).strip("[].")


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _metavar(kind: str) -> str:
    """Return the placeholder of a value; choices name themselves."""
    kind = kind.removesuffix(" range").removeprefix("list[").removesuffix("]").lower() if "|" not in kind else kind
    return METAVARS.get(kind, kind)
