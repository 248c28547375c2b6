"""HTML pages of the gallery: one per card, and the index. Pages load only files from their own folder."""

import base64
import json
import shlex
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any

from archetype.diagram.architecture import draw_in
from archetype.diagram.svg import svg
from archetype.families.index import preset_facts
from archetype.gallery.card import Card, Layers, Mark
from archetype.gallery.entries import LISTED, TINY, Entry, entries
from archetype.gallery.ideas import Adoption
from archetype.io.yaml import mapping_to_yaml
from archetype.machine.hardware import DEVICES
from archetype.table import quantity, size

HUB, GITHUB = "huggingface.co", "github.com"
EDITOR = "http://127.0.0.1:8000/"  # where `archetype serve` shows the web UI
SIGNS = {"yes": "✓", "no": "✗", "unknown": "–"}
DEVICE = "H100-SXM"
ASPECT = "3:4"  # of a diagram, which a phone shows as well
# filled by the buttons of two or more cards
COMPARISON = (
    '<aside class="compare" aria-label="Comparison" hidden><div><b>What differs</b><button>close</button></div>'
    '<div class="data" tabindex="0" role="region" aria-label="Fields that differ, scrollable">'
    "<table><thead></thead><tbody></tbody></table></div><code></code></aside>"
)
LENGTHS = (1024, 8192, 32_768, 131_072, 1_048_576)  # of the table for readers without scripts


def page(title: str, body: str, home: str = "index.html") -> str:
    """Return a complete page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="stylesheet" href="gallery.css">\n'
        f'<script src="gallery.js" defer></script>\n</head>\n<body>\n<header><a href="{home}">Gallery</a></header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def card_page(card: Card, descendants: Sequence[str], editor: str = EDITOR) -> str:
    """Return the page of a card.

    Args:
        card: what the page shows.
        descendants: ids of the models whose ancestor is this one.
        editor: address of the web UI.
    """
    entry = card.entry
    sections = [_head(card, descendants), marks_list(card.marks)]
    if card.spec is None:
        sections.append(_without_specification(card))
    else:
        sections += [_figures(card), _lengths(card), _diagram(card), _changes(card), _parts(card)]
        sections.append(_specification(card, editor))
    return page(f"{entry.name}: architecture", "\n".join(sections))


def marks_list(marks: Sequence[Mark]) -> str:
    """Return the list of a card's four checks, each with what it compares."""
    rows = (
        f'<li class="{mark.state}"><b>{SIGNS[mark.state]}</b> <span>{escape(mark.name)}<small>{escape(mark.text)}'
        "</small></span></li>"
        for mark in marks
    )
    return f'<ul class="marks">{"".join(rows)}</ul>'


def link(name: str) -> str:
    """Return a link to another card, or the plain name of a preset that has no card."""
    entry = entries().get(name)
    return f'<a href="{name}.html">{escape(entry.name)}</a>' if entry else f"<code>{escape(name)}</code>"


def _head(card: Card, descendants: Sequence[str]) -> str:
    entry, facts = card.entry, []
    if entry.date:
        facts.append(f"<dt>published</dt><dd>{escape(entry.date)}</dd>")
    if entry.repository:
        facts.append(f'<dt>weights</dt><dd><a href="https://{HUB}/{entry.repository}">{entry.repository}</a></dd>')
    if entry.report:
        facts.append(
            f'<dt>report</dt><dd><a href="{escape(entry.report)}">{escape(entry.report.split("//")[1])}</a></dd>'
        )
    if config := entry.evidence.config:
        if "class" in config:
            text = f"defaults of {config['class']}, in {entry.evidence.numbers_of}, for {config['model']}"
        else:
            what = "sizes" if config.get("form") == "sizes" else "config.json"
            digest = f", SHA-256 {config['sha256'][:12]}" if "sha256" in config else ""
            text = escape(f"{what} of {config['model']}{digest}")
        if "commit" in config:
            place = f"https://{GITHUB}/{config['repository']}/blob/{config['commit']}/{config['path']}"
            text = f'<a href="{escape(place)}">{text}</a>'
        facts.append(f"<dt>read from</dt><dd>{text}</dd>")
    elif entry.spec:
        base, *changes = entry.spec.split("; ")
        of = (
            f"preset <code>{base}</code> ({escape(preset_facts()[base].source)})"
            if base in preset_facts()
            else link(base)
        )
        count = f", {len(changes)} field{'s' * (len(changes) > 1)} changed" if changes else ""
        facts.append(f"<dt>specification</dt><dd>{of}{count}</dd>")
    if entry.ancestor:
        facts.append(f"<dt>comes from</dt><dd>{link(entry.ancestor)}</dd>")
    if descendants:
        facts.append(f"<dt>led to</dt><dd>{', '.join(map(link, descendants))}</dd>")
    title = f'<h1>{escape(entry.name)}</h1>\n<p class="why">{escape(entry.why)}</p>'
    return f'{title}\n<dl class="facts">{"".join(facts)}</dl>'


def _without_specification(card: Card) -> str:
    entry = card.entry
    counts = [f"{entry.total} parameters"] * bool(entry.total) + [f"{entry.active} active"] * bool(entry.active)
    published = f"<p>Published with {', '.join(counts)}.</p>" if counts else ""
    if card.kind == "missing":
        needs = f"<p>Needs {escape(entry.evidence.needs)}.</p>"
        return f'<section class="grey"><h2>Not supported yet</h2>{needs}{published}</section>'
    command = f"archetype gallery add {entry.repository}"
    return (
        '<section class="grey"><h2>Sizes unknown</h2>'
        f"<p>Archetype reads models of type <code>{escape(entry.type)}</code>, but this model's "
        f"config.json was not available. This command fills in the card:</p><pre>{command}</pre>{published}"
        "</section>"
    )


def layers_text(layers: Layers) -> str:
    """Say how often the layers run, and how many more only add vectors."""
    runs, rest = divmod(layers.run, layers.distinct)
    again = f", run {runs} times each" if not rest else f", {layers.run} with repeats"
    added = f", plus {layers.lookups} that only add vectors looked up by token" if layers.lookups else ""
    return "layers" + again * (layers.run > layers.distinct) + added


def _figures(card: Card) -> str:
    assert card.spec is not None
    counts, state, layers = card.report.parameters, card.report.state, Layers.of(card.spec)
    figures = [
        (f"{counts['total']:,}", "parameters"),
        (f"{counts['active']:,}", "active per token"),
        (f"{layers.distinct}", layers_text(layers)),
        (f"{card.spec.context_length or 0:,}", "tokens of context"),
        (size(state["bytes_per_token"]), f"added per token to the state in bfloat16 ({card.report.state_name})"),
    ]
    if counts["total"] == counts["active"]:
        del figures[1]
    cells = (f"<div><b>{value}</b><small>{escape(text)}</small></div>" for value, text in figures)
    return f'<section class="figures">{"".join(cells)}</section>'


def _lengths(card: Card) -> str:
    points = card.points
    data = {"points": [list(point) for point in points], "weights": card.weights_read}
    options = "".join(
        f'<option value="{peaks.bandwidth} {peaks.flops.get("bfloat16", 0)}"{" selected" * (name == DEVICE)}>'
        f"{name}</option>"
        for name, peaks in DEVICES.items()
    )
    rows = []
    for point in points:
        if point.length in LENGTHS or point is points[-1]:
            seconds = least_seconds(card.weights_read + point.read, point.flops, DEVICE)
            cells = (f"<th>{point.length:,}</th>", f"<td>{size(point.state)}</td>", f"<td>{seconds * 1e3:.3g} ms</td>")
            rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        '<section class="lengths"><h2>State and minimum time per token</h2>\n'
        f'<div class="slider" hidden><label>Length <input type="range" min="0" max="1000" value="600"></label>'
        f"<label>Device <select>{options}</select></label>"
        '<p><b class="length"></b> tokens: <b class="state"></b> of state, <b class="time"></b> for the next token</p>'
        '<svg viewBox="0 0 640 180" role="img" aria-label="State by length"><path class="curve"/><circle r="5"/></svg>'
        f'</div>\n<script type="application/json" class="points">{json.dumps(data, separators=(",", ":"))}</script>\n'
        f"<table><thead><tr><th>tokens</th><th>state</th><th>minimum time, {DEVICE}</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>\n"
        "<p><small>For one sequence in bfloat16: the larger of the time to compute at the device's peak and the "
        "time to read once, at its full bandwidth, the weights that one token uses and the state, without the keys "
        "that an indexer leaves out. Real programs are slower, and a model may need several devices.</small></p>"
        "</section>"
    )


def least_seconds(traffic: int, flops: int, device: str) -> float:
    """Return the minimum time to read `traffic` bytes and compute `flops` on a device."""
    peaks = DEVICES[device]
    return max(traffic / peaks.bandwidth, flops / peaks.peak("bfloat16"))


def _diagram(card: Card) -> str:
    scene = draw_in(card.report, "parameters", ASPECT)
    picture = svg(scene, compact=True).replace(' id="title"', "").replace(' id="description"', "")
    picture = picture.replace(' aria-labelledby="title description"', f' aria-label="{escape(scene.description)}"')
    return (
        f'<section><h2>Diagram</h2><div class="picture" tabindex="0" role="region" aria-label="Diagram, scrollable">'
        f"{picture}</div></section>"
    )


def _changes(card: Card) -> str:
    entry = card.entry
    if card.ancestor is None:
        return ""
    if not card.changes:
        return f'<section id="changes"><h2>Same architecture as {link(entry.ancestor)}</h2></section>'
    text = " \\\n".join(f"  {shlex.quote(line)}" for line in card.changes)
    count = f"{card.num_changes} change{'s' * (card.num_changes != 1)}"
    picture = f"{entry.id}-changes.svg"
    line = ",".join(reversed(_lineage(entry)))
    return (
        f'<section id="changes"><h2>{count} from {link(entry.ancestor)}</h2>'
        f"<pre>archetype set {entry.ancestor} \\\n{escape(text)}</pre>"
        f'<p><a href="index.html#compare={line}">Field by field</a>, or <a href="{picture}">as two diagrams</a>, with '
        "differences in colour:</p>"
        f'<a href="{picture}" class="picture"><img loading="lazy" src="{picture}" '
        f'alt="Diagrams of both models, with differences in colour"></a></section>'
    )


def _lineage(entry: Entry) -> list[str]:
    # ids of a model and of its ancestors that have cards, up to four
    line, ancestor = [entry.id], entry.ancestor
    while ancestor in entries() and len(line) < 4:
        line.append(ancestor)
        ancestor = entries()[ancestor].ancestor
    return line


def _parts(card: Card) -> str:
    total = card.report.parameters["total"]
    rows = (
        f"<tr><th>{escape(part.part)}</th><td>{part.parameters:,}</td><td>{part.parameters / total:.1%}</td>"
        f"<td>{part.active:,}</td><td>{quantity(part.decode) if part.decode else ''}</td></tr>"
        for part in card.parts
    )
    return (
        '<section><h2>Cost</h2><div class="data" tabindex="0" role="region" aria-label="Costs, scrollable"><table>'
        "<thead>"
        f"<tr><th>part</th><th>parameters</th><th>share</th><th>active</th><th>FLOPs per token at "
        f"{card.report.length:,}</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _specification(card: Card, editor: str) -> str:
    assert card.spec is not None
    entry = card.entry
    text = mapping_to_yaml(card.spec.dump())
    edit = escape(f"{editor}#/spec?spec=yaml:{packed(text)}")
    small = f"{entry.id}{TINY}"
    commands = "\n".join(
        (f"archetype cost {entry.id}.yaml", f"archetype train TEXT --spec {small}.yaml --to runs/{entry.id}")
    )
    return (
        f'<section><h2>Specification</h2><p><a href="{edit}">Open in the editor</a> while '
        f'<code>archetype serve</code> runs, or download <a href="{entry.id}.yaml">{entry.id}.yaml</a>. '
        f'<a href="{small}.yaml">{small}.yaml</a> has the same parts in small sizes and trains in minutes.</p>'
        f"<pre>{escape(commands)}</pre><details><summary>{entry.id}.yaml</summary><pre>{escape(text)}</pre></details>"
        "</section>"
    )


def packed(text: str) -> str:
    """Encode a text as in a link to the web UI: raw deflate in URL-safe base64."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = compressor.compress(text.encode()) + compressor.flush()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def index_page(cards: Sequence[Card], adoption: Adoption) -> str:
    """Return the index page: cards with a search, the family tree, and the adoption of ideas by month."""
    counts = {kind: sum(card.kind == kind for card in cards) for kind in ("said", "read", "missing")}
    items = "\n".join(_item(card) for card in cards)
    body = (
        f"<h1>Gallery of published models</h1>\n<p>{len(cards)} models: {counts['said']} with a specification, "
        f"{counts['read']} of a supported type but with unknown sizes, and {counts['missing']} in grey, which name "
        f"what is missing. Dates, published counts and reports are from {LISTED}; all other numbers are computed from "
        "the specifications.</p>\n"
        '<p>Download the table as <a href="gallery.csv">CSV</a> and <a href="gallery.json">JSON</a>. '
        '<a href="#tree">Family tree</a>, <a href="#ideas">ideas by month</a>.</p>\n'
        '<form class="search" hidden><label>Search <input type="search" '
        'placeholder="words, mixer.kind=latent, parameters&gt;1e11"></label>'
        '<label>State at <input type="range" min="0" max="13" value="8"> <output></output></label>'
        '<span class="count" role="status"></span></form>\n'
        f'<ol class="cards">{items}</ol>\n{COMPARISON}\n'
        f'<h2 id="tree">Family tree</h2>\n{_tree(cards)}\n<h2 id="ideas">Ideas by month</h2>\n{_ideas(adoption)}\n'
        f'<script type="application/json" id="models">{_search_data(cards)}</script>'
    )
    return page("Gallery of published models", body)


def _item(card: Card) -> str:
    entry = card.entry
    counts = [entry.total] * bool(entry.total) + [f"{entry.active} active"] * bool(entry.active)
    signs = "".join(
        f'<i class="{mark.state}" title="{escape(mark.name)}: {escape(mark.text)}">{SIGNS[mark.state]}</i>'
        for mark in card.marks
    )
    state = size(card.report.state["bytes_per_token"]) + " per token" if card.spec is not None else ""
    return (
        f'<li class="{card.kind}" data-id="{entry.id}"><a href="{entry.id}.html">{escape(entry.name)}</a>'
        f"<time>{escape(entry.date)}</time><span>{escape(', '.join(counts))}</span>"
        f'<span class="state">{state}</span><span class="signs">{signs}</span><p>{escape(entry.why)}</p></li>'
    )


def _search_data(cards: Sequence[Card]) -> str:
    # {id: [type and words, {field: values}, points]}; the names of fields are written once
    names: dict[str, int] = {}
    models = {}
    for card in cards:
        fields = [
            [names.setdefault(name, len(names)), *(_found(value) for value in values)]
            for name, values in card.fields.items()
        ]
        points = card.states if card.spec is not None else []
        models[card.entry.id] = [fields, points]
    data = json.dumps({"names": list(names), "models": models}, separators=(",", ":"))
    return data.replace("</", "<\\/")


def _found(value: Any) -> Any:
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else str(value).lower()


def _tree(cards: Sequence[Card]) -> str:
    by_ancestor: dict[str, list[Card]] = {}
    said = [card for card in cards if card.spec is not None]
    ids = {card.entry.id for card in said}
    for card in said:
        ancestor = card.entry.ancestor
        by_ancestor.setdefault(ancestor if ancestor in ids else "", []).append(card)

    def branch(card: Card) -> str:
        entry, inner = card.entry, ""
        if card.changes:
            lines = "\n".join(line if len(line) < 120 else f"{line[:117]}..." for line in card.changes)
            count = f"{card.num_changes} change{'s' * (card.num_changes > 1)}"
            outside = "" if entry.ancestor in ids else f" from {escape(entry.ancestor)}"
            inner = (
                f'<details><summary><meter min="0" max="16" value="{card.num_changes}">{count}</meter> '
                f"{count}{outside}</summary><pre>{escape(lines)}</pre></details>"
            )
        elif card.ancestor is not None:
            inner = "<small>same architecture</small>"
        below = "".join(map(branch, by_ancestor.get(entry.id, [])))
        return f"<li>{link(entry.id)} {inner}{f'<ul>{below}</ul>' if below else ''}</li>"

    return f'<ul class="tree">{"".join(map(branch, by_ancestor.get("", [])))}</ul>'


def _ideas(adoption: Adoption) -> str:
    heads = "".join(f"<th><span>{month}</span></th>" for month in adoption.months)
    rows = []
    for idea in adoption.ideas:
        cells = "".join(
            f'<td style="--share:{users / count:.2f}" title="{users} of {count}">{users or ""}</td>'
            for users, count in zip(idea.users, adoption.counts, strict=True)
        )
        rows.append(f"<tr><th>{escape(idea.name)}<small>first: {link(idea.first)}</small></th>{cells}</tr>")
    total = "".join(f"<td>{count}</td>" for count in adoption.counts)
    return (
        "<p>How many of the models of each month that have a specification use each idea.</p>"
        '<div class="data" tabindex="0" role="region" aria-label="Ideas by month, scrollable"><table class="ideas">'
        f"<thead><tr><th>idea</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
        f"<tfoot><tr><th>models</th>{total}</tr></tfoot></table></div>"
    )
