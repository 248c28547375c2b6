"""Chat templates that write one message after the other, so that a rendering holds those of all beginnings."""

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
}  # of a loop: without what follows
PROMPT = "add_generation_prompt"
CARRIED = {"namespace", "cycler", "joiner"}  # what one message leaves to the next, and to the end


def writes_in_order(environment: Environment, source: str) -> bool:
    """Whether a template is a loop over the messages in which each is written by itself and by what is before it.

    Nothing else may read the messages but the first of them, nothing in the loop may ask how many there are or be
    carried on, and whether there is a prompt for an answer is asked behind the loop alone. What a beginning of the
    messages becomes is then the rendering up to there, and the text behind the loop.
    """
    tree = environment.parse(source)
    names = {"messages"}
    for assigned in tree.find_all(nodes.Assign):
        value, target = assigned.node, assigned.target
        if isinstance(value, nodes.Name) and value.name in names and isinstance(target, nodes.Name):
            names.add(target.name)
            assigned.node = nodes.Const(None)  # another name for them, whose uses are looked at, too
    loops = [
        (place, loop)
        for place, part in enumerate(tree.body)
        for loop in _loops([part])
        if isinstance(loop.iter, nodes.Name) and loop.iter.name in names
    ]
    if len(loops) != 1:
        return False
    ((place, loop),) = loops
    loop.iter = nodes.Const(None)  # the use that is allowed
    named = [one.name for one in tree.find_all(nodes.Name)]
    behind = [one.name for part in tree.body[place + 1 :] for one in _names(part)]
    return (
        not loop.recursive
        and loop.test is None
        and CARRIED.isdisjoint(named)
        and behind.count(PROMPT) == named.count(PROMPT)
        and not any(_reads_others(one, names) for one in tree.find_all(nodes.Node))
        and all(map(_asks_of_the_past, loop.body))
    )


def starts_of_messages(template: Template, values: dict[str, Any]) -> tuple[str, list[int]]:
    """A rendering, and where in it the loop came to each message; last, where it came to its end."""
    pieces, starts = [], list[int]()
    length = 0

    class Recorded(list[Any]):
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
    """Loops that nothing is around but conditions: what they write is the template's text at once."""
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
    """Whether the messages are used for more than the first of them."""
    is_first = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == 0
    return not is_first and any(
        isinstance(child, nodes.Name) and child.name in names and child.ctx == "load"
        for child in node.iter_child_nodes()
    )


def _asks_of_the_past(node: nodes.Node) -> bool:
    """Whether all that is asked of the loop is known before the next message; a loop within it is of its own."""
    if isinstance(node, nodes.For):
        return _asks_of_the_past(node.iter)
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
        return node.attr in PAST
    if isinstance(node, nodes.Name):
        return node.name != "loop"
    return all(map(_asks_of_the_past, node.iter_child_nodes()))
