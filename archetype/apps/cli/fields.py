"""Options of a command from fields of settings classes and from groups of options."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from archetype.apps.cli.options import complete_presets
from archetype.spec.base import Spec
from archetype.spec.describe import field_descriptions

SECOND_NAMES = {"learning_rate": "--lr"}  # names that users know from other programs
COMPLETIONS = {"spec": complete_presets}
Verb = TypeVar("Verb", bound=Callable[..., None])


class SettingOption(NamedTuple):
    """Field that an option sets, with its path, such as optimizer.learning_rate, and a sentence about it."""

    path: str
    field: FieldInfo
    about: str


def settings_of(cls: type[Spec], *names: str, **paths: str) -> dict[str, SettingOption]:
    """Return fields of a settings class by option name.

    Args:
        names: fields whose option has the same name as the field.
        paths: option name -> path, which begins with a field of the class.
    """
    by_option, texts = dict(zip(names, names, strict=True)) | paths, field_descriptions(cls)
    fields = {option: path.partition(".")[0] for option, path in by_option.items()}
    return {
        option: SettingOption(by_option[option], cls.model_fields[field], texts[field][0].upper() + texts[field][1:])
        for option, field in fields.items()
    }


def setting(path: str, annotation: Any) -> SettingOption:
    """Return the field at a path of a union (data, optimizers) whose class is not known yet."""
    field = FieldInfo.from_annotation(annotation)
    return SettingOption(path, field, str(field.description))


def takes(settings: Mapping[str, SettingOption], defaults: Mapping[str, str] | None = None) -> Callable[[Verb], Verb]:
    """Decorate a command: replace its `**options` with one option for each setting, with default None.

    Args:
        settings: fields by option name.
        defaults: defaults shown in the help where they differ from the fields' defaults.
    """

    def decorate(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        parameters = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        # typer reads the signature; None tells an option that is not given from one set to the default
        added = [_parameter(option, each, (defaults or {}).get(option)) for option, each in settings.items()]
        verb.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
        return verb

    return decorate


def with_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: replace each parameter whose type is a group of options by these options.

    A group is a `NamedTuple` whose fields are annotated like the parameters of a command.
    """
    signature = inspect.signature(verb, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for each in signature.parameters.values():
        group = each.annotation
        if not hasattr(group, "_fields"):
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[each.name] = group
        for name, annotation in get_type_hints(group, include_extras=True).items():
            default = group._field_defaults[name]
            option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            parameters.append(option)

    @functools.wraps(verb)
    def run(**values: Any) -> None:
        # typer leaves out an option that only has a callback
        chosen = {
            name: group(**{field: values.pop(field) for field in group._fields if field in values})
            for name, group in groups.items()
        }
        verb(**values, **chosen)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def values_of(settings: Mapping[str, SettingOption], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the given options, keyed by the paths of their fields."""
    values = {each.path: options[option] for option, each in settings.items() if options.get(option) is not None}
    # typer gives lists, specs have tuples
    return {path: tuple(value) if isinstance(value, list) else value for path, value in values.items()}


def _parameter(option: str, setting: SettingOption, default: str | None) -> inspect.Parameter:
    field, help_ = setting.field, setting.about
    kind = option_type(field.annotation)
    if kind == list[str]:
        help_ = f"{help_.removesuffix('.')}; may be repeated."
    # only shown: the option's own default stays None, so that it does not override a recipe file
    if default is None and not field.is_required() and field.default not in (None, ()) and field.default is not False:
        default = str(field.default)
    about = typer.Option(
        f"--{option.replace('_', '-')}",
        *filter(None, [SECOND_NAMES.get(option)]),
        help=help_ if default is None else f"{help_}  [default: {default}]",
        autocompletion=COMPLETIONS.get(option),
    )
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, about]
    )


def option_type(annotation: Any) -> Any:
    """Return the type of an option: int for `Size | None`, list[str] for a tuple, str for a part."""
    origin = get_origin(annotation)
    if origin in (Annotated, Union, UnionType):
        return option_type(get_args(annotation)[0])
    if origin is tuple:
        return list[str]
    return annotation if origin is Literal or annotation in (int, float, bool) else str
