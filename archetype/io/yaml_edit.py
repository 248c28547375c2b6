"""Edits of values in a YAML text. Comments and formatting of all other lines are kept."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from archetype.io.yaml import flow, mapping_to_yaml, yaml_value

MAX_LINE = 100  # characters; a longer value is written on separate lines


class Edit(NamedTuple):
    """Replacement of the characters from `start` to `end`."""

    start: int
    end: int
    text: str


def edited(text: str, before: Any, after: Any, short: Any) -> str:
    """Return the text with all values changed that differ between `before` and `after`.

    Args:
        text: YAML text of `before`, in which defaults may be omitted.
        before: plain data with all defaults.
        after: changed data with all defaults.
        short: `after` without defaults, used for new values.
    """
    import yaml

    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # from the end, so that earlier positions stay valid
    edits = sorted({*_edits(text, root, None, before, after, short)}, reverse=True)
    for start, end, replacement in edits:
        text = text[:start] + replacement + text[end:]
    return text


def _edits(text: str, node: Any, key: Any, before: Any, after: Any, short: Any) -> Iterator[Edit]:
    # `key`: the node's key, if it is a value of a mapping in lines of its own
    if before == after:
        return
    are_mappings = isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys()
    are_lists = isinstance(before, list) and isinstance(after, list) and len(before) == len(after)
    if are_mappings and node.id == "mapping" and node.value:
        yield from _edits_of_mapping(text, node, before, after, short)
    elif are_lists and node.id == "sequence" and len(node.value) == len(after):
        shorts = short if isinstance(short, list) and len(short) == len(after) else after
        for child, *values in zip(node.value, before, after, shorts, strict=True):
            yield from _edits(text, child, None, *values)
    else:
        value = short
        # a part without settings is written as its kind
        if node.id == "scalar" and isinstance(value, dict) and value.keys() == {"kind"}:
            value = value["kind"]
        line = flow(value)
        is_block = node.id != "scalar" and not node.flow_style
        if key is not None and (is_block or len(line) > MAX_LINE):
            colon = text.index(":", key.end_mark.index)  # of a long key, in the next line
            yield Edit(colon, _end(node), _behind(key.start_mark.column, value))
        else:
            yield Edit(node.start_mark.index, _end(node), line)


def _edits_of_mapping(
    text: str, node: Any, before: dict[str, Any], after: dict[str, Any], short: Any
) -> Iterator[Edit]:
    marks = ((key.start_mark.index, key.end_mark.index) for key, _ in node.value)
    children = dict(zip((yaml_value(text[start:end], "") for start, end in marks), node.value, strict=True))
    for name, value in after.items():
        if before[name] == value:
            continue
        shorter = short.get(name, value) if isinstance(short, dict) else value
        if name in children:
            key, child = children[name]
            yield from _edits(text, child, None if node.flow_style else key, before[name], value, shorter)
        elif node.flow_style:
            position = node.end_mark.index - 1  # before the brace
            yield Edit(position, position, f"{', ' if children else ''}{name}: {flow(shorter)}")
        else:
            column, last = node.value[0][0].start_mark.column, _end(node)
            end_of_line = text.find("\n", last)
            position = len(text) if end_of_line < 0 else end_of_line  # after a comment
            yield Edit(position, position, f"\n{' ' * column}{name}{_behind(column, shorter)}")


def _behind(column: int, value: Any) -> str:
    # a value after its key in this column, on the same line if it is short
    line = flow(value)
    if len(line) <= MAX_LINE or not isinstance(value, dict | list):
        return f": {line}"
    lines = mapping_to_yaml(value).rstrip("\n").split("\n")
    return ":" + "".join(f"\n{' ' * (column + 2)}{inner}" for inner in lines)


def _end(node: Any) -> int:
    # PyYAML counts the comments and empty lines after a block as part of it
    if node.id == "scalar" or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if node.id == "mapping" else last)
