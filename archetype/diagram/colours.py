"""Colors of diagrams by role, for light and dark themes."""

from typing import NamedTuple


class Colours(NamedTuple):
    """Colors of one theme. Each role has a pale color for backgrounds and a full color for edges and bars."""

    paper: str
    ink: str
    quiet: str
    line: str
    box: str
    track: str
    block: str
    edge: str
    roles: dict[str, tuple[str, str]]
    changes: dict[str, str]
    tint: str  # for boxes that differ only in size


LIGHT = Colours(
    paper="#ffffff", ink="#1c2430", quiet="#66707f", line="#7b8594", box="#ffffff", track="#e9ecf1",
    block="#f8f9fb", edge="#d5dae2",
    roles={
        "mixer": ("#e9f0fb", "#3d6fb8"), "feedforward": ("#e6f3ec", "#3a8a64"), "norm": ("#f4f1e8", "#a58c4e"),
        "position": ("#fbf0df", "#c07f2b"), "embedding": ("#efeafa", "#7657b3"), "head": ("#fae9ee", "#b4486c"),
        "end": ("#eef1f5", "#7b8594"), "operation": ("#f1f3f6", "#b3bbc7"), "rail": ("#4a5565", "#4a5565"),
        "node": ("#ffffff", "#4a5565"), "layer": ("#eef1f5", "#7b8594"),
        "layer0": ("#e9f0fb", "#3d6fb8"), "layer1": ("#e6f3ec", "#3a8a64"), "layer2": ("#fbf0df", "#c07f2b"),
        "layer3": ("#efeafa", "#7657b3"), "layer4": ("#fae9ee", "#b4486c"), "layer5": ("#f4f1e8", "#a58c4e"),
    },
    changes={"added": "#1a8f4a", "removed": "#cf3341", "changed": "#d58a00", "resized": "#8a6d1f"},
    tint="#fff3d1",
)  # fmt: skip
DARK = Colours(
    paper="#14171c", ink="#e6eaf0", quiet="#98a2b1", line="#76808f", box="#20252d", track="#343b46",
    block="#191d23", edge="#343b46",
    roles={
        "mixer": ("#1b2636", "#7ba6e6"), "feedforward": ("#192a22", "#6fc096"), "norm": ("#29261b", "#cdb676"),
        "position": ("#2d2417", "#e3a859"), "embedding": ("#251f34", "#a98ee0"), "head": ("#301c25", "#e0849f"),
        "end": ("#232933", "#98a2b1"), "operation": ("#232933", "#566070"), "rail": ("#aeb8c6", "#aeb8c6"),
        "node": ("#14171c", "#aeb8c6"), "layer": ("#232933", "#98a2b1"),
        "layer0": ("#1b2636", "#7ba6e6"), "layer1": ("#192a22", "#6fc096"), "layer2": ("#2d2417", "#e3a859"),
        "layer3": ("#251f34", "#a98ee0"), "layer4": ("#301c25", "#e0849f"), "layer5": ("#29261b", "#cdb676"),
    },
    changes={"added": "#4cc27c", "removed": "#f0717c", "changed": "#f0b23e", "resized": "#d8bd74"},
    tint="#3a3014",
)  # fmt: skip


class Paint(NamedTuple):
    """Fill color and edge of an area."""

    fill: str
    edge: str
    width: float = 1.0
    dashed: bool = False


def area_paint(style: str, change: str, colours: Colours) -> Paint:
    # "box mixer shared": kind of area, role, and whether the weights are shared
    first, _, name = style.partition(" ")
    name, _, shared = name.partition(" ")
    pale, full = colours.roles.get(name or first, (colours.box, colours.line))
    paints = {
        "box": Paint(
            pale if name in ("end", "operation", "norm", "layer") or name.startswith("layer") else colours.box,
            full,
            1.0,
            bool(shared),
        ),
        "container": Paint(pale, "none"),
        "bar": Paint(full, "none"),
        "track": Paint(colours.track, "none"),
        "block": Paint(colours.block, colours.edge),
        "repeat": Paint("none", colours.quiet, 1.2),
        "expert": Paint(pale_of("feedforward", colours), full_of("feedforward", colours), 0.8),
        "card": Paint(pale_of("feedforward", colours), full_of("feedforward", colours), 0.8),
        "node": Paint(colours.roles["node"][0], colours.roles["node"][1], 1.8),
        "rail": Paint(colours.roles["rail"][0], "none"),
        "fold": Paint(colours.ink, "none"),
        "edge": Paint(full, "none"),
        "pill": Paint(full_of("feedforward", colours), "none"),
        "model": Paint("none", colours.edge),
    }
    paint = paints[first]
    if change == "resized":
        return paint._replace(fill=colours.tint, edge=colours.changes[change] if paint.edge == "none" else paint.edge)
    return paint._replace(edge=colours.changes[change], width=2.2) if change else paint


def text_colour(style: str, colours: Colours) -> str:
    if style in colours.changes:
        return colours.changes[style]
    if style in ("fold", "pill") or style.startswith("layer"):
        return colours.paper
    return {"quiet": colours.quiet, "rail": colours.roles["rail"][1]}.get(style, colours.ink)


def line_paint(style: str, colours: Colours) -> Paint:
    full = {name: pair[1] for name, pair in colours.roles.items()}
    return {
        "stream": Paint("none", full["rail"], 3.0),
        "branch": Paint("none", colours.line, 1.3),
        "source": Paint("none", full["embedding"], 1.6),
        "state": Paint("none", full["position"], 1.4, True),
        "tied": Paint("none", full["embedding"], 1.3, True),
    }[style]


def pale_of(role: str, colours: Colours) -> str:
    return colours.roles[role][0]


def full_of(role: str, colours: Colours) -> str:
    return colours.roles[role][1]
