"""The command `explain`: description, fields, modules and cost of a kind, shown in a preset."""

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from archetype.apps.cli.options import Json
from archetype.apps.cli.output import print_json

if TYPE_CHECKING:
    from archetype.cost.formula import Formula
    from archetype.models.block.cost import BlockCost
    from archetype.models.stack.spec import StackView
    from archetype.spec.base import Spec

EXCLUDES = {"everything": ("kind",)}
# the sublayers of a block, and the field of each
CONTENTS = {"wiring": "wiring", "mixer": "mixer", "cross": "cross_attention", "feedforward": "feedforward"}
SHOWN_IN = "llama-3-8b"  # the preset searched first, with these changes for kinds that no preset has
ASSIGNMENTS = {
    "gated_delta_net": "layers[*].mixer={kind: gated_delta_net, num_heads: 32}",
    "linear_attention": "layers[*].mixer={kind: linear_attention, num_heads: 32}",
    "mamba3": "layers[*].mixer={kind: mamba3, num_heads: 128}",
    "mlstm": "layers[*].mixer={kind: mlstm, num_heads: 32}",
    "rg_lru": "layers[*].mixer={kind: rg_lru, num_heads: 32}",
    "rwkv4": "layers[*].mixer=rwkv4",
    "rwkv7": "layers[*].mixer={kind: rwkv7, num_heads: 64}",
    "channel_mixing": "layers[*].feedforward={kind: channel_mixing, d_ff: 16384}",
    "short_convolution": "layers[*].mixer={kind: short_convolution}",
    "batch": "layers[*].wiring.norm={kind: batch}",
    "dynamic_erf": "layers[*].wiring.norm={kind: dynamic_erf}",
    "dynamic_tanh": "layers[*].wiring.norm={kind: dynamic_tanh}",
    "parallel": "layers[*].wiring.kind=parallel",
    "dynamic": "layers[*].mixer.position.scaling={kind: dynamic, factor: 2.0, original_context_length: 8192}",
    "relu2": "layers[*].feedforward.activation=relu2",
    "tanh": "layers[*].feedforward.activation=tanh",
    "eight_thirds": "layers[*].feedforward.d_ff={kind: eight_thirds}",
}


class Usage(NamedTuple):
    """Place where a preset uses a part of a kind.

    Attributes:
        source: name of the preset, with changes if any.
        layer: index of the first layer that uses it.
        content: sublayer: mixer, cross, feedforward, or wiring (its norms and residual connections).
        path: path of the sublayer in the specification.
        length: tokens per sequence.
    """

    source: str
    stack: "StackView"
    layer: int
    content: str
    path: str
    length: int

    @property
    def cost(self) -> "BlockCost":
        from archetype.cost.formula import symbol
        from archetype.models.block.cost import BlockCost

        vocabulary = symbol("V", self.stack.vocab_size)  # some blocks have tables with a row per token
        return BlockCost(self.stack.layers[self.layer], symbol("D", self.stack.d_model), vocabulary=vocabulary)


class Module(NamedTuple):
    """Module of a block, or a product without parameters, with its formulas and the sizes of its projection.

    Attributes:
        sizes: features of the input and of the output; None if the module is no projection.
    """

    name: str
    sizes: "tuple[Formula, Formula] | None"
    parameters: "Formula"
    flops: "Formula"


def explain(
    ctx: typer.Context,
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="Kind such as rotary, or role such as pattern (lists its kinds).  [default: list all]",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Explain all kinds; with --json also the commands, and what each kind supports."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Explain a kind: its fields, modules and cost.

    A part of a block is shown in a preset: its YAML, the sizes of its projections, the formulas of its parameters and
    of its FLOPs per token, and the size of its state.
    """
    from archetype.spec import describe

    if as_json:
        print_json(_everything(ctx) if everything else _records(kind))
        return
    if everything:
        print(describe.page(), end="")
        return
    if kind is None:
        print(f"{describe.all_kinds()}\n\n`archetype explain KIND` describes a kind and its fields.")
        return
    # a word may be both a kind and a role: the kind comes first
    names = {str(cls.model_fields["kind"].default) for _, cls in describe.kinds()}
    if kind not in names and (listed := describe.kinds_of(kind)):
        print(f"{listed}\n\n`archetype explain KIND` lists its fields.")
        return
    print(describe.explain(kind))
    parts, _ = describe.classes_of(kind)
    usage = first_usage(str(parts[0][1].model_fields["kind"].default), tuple(cls for _, cls in parts))
    if usage is not None:
        print("\n" + example(usage))


def _everything(ctx: typer.Context) -> dict[str, Any]:
    from archetype.apps.cli.verb_records import EXIT_STATUSES, verb_records
    from archetype.spec.catalogue import catalogue

    verbs = list(verb_records(ctx.find_root().command))
    return {"version": 1, "verbs": verbs, "exit_statuses": EXIT_STATUSES} | catalogue()


def _records(kind: str | None) -> dict[str, Any]:
    # one kind, the kinds of a role, or the names of all
    from archetype.spec import describe
    from archetype.spec.catalogue import record

    names, roles = set[str](), dict[str, list[str]]()
    for role, cls in describe.kinds():
        names.add(name := str(cls.model_fields["kind"].default))
        roles.setdefault(role, []).append(name)
    if kind is None:
        return {"roles": roles}
    word = kind.lower().replace("_", "")
    if kind not in names and (
        listed := {role: members for role, members in roles.items() if describe.is_called(role, word)}
    ):
        return {"roles": listed}
    parts, written = describe.classes_of(kind)
    return {"kind": written, "kinds": [record(role, cls) for role, cls in parts]}


def first_usage(kind: str, parts: "tuple[type[Spec], ...]") -> Usage | None:
    """Return the first block of a preset that has a part of one of these classes. Published decoders come first."""
    from archetype.families import preset
    from archetype.families.index import preset_facts
    from archetype.spec.edit import assign

    if kind == "none":  # the kind of an absent part: no block has anything to show
        return None
    if kind in ASSIGNMENTS:
        changed = assign(preset(SHOWN_IN), [ASSIGNMENTS[kind]])
        return next(_usages(f"{SHOWN_IN} with {ASSIGNMENTS[kind]}", changed, parts), None)
    facts = preset_facts()
    # building a preset takes time, so the search stops at the first block that fits; -tiny ones come last
    names = sorted(facts, key=lambda name: (name != SHOWN_IN, facts[name].kind != "decoder", name.endswith("-tiny")))
    using = (name for name in names if any(issubclass(cls, parts) for cls in _classes_in(name)))
    return next((usage for name in using for usage in _usages(name, preset(name), parts)), None)


def example(usage: Usage) -> str:
    """Return a part's YAML, its projections and the formulas with their values."""
    from archetype.cost.formula import symbol_names
    from archetype.io.yaml import mapping_to_yaml
    from archetype.table import Table

    field = usage.path.rpartition(".")[2]
    written = mapping_to_yaml({field: getattr(usage.stack.layers[usage.layer], field).dump()})
    lines = [f"In {usage.source}, at {usage.path}:", "", written.rstrip()]
    if modules := modules_of(usage):
        names = symbol_names(formula for module in modules for formula in (module.parameters, module.flops))
        cells = [
            [module.name, _sizes(module), *(_number(formula, names) for formula in (module.parameters, module.flops))]
            for module in modules
        ]
        heading = "FLOPs per token" if usage.stack.causal else "FLOPs per sequence"
        lines += ["", str(Table(("module", "projects", "parameters", heading), cells, text_columns=2)), ""]
        lines += [f"{name} = {size.value:,}: {size.meaning}" for size, name in names.items()]
    return "\n".join([*lines, *_state(usage)])


def modules_of(usage: Usage) -> list[Module]:
    """Return the modules of a part."""
    from archetype.cost.formula import ZERO, symbol
    from archetype.cost.work import Work

    cost, length = usage.cost, symbol("T", usage.length)
    # one token of a causal model with a state of `length` tokens, or a whole sequence of an encoder
    work = Work(symbol("B", 1), length, "decode" if usage.stack.causal else "forward", source=length, layer=usage.layer)
    parameters, flops = cost.parameters(), cost.flops(work)
    sizes = {
        f"{part}.{name}": both for part, of in cost.contents.items() for name, both in of.projection_sizes().items()
    }
    names = [name for name in dict.fromkeys([*parameters, *flops]) if _belongs(name, usage.content)]
    modules = [Module(name, sizes.get(name), parameters.get(name, ZERO), flops.get(name, ZERO)) for name in names]
    # products without parameters, such as attention scores, have only FLOPs
    return [module for module in modules if module.parameters or module.flops]


def _state(usage: Usage) -> list[str]:
    from archetype.cost.registry import MixerCost
    from archetype.table import size

    content = usage.cost.contents.get(usage.content)
    if not isinstance(content, MixerCost) or not usage.stack.causal:
        return []
    whole, more = content.state(usage.length), content.state(usage.length + 1)  # numbers
    grows = f", plus {size(2 * (more - whole))} per token" if more > whole else ""
    return ["", f"State of a sequence of {usage.length:,} tokens: {size(2 * whole)} in bfloat16{grows}."]


def _usages(source: str, model: Any, parts: "tuple[type[Spec], ...]") -> Iterator[Usage]:
    for stack in model.stacks:
        for layer, content, part in _contents(stack):
            if any(issubclass(cls, parts) for cls in _classes(part)):
                path = f"{stack.prefix}layers[{layer}].{CONTENTS[content]}"
                yield Usage(source, stack, layer, content, path, model.context_length)


@cache
def _classes_in(name: str) -> "frozenset[type[Spec]]":
    from archetype.families import preset

    contents = (part for stack in preset(name).stacks for _, _, part in _contents(stack))
    return frozenset(cls for part in contents for cls in _classes(part))


def _contents(stack: Any) -> "Iterator[tuple[int, str, Spec | None]]":
    seen = set()  # equal blocks of a stack are one object
    for layer, block in enumerate(stack.layers):
        if id(block) not in seen:
            seen.add(id(block))
            for content, field in CONTENTS.items():
                yield layer, content, getattr(block, field)


def _classes(value: Any) -> "Iterator[type[Spec]]":
    from archetype.spec.base import Spec

    # also of the parts of a part: a rotary position is a field of the attention, not of the block
    if isinstance(value, Spec):
        yield type(value)
        for name in type(value).model_fields:
            yield from _classes(getattr(value, name))


def _belongs(name: str, content: str) -> bool:
    # the norms around contents are top-level modules of a block: they belong to the wiring
    return name.endswith("_norm") and "." not in name if content == "wiring" else name.startswith(f"{content}.")


def _sizes(module: Module) -> str:
    return "" if module.sizes is None else " to ".join(f"{size.value:,}" for size in module.sizes)


def _number(formula: "Formula", names: Any) -> str:
    return f"{formula.text(names)} = {formula.value:,}" if formula else ""
