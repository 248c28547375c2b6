"""Recognize chat templates that render message by message: one rendering contains the renderings of all prefixes."""

from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, Template, nodes

PAST = {
    "index",
    "index0",
    "first",
    "previtem",
    "cycle",
    "changed",
    "depth",
    "depth0",
}  # attributes of a loop that do not depend on later messages
PROMPT = "add_generation_prompt"
CARRIED = {"namespace", "cycler", "joiner"}  # objects that carry data from a message to later text


def writes_in_order(environment: Environment, source: str) -> bool:
    """Return whether a template has a single loop, in which the text of a message does not depend on later messages.

    Outside the loop, only the first message may be read. In the loop, nothing may depend on the number of messages or
    be carried to later messages, and the generation prompt is only tested after the loop. Then a prefix of the messages
    renders as the beginning of the full rendering, followed by the text after the loop.
    """
    tree = environment.parse(source)
    names = {"messages"}
    for assigned in tree.find_all(nodes.Assign):
        value, target = assigned.node, assigned.target
        if isinstance(value, nodes.Name) and value.name in names and isinstance(target, nodes.Name):
            names.add(target.name)
            assigned.node = nodes.Const(None)  # an alias; its uses are checked too
    loops = [
        (index, loop)
        for index, part in enumerate(tree.body)
        for loop in _loops([part])
        if isinstance(loop.iter, nodes.Name) and loop.iter.name in names
    ]
    if len(loops) != 1:
        return False
    ((index, loop),) = loops
    loop.iter = nodes.Const(None)  # the only allowed use of the messages
    named = [name.name for name in tree.find_all(nodes.Name)]
    after = [name.name for part in tree.body[index + 1 :] for name in _names(part)]
    return (
        not loop.recursive
        and loop.test is None
        and CARRIED.isdisjoint(named)
        and after.count(PROMPT) == named.count(PROMPT)
        and not any(_reads_others(node, names) for node in tree.find_all(nodes.Node))
        and all(map(_asks_of_the_past, loop.body))
    )


def starts_of_messages(template: Template, values: dict[str, Any]) -> tuple[str, list[int]]:
    """Return a rendering, and the offsets of each message's text and, last, of the loop's end."""
    pieces, starts = [], list[int]()
    length = 0

    class Recorded(list[Any]):  # notes how much has been rendered when the loop asks for the next message
        def __iter__(self) -> Iterator[Any]:
            for message in super().__iter__():
                starts.append(length)
                yield message
            starts.append(length)

    for piece in template.generate(values | {"messages": Recorded(values["messages"])}):
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), starts


def _loops(body: list[nodes.Node]) -> Iterator[nodes.For]:
    # loops at the top level or inside conditions: their output goes directly into the text
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _loops([*node.body, *node.elif_, *node.else_])


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


def _reads_others(node: nodes.Node, names: set[str]) -> bool:
    # whether a node uses the messages other than by `messages[0]`
    is_first = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == 0
    return not is_first and any(
        isinstance(child, nodes.Name) and child.name in names and child.ctx == "load"
        for child in node.iter_child_nodes()
    )


def _asks_of_the_past(node: nodes.Node) -> bool:
    # whether every use of `loop` is known before the next message; an inner loop has its own variable
    if isinstance(node, nodes.For):
        return _asks_of_the_past(node.iter)
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
        return node.attr in PAST
    if isinstance(node, nodes.Name):
        return node.name != "loop"
    return all(map(_asks_of_the_past, node.iter_child_nodes()))
