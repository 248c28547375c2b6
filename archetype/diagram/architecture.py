"""Whole models: what stands below and above their stacks, and how two stacks are connected."""

from dataclasses import replace

from archetype.cost.formula import Formula, symbol
from archetype.diagram.captions import title
from archetype.diagram.costs import ReportCosts
from archetype.diagram.inside import activation_name
from archetype.diagram.rail import GAP, SLIM, SUM, H, Rail, W
from archetype.diagram.scene import Box, Container, Layout, Measure, Note, Scene
from archetype.diagram.stack import put_stack
from archetype.diagram.text import fitted, text_width, wrapped
from archetype.errors import SpecError, one_line
from archetype.estimate.report import CostReport
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.megabyte.cost import MegaByteCost
from archetype.models.megabyte.spec import MegaByte
from archetype.models.ngram.spec import NGram
from archetype.models.stack.cost import StackCost
from archetype.models.vision.cost import VisionEncoderCost
from archetype.models.vision.spec import VisionEncoder
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import ClassificationHead, LanguageModelHead, MaskedLanguageModelHead
from archetype.parts.norm.spec import NoNorm
from archetype.parts.position.spec import Learned, NoPosition
from archetype.spec.base import Spec

EDGE = 28.0  # around the picture
TIE = W / 2 + 26  # where wires of shared tables stand, left of the rail
BETWEEN = 92.0  # two stacks
UNITS: dict[Measure, str] = {
    "parameters": "parameters", "active": "parameters that one token meets", "flops": "FLOPs of a forward pass",
    "bytes": "bytes of the weights",
}  # fmt: skip


class Drawer:
    """Draws one model.

    Args:
        report: its costs.
        unfold: whether each layer is drawn for itself.
    """

    def __init__(self, report: CostReport, unfold: bool = False) -> None:
        self.unfold = unfold
        self.report, self.costs, self.spec = report, ReportCosts(report), report.spec

    def layout(self) -> Layout:
        """The model's boxes, containers and wires; the left rail stands at x = 0."""
        model = self.spec
        match model:
            case NGram():
                return self._ngram(model).layout
            case MegaByte():
                return self._megabyte(model)
            case EncoderDecoder():
                return self._encoder_decoder(model)
            case VisionEncoder():
                return self._vision(model).layout
            case Decoder() | Encoder():
                return self._stack(model).layout
        raise SpecError("kind", f"models of kind {model.kind} cannot be drawn", "draw another")

    def put_rest(self, layout: Layout) -> None:
        """Modules of an extension for which no place is known, at the left of all."""
        left, y, _, _ = layout.bounds
        for name in sorted(self.costs.untaken):
            box = self.box(name, name.rpartition(".")[2])
            layout.add(replace(box, x=left - 2 * W, y=y))
            y += H + GAP

    def box(self, place: str, label: str, shape: str = "", kind: str = "embedding", field: str = "",
            rows: tuple[str, ...] = (), h: float = H, w: float = W) -> Box:  # fmt: skip
        """A box with the costs of its rows."""
        return Box(place, 0, 0, w, h, kind, label, shape, 1, self.costs.take(*(rows or (place,))), field=field)

    def _stack(self, model: Decoder | Encoder) -> Rail:
        rail, d = Rail(), symbol("D", model.d_model)
        rail.put(pill("tokens", "tokens", "(B, T)"))
        self._embedding(rail, model.embedding, symbol("V", model.vocab_size), d, model.context_length, "embedding")
        put_stack(rail, self.costs.model.stacks[0], self.costs, self.unfold)
        self._final_norm(rail, self.costs.model.stacks[0])
        if isinstance(model, Encoder) and model.pooler:
            rail.put(self.box("pooler", "pooler", "D → D", "head", "pooler"))
        self._head(rail, model.head, d, "embedding.token")
        return rail

    def _embedding(self, rail: Rail, embedding: Embedding, vocabulary: Formula, d: Formula, context: int,
                   place: str, shared: bool = False, length: str = "T") -> Box:  # fmt: skip
        """Tokens to vectors; a table that is shared is drawn again without its cost."""
        again = ".source" if shared else ""
        letters, field = f"{self._text(vocabulary)} × {self._text(d)}", "embedding"

        def one(name: str, label: str, shape: str, kind: str = "embedding", at: str = field, h: float = H) -> Box:
            if shared:
                return Box(f"{place}.{name}{again}", 0, 0, W, h, "shared", label, shape, detail="shared", field=at)
            return self.box(f"{place}.{name}", label, shape, kind, at, h=h)

        scale = "" if embedding.scale == 1 else f", times {embedding.scale:.4g}"
        token = rail.put(one("token", "embedding", f"{letters}{scale}"))
        position, norm = embedding.position, not isinstance(embedding.norm, NoNorm)
        if norm and embedding.norm_first:
            rail.put(one("norm", title(embedding.norm), "D", "norm", h=SLIM))
        if not isinstance(position, NoPosition):
            has_table = f"{place}.position" in self.costs.rows
            shape = f"{context:,} × {self._text(d)}" if has_table else "(T, D)"
            label = "positions" if isinstance(position, Learned) else title(position)
            rail.side(one("position", label, shape, "position", "embedding.position"), f"{place}.sum{again}")
        if embedding.num_token_types:
            shape = f"{embedding.num_token_types} × {self._text(d)}"
            rail.side(one("token_type", "token types", shape), f"{place}.token_type.sum{again}")
        if norm and not embedding.norm_first:
            rail.put(one("norm", title(embedding.norm), "D", "norm", h=SLIM))
        rail.stream_note(f"(B, {length}, D)")
        return token

    def _final_norm(self, rail: Rail, stack: StackCost) -> None:
        bias = f"{stack.prefix}position_bias"
        if bias in self.costs.rows and (first := self._first_mixer(rail, stack)) is not None:
            position, _ = stack.stack.relative_bias or (None, 0)
            assert position is not None
            box = self.box(bias, "position bias", f"{position.num_buckets} × H", "position", f"{stack.prefix}layers")
            x, y = first.x + first.w + 44, first.y + first.h / 2 - H / 2
            is_elsewhere = sum(container.kind == "block" for container in rail.layout.containers) > 1
            is_taken = any(
                container.x >= first.x + first.w for container in rail.layout.containers
            )  # parallel contents
            if is_elsewhere or is_taken:
                rail.layout.add(replace(box, x=-TIE - 40 - W, y=rail.y - H))
            else:
                box = rail.layout.add(replace(box, x=x, y=y))
                rail.layout.wire(box, as_box(first), "branch", [(box.x, y + H / 2), (first.x + first.w, y + H / 2)])
        norm = stack.stack.final_norm
        if not isinstance(norm, NoNorm):
            field = f"{stack.prefix}final_norm"
            rail.put(self.box(f"{stack.prefix}final_norm", title(norm), "D", "norm", field, h=SLIM))

    @staticmethod
    def _first_mixer(rail: Rail, stack: StackCost) -> Container | None:
        return next((f for f in rail.layout.containers if f.kind == "mixer" and f.id.startswith(stack.prefix)), None)

    def _head(self, rail: Rail, head: Spec, d: Formula, table: str) -> None:
        """The boxes of the head."""
        letter, field = self._text(d), "head"
        match head:
            case ClassificationHead():
                rail.put(self.box("classifier", "classifier", f"{letter} → Y", "head", field))
                rail.put(pill("classes", "classes", "(B, Y)", "output"))
            case LanguageModelHead() | MaskedLanguageModelHead():
                transform = head if isinstance(head, MaskedLanguageModelHead) else head.transform
                if transform is not None:
                    act = activation_name(transform.activation)
                    rail.put(self.box("lm_head.dense", f"dense, {act}", f"{letter} → {letter}", "head", field))
                    if not isinstance(transform.norm, NoNorm):
                        rail.put(self.box("lm_head.norm", title(transform.norm), letter, "norm", field, h=SLIM))
                logits = rail.put(self.box("lm_head", "lm_head", f"{letter} → V", "head", field))
                if (cap := getattr(head, "softcap", None)) is not None:
                    rail.put(Box("softcap", 0, 0, W, SLIM, "operation", f"cap · tanh(z / {cap:g})", field=field))
                rail.put(pill("logits", "logits", "(B, T, V)", "output"))
                if head.tied:
                    self._tie(rail, next(box for box in rail.layout.boxes if box.id == table), logits)
            case _:
                rail.put(pill("vectors", "vectors", "(B, T, D)", "output"))

    @staticmethod
    def _tie(rail: Rail, table: Box, head: Box) -> None:
        low, high = table.y + table.h / 2, head.y + head.h / 2
        rail.layout.wire(table, head, "tied", [(table.x, low), (-TIE, low), (-TIE, high), (head.x, high)])
        rail.layout.notes.append(Note(-TIE - 6, head.y - GAP, "tied", "end"))

    def _ngram(self, model: NGram) -> Rail:
        rail, d = Rail(), symbol("D", model.d_model)
        rail.put(pill("tokens", f"{model.n} newest tokens", "(B, n)"))
        rail.put(self.box("embedding.token", "embedding", "V × D", field="d_model"))
        rail.put(Box("concatenation", 0, 0, W, SLIM, "operation", "side by side", "(B, nD)", field="n"))
        cost = self.costs.model
        sizes = getattr(cost, "hidden", [])
        for index, (inputs, outputs) in enumerate(sizes):
            shape = f"{self._text(inputs)} → {self._text(outputs)}"
            rail.put(self.box(f"hidden.{index}", f"hidden {index}", shape, "feedforward", f"hidden[{index}]"))
            label = activation_name(model.activation)
            rail.put(Box(f"hidden.{index}.act", 0, 0, W, SLIM, "operation", label, field="activation"))
        self._head(rail, model.head, sizes[-1][1] if sizes else symbol("n", model.n) * d, "embedding.token")
        rail.layout.wires = [replace(w, kind="branch") if w.kind == "stream" else w for w in rail.layout.wires]
        return rail

    def _vision(self, model: VisionEncoder) -> Rail:
        cost, rail = self.costs.model, Rail()
        assert isinstance(cost, VisionEncoderCost)
        side = model.image_size
        rail.put(pill("image", "image", f"(B, {model.num_channels}, {side}, {side})"))
        shape = f"{self._text(cost.patch)} → D"
        rail.put(self.box("embedding.patch", "patches", shape, field="patch_size"))
        if model.class_token:
            box = self.box("embedding.class_token", "class token", "D", field="class_token")
            rail.side(box, "embedding.concatenation", symbol=False)
        if not isinstance(model.embedding.position, NoPosition):
            position = model.embedding.position
            label = "positions" if isinstance(position, Learned) else title(position)
            shape = f"{model.context_length:,} × D"
            rail.side(self.box("embedding.position", label, shape, "position", "embedding.position"), "embedding.sum")
        if not isinstance(model.embedding.norm, NoNorm):
            norm = self.box("embedding.norm", title(model.embedding.norm), "D", "norm", "embedding.norm", h=SLIM)
            rail.put(norm)
        rail.stream_note("(B, T, D)")
        put_stack(rail, cost.stacks[0], self.costs, self.unfold)
        self._final_norm(rail, cost.stacks[0])
        if model.pooler:
            rail.put(self.box("pooler", "pooler", "D → D", "head", "pooler"))
        self._head(rail, model.head, symbol("D", model.d_model), "")
        return rail

    def _encoder_decoder(self, model: EncoderDecoder) -> Layout:
        left, right, d = Rail(), Rail(), symbol("D", model.d_model)
        encoder, decoder = self.costs.model.stacks
        left.put(pill("source", "source tokens", "(B, S)"))
        right.put(pill("target", "target tokens", "(B, T)"))
        source_vocabulary = symbol("V_s", model.source_vocab_size or model.vocab_size)
        shared = model.embedding.shared
        vocabulary = symbol("V", model.vocab_size)
        place, first, length = "embedding", vocabulary, model.context_length
        if not shared:
            place, first = "source_embedding", source_vocabulary
        source = self._embedding(left, model.embedding, first, d, length, place, shared, "S")
        target = self._embedding(right, model.embedding, vocabulary, d, length, "embedding")
        for rail, stack in ((left, encoder), (right, decoder)):
            rail.floor = target.y + H if shared else 0.0
            put_stack(rail, stack, self.costs, self.unfold)
            self._final_norm(rail, stack)
        crosses = bool(right.waiting)
        output = left.put(pill("encoder.output", "encoder output", "(B, S, D)", "output")) if crosses else None
        self._head(right, model.head, d, "embedding.token")
        layout, shift, gutter = self._side_by_side(left, right)
        if output is not None:
            self._cross(layout, output, right, shift, gutter)
        if shared:
            moved, y = mirrored(target, shift), source.y + 8
            layout.wire(moved, source, "tied", [(moved.x, y), (source.x + source.w, y)])
            layout.notes.append(Note((moved.x + source.x + source.w) / 2, y - 9, "one table", "middle"))
        if model.state_bridge is not None:
            self._bridge(layout, gutter)
        return layout

    @staticmethod
    def _cross(layout: Layout, output: Box, decoder: Rail, shift: float, gutter: float) -> None:
        """Wires from the encoder's output to the keys and values of each cross-attention, at the left of its block."""
        blocks = [container for container in layout.containers if container.kind == "block"]
        theirs = [container for container in blocks if container.id.startswith("decoder.")]
        nearest = min(container.x for container in theirs)
        low = max(container.y + container.h for container in blocks if container.id.startswith("encoder."))
        for boxes, bus in decoder.waiting:
            own = next(f for f in theirs if f.x < mirrored(boxes[0], shift).x < f.x + f.w and f.y < bus < f.y + f.h)
            x, line = gutter, max(output.y + SLIM, low) + GAP
            if own.x > nearest:  # behind other blocks: above all of them
                x, line = own.x - GAP, max(line, *(container.y + container.h + GAP + 8 for container in theirs))
            for box in boxes:
                moved = mirrored(box, shift)
                points = [(output.middle, output.y + output.h), (output.middle, line), (x, line), (x, bus),
                          (moved.middle, bus), (moved.middle, moved.y)]  # fmt: skip
                layout.wire(output, moved, "source", points)

    @staticmethod
    def _bridge(layout: Layout, gutter: float) -> None:
        """The last state of each recurrent layer of the encoder, to the decoder's."""
        blocks = [container for container in layout.containers if container.kind == "block"]
        first = max((f for f in blocks if f.id.startswith("encoder.")), key=lambda container: container.x)
        second = min((f for f in blocks if f.id.startswith("decoder.")), key=lambda container: container.x)
        low, high = (container.y + min(120, container.h / 2) for container in (first, second))
        points = [(first.x + first.w, low), (gutter - 54, low), (gutter - 54, high), (second.x, high)]
        layout.wire(as_box(first), as_box(second), "state", points)
        layout.notes.append(Note(gutter - 74, min(low, high) - 9, "last state"))

    def _side_by_side(self, left: Rail, right: Rail) -> tuple[Layout, float, float]:
        """Two stacks, the right one mirrored; with where its rail stands, and the middle between both."""
        layout = Layout()
        layout.join(left.layout)
        mirror = right.layout.mirrored()
        end, begin = left.layout.bounds[2], mirror.bounds[0]
        shift = end + BETWEEN - begin
        layout.join(mirror, shift)
        return layout, shift, end + BETWEEN - 12

    def _megabyte(self, model: MegaByte) -> Layout:
        cost = self.costs.model
        assert isinstance(cost, MegaByteCost)
        left, right = Rail(), Rail()
        byte, wide, local = self._text(cost.byte_d), self._text(cost.global_d), self._text(cost.local_d)
        left.put(pill("bytes", "bytes", "(B, T)"))
        left.put(self.box("global_embedding.token", "embedding", f"V × {byte}", field="vocab_size"))
        box = self.box("global_embedding.position", "positions", f"{model.context_length:,} × {byte}", "position",
                       "context_length")  # fmt: skip
        left.side(box, "global_embedding.sum")
        left.put(Box("patches", 0, 0, W, SLIM, "operation", f"{model.patch_size} bytes: a patch", field="patch_size"))
        left.side(self.box("global_embedding.start", "start", wide), "global_embedding.concatenation", symbol=False)
        left.stream_note(f"(B, M, {wide})")
        put_stack(left, cost.stacks[0], self.costs, self.unfold)
        self._final_norm(left, cost.stacks[0])
        projection = left.put(self.box("projection", "projection", f"{byte} → {local}"))
        right.put(pill("patch", "bytes of a patch", "(BM, J)"))
        right.put(self.box("local_embedding.token", "embedding", f"V × {local}", field="vocab_size"))
        right.side(self.box("local_embedding.start", "start", local), "local_embedding.concatenation", symbol=False)
        right.y += GAP
        node = right.put(Box("local_embedding.sum", 0, 0, SUM, SUM, "add", "+"))
        right.floor = node.y + SUM
        right.stream_note(f"(BM, J, {local})")
        put_stack(right, cost.stacks[1], self.costs, self.unfold)
        self._final_norm(right, cost.stacks[1])
        self._head(right, model.head, cost.local_d, "local_embedding.token")
        layout, shift, gutter = self._side_by_side(left, right)
        moved = mirrored(node, shift)
        line = max(projection.y + H + GAP, left.layout.bounds[3] + GAP)
        middle = moved.y + SUM / 2
        points = [(projection.middle, projection.y + H), (projection.middle, line), (gutter, line), (gutter, middle),
                  (moved.x, middle)]  # fmt: skip
        layout.wire(projection, moved, "source", points)
        return layout

    def _text(self, formula: Formula) -> str:
        return self.costs.text(formula)


def draw(report: CostReport, measure: Measure = "parameters", unfold: bool = False) -> Scene:
    """The scene of a model.

    Args:
        report: its costs.
        measure: what the bars of the boxes show.
        unfold: draw each layer for itself, where there are few enough.

    Raises:
        SpecError: there is no such measure.
    """
    if measure not in UNITS:
        raise SpecError("measure", f"there is no measure {measure!r}", f"use one of {', '.join(UNITS)}")
    drawer = Drawer(report, unfold)
    layout = drawer.layout()
    drawer.put_rest(layout)
    name = one_line(report.spec.name, 80) or report.spec.kind
    left, bottom, right, top = layout.bounds
    for note in layout.notes:
        reach = text_width(note.text, 10) + 4
        left = min(left, note.x - reach) if note.anchor == "end" else left
        right = max(right, note.x + reach) if note.anchor == "start" else right
    totals = f"{report.parameters['total']:,} parameters"
    if report.parameters["active"] != report.parameters["total"]:
        totals += f", {report.parameters['active']:,} active"
    where = "" if measure in ("parameters", "active") else (
        f" in {report.dtype}" if measure == "bytes" else f" over {report.batch} x {report.length:,} tokens"
    )  # fmt: skip
    unit = f"{UNITS[measure]}{where}"
    legend = drawer.costs.legend([box.shape for box in layout.boxes])
    words = [f"{letter} = {value:,} {meaning}" for letter, value, meaning in legend]
    width = max(right - left + 2 * EDGE, 420.0)
    lines = wrapped("; ".join(words), 10, width - 2 * EDGE)
    head, foot = 62.0, 22.0 + 14 * (len(lines) + 1)
    height = top - bottom + head + foot + EDGE
    moved = Layout()
    moved.join(layout, EDGE - left, foot + EDGE - bottom - 8)
    container = Container("model", 6, 6, width - 12, height - 12, "model", name)
    moved.containers.insert(0, container)
    scene = moved.upside_down(height)
    layers = f"{report.spec.num_layers} layer{'s' * (report.spec.num_layers > 1)}"
    notes = [
        Note(EDGE, 30, fitted(name, 18, width - 2 * EDGE, 18, bold=True)[0], "start", "heading"),
        Note(EDGE, 50, f"{totals}; {layers}" if report.spec.num_layers else totals),
        Note(EDGE, height - foot + 6, f"Bars: {unit}, of all layers together", "start", "bars"),
        *(Note(EDGE, height - foot + 20 + 14 * number, line) for number, line in enumerate(lines)),
    ]
    kind = report.spec.kind.replace("_", "-")
    article = "an" if kind[0] in "aeiou" else "a"
    description = (
        f"{name}: {article} {kind} model of {totals}, drawn from its input at the bottom to its output at the top."
    )
    return Scene(name, description, measure, unit, width, height, tuple(scene.boxes), tuple(scene.containers),
                 tuple(scene.wires), (*scene.notes, *notes), legend)  # fmt: skip


def pill(place: str, label: str, shape: str, kind: str = "input") -> Box:
    """A label of an input or output."""
    return Box(place, 0, 0, W, SLIM, kind, label, shape)


def mirrored(box: Box, shift: float) -> Box:
    """A box of the stack that is drawn mirrored."""
    return replace(box, x=shift - box.x - box.w)


def as_box(container: Container) -> Box:
    """A container as the end of a wire."""
    return Box(container.id, container.x, container.y, container.w, container.h, container.kind, container.label)
