"""A study as one page that needs nothing else: verdicts, effects with their intervals as pictures, curves, tables."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from archetype.studies.budgets import budget_rows
from archetype.studies.decisions import NOT_RUN
from archetype.studies.fit import Law
from archetype.studies.statistics import paired_interval
from archetype.table import quantity

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 266, 64, 34, 26, 12  # of a picture and its margins
COLOURS = ("#0a58ca", "#c2410c", "#15803d", "#7c3aed", "#be185d", "#0e7490", "#a16207", "#475569")
NUM_TICKS = 5
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #626a73; --line: #d8dee4; --yes: #15803d;
  --no: #b42318; --band: #0a58ca22; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --soft: #9aa4ae; --line: #333a41;
  --yes: #4ade80; --no: #f97066; --band: #6ea8fe33; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 820px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 0.4rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.3rem; }
blockquote { margin: 0.5rem 0; padding-left: 0.8rem; border-left: 3px solid var(--line); color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.2rem 0.6rem 0.2rem 0; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
.verdict { font-weight: 600; } .yes { color: var(--yes); } .no { color: var(--no); } .soft { color: var(--soft); }
.key { white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.axis { stroke: var(--line); } .curve { fill: none; stroke-width: 1.6; }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem; font-size: 0.82rem; }
"""
MATCHED = ("parameters", "non_embedding", "active", "flops_per_token", "state_bytes", "tokens")
Points = Sequence[tuple[float, float]]


def study_page(outcome: Mapping[str, Any]) -> str:
    """The report of one study as a page."""
    name = f"Claim {outcome['claim']}: " if outcome["claim"] else ""
    machine = outcome["environment"]
    seconds = sum(part.get("cost", {}).get("seconds", 0.0) for part in outcome["parts"])
    record = {
        "mode": outcome["mode"], "cost": f"{seconds / 60:.1f} minutes of one core", "date": outcome["date"],
        "processor": machine.get("processor", ""), "torch": machine.get("torch", ""),
        "Python": machine.get("python", ""),
        "hash of the experiment": outcome["hash"], "hash of the code": outcome["code"],
    }  # fmt: skip
    body = [f"<h1>{_text(name + outcome['title'])}</h1>", _verdict(outcome["verdict"])]
    body += [f"<blockquote>{_text(outcome['sentence'])}</blockquote>"] if outcome["sentence"] else []
    body += [f"<p>{_text(outcome['headline'])}</p>"] if outcome["headline"] else []
    body.append(html_table(("part", "says", "verdict", "expected"), [
        (part["id"], part["says"], part["verdict"], part["expect"].get("verdict", "open")) for part in outcome["parts"]
    ]))  # fmt: skip
    body += [_part(part) for part in outcome["parts"]]
    body += ["<h2>Record</h2>", html_table(("", ""), record.items())]
    return page(name + outcome["title"], body)


def study_name(row: Mapping[str, Any]) -> str:
    """The claim's number, or the title of a study that is not about one."""
    return f"Claim {row['claim']}" if row["claim"] else str(row["title"])


def overview_page(
    claims: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], searches: Sequence[Mapping[str, Any]] = ()
) -> str:
    """All claims, other studies and searches, one row each, surprises first."""
    surprises = [
        f"<li>{_text(study_name(row))}, {_text(part['id'])}: {_text(part['verdict'])}. {_text(part['reason'])}</li>"
        for row in (*claims, *others) for part in row["parts"] if part["surprise"] == "surprise"
    ]  # fmt: skip
    body = ["<h1>The claims</h1>"]
    body += [f"<h2>Otherwise than predicted</h2><ul>{''.join(surprises)}</ul>"] if surprises else []
    body.append(_studies_table("claim", claims))
    body += ["<h2>Other studies</h2>", _studies_table("study", others)] if others else []
    if searches:
        cells = "".join(
            f"<tr><td><a href='{_text(row['report'])}.html'>{_text(row['title'])}</a></td>"
            f"<td>{row['candidates']} candidates</td><td>{_text(row['date'][:10])}<br>"
            f"<span class='soft'>{_text(row['hash'])}</span></td></tr>" for row in searches
        )  # fmt: skip
        body.append(f"<h2>Searches</h2><div class='scroll'><table>{cells}</table></div>")
    return page("The claims", body)


def _studies_table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    cells = []
    for row in rows:
        parts = "<br>".join(
            f"{_text(p['id'])}: <span class='{_class(p['verdict'])}'>{_text(p['verdict'])}</span> "
            f"<span class='soft'>{_text(p['surprise'])}</span>" for p in row["parts"]
        )  # fmt: skip
        effects = "".join(effect_picture([p]) for p in row["parts"] if p.get("effect"))
        link = f"<a href='{_text(row['report'])}.html'>{_text(row['title'])}</a>"
        cells.append(
            f"<tr><td>{row['claim'] or ''}</td><td>{link}<br><span class='soft'>{_text(row['sentence'])}</span></td>"
            f"<td>{_verdict(row['verdict'])}{parts}{effects}</td><td>{row['seconds'] / 60:.1f} min</td>"
            f"<td>{_text(row['date'][:10])}<br><span class='soft'>{_text(row['hash'])}</span></td></tr>"
        )
    head = "".join(f"<th>{one}</th>" for one in ("", name, "verdict", "cost", "date and hash"))
    return f"<div class='scroll'><table><tr>{head}</tr>{''.join(cells)}</table></div>"


def page(title: str, body: Iterable[str]) -> str:
    """HTML with its style inside."""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _part(part: Mapping[str, Any]) -> str:
    body = [f"<h2>{_text(part['id'])}</h2><p>{_text(part['says'])}.</p>", _verdict(part["verdict"], part["reason"])]
    if source := part["expect"].get("source"):
        body.append(f"<p class='soft'>Expected: {_text(part['expect'].get('verdict', 'open'))} ({_text(source)}).</p>")
    if part["verdict"] == NOT_RUN:
        return "".join(body)
    if part["type"] == "trained":
        body += _trained(part)
    elif part["type"] == "scaling_law":
        body += _law(part)
    else:
        body.append(html_table(("", ""), [(name, f"{value:.6g}") for name, value in part["values"].items()]))
        body += [
            f"<p class='soft'>Control: {_text(c['name'])}: {c['error']:.3g}, must exceed {c['must_exceed']:.3g}.</p>"
            for c in part["controls"]
        ]
        body += _check_curves(part["curves"])
    if part.get("limits"):
        body.append(f"<p class='soft'>Limits: {_text('; '.join(part['limits']))}. In this code, at this scale.</p>")
    return "".join(body)


def effect_rows(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and number of each figure of a trained part's effect."""
    effect = part["effect"]
    facts = {
        "margin": effect["margin"], "p": effect["p"], "p of sign flips": effect["sign_flip_p"],
        "p after Holm": effect["adjusted_p"], "smallest detectable difference": effect["detectable"],
        "deviation of the differences": effect["deviation"],
        f"chance that {part['arm']} is better": effect["better_share"],
    }  # fmt: skip
    rows = [(name, f"{value:.4g}") for name, value in facts.items() if value is not None]
    if effect["over_examples"]:
        rows.append(("interval over seeds and test examples", "[{1:+.4g}, {2:+.4g}]".format(*effect["over_examples"])))
    return rows


def _trained(part: Mapping[str, Any]) -> list[str]:
    effect = part["effect"]
    matched = [(arm, *(f"{v[name]:,.0f}" for name in MATCHED), v["solved"]) for arm, v in part["arms"].items()]
    body = [
        f"<h3>{_text(part['arm'])} against {_text(part['control'])}</h3>", effect_picture([part]),
        html_table(("", ""), effect_rows(part)),
        "<h3>What is matched</h3>",
        html_table(("arm", *(name.replace("_", " ") for name in MATCHED), "solved"), matched),
    ]  # fmt: skip
    for comparison in part["comparisons"]:
        arms = list(comparison["values"])
        rows = [
            (
                seed,
                *(
                    f"{comparison['values'][arm][n]:.5g}{' diverged' if comparison['diverged'][arm][n] else ''}"
                    for arm in arms
                ),
            )
            for n, seed in enumerate(comparison["seeds"])
        ]
        body += [
            f"<h3>{_text(part['metric']['name'])} on {_text(comparison['name'] + added_text(comparison))}</h3>",
            html_table(("seed", *arms), rows),
            f"<p>{_text(part['arm'])} less {_text(part['control'])}: {difference_text(part, comparison)}.</p>",
        ]
        means = {arm: list(zip(c["step"], c["mean"], strict=True)) for arm, c in comparison["curves"].items()}
        bands = {arm: (c["step"], c["low"], c["high"]) for arm, c in comparison["curves"].items()}
        body.append(curves_picture(means, "step", "held-out loss", bands=bands))
        if comparison["budgets"]:
            heading = ("before the learning rate falls", *arms, f"{part['arm']} less {part['control']}")
            body += ["<h3>Held-out loss at equal budgets</h3>", html_table(heading, budget_rows(comparison))]
    if part["tuning"]["arms"]:
        body += ["<h3>Trials</h3>", _trials(part["tuning"])]
    if effect["would_change"]:
        body.append(f"<p class='soft'>What would have changed this verdict: {_text(effect['would_change'])}.</p>")
    return body


def difference_text(part: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """The mean difference of a part's two arms on one corpus and size: -0.031 [-0.042, -0.020], 4 pairs."""
    pairs = zip(*(comparison["values"][arm] for arm in (part["control"], part["arm"])), strict=True)
    mean, low, high = paired_interval(differences := [treated - control for control, treated in pairs])
    return f"{mean:+.4g} [{low:+.4g}, {high:+.4g}], {len(differences)} pairs"


def added_text(comparison: Mapping[str, Any]) -> str:
    """Where and when a corpus or size was added to the report; empty where it is one of the first."""
    added = comparison.get("added")
    if not added:
        return ""
    return f", added {added['date'][:10]} on {', '.join(added['machines'])} with the code `{added['code']}`"


def _trials(tuning: Mapping[str, Any]) -> str:
    rows = [
        (arm, ", ".join(f"{value}" for value in trial["values"]),
         "diverged" if trial["loss"] is None else f"{trial['loss']:.4f}",
         "best" if trial["values"] == about["best"] else "")
        for arm, about in tuning["arms"].items() for trial in about["trials"]
    ]  # fmt: skip
    body = html_table(("arm", ", ".join(tuning["paths"]), "validation loss", ""), rows)
    body += html_table(
        ("arm", "at the control's best", "sensitivity", "ended near a guess"),
        [
            (arm, *("" if about[name] is None else f"{about[name]:.4f}" for name in ("at_control", "sensitivity")),
             "{} of {} [{:.0%}, {:.0%}]".format(about["failed"], about["total"], *about["failed_interval"]))
            for arm, about in tuning["arms"].items()
        ],
    )  # fmt: skip
    if len(tuning["paths"]) == 1 and all(
        isinstance(t["values"][0], int | float) for a in tuning["arms"].values() for t in a["trials"]
    ):
        lines = {
            arm: sorted((float(t["values"][0]), t["loss"]) for t in about["trials"] if t["loss"] is not None)
            for arm, about in tuning["arms"].items()
        }
        body += curves_picture(lines, tuning["paths"][0], "validation loss", points=lines, log_x=True)
    return body


def _law(part: Mapping[str, Any]) -> list[str]:
    """The runs as dots, the law as lines, and around the line of the held-out size what was predicted of it."""
    law, points, lines = Law(**part["law"]), dict[str, list[tuple[float, float]]](), dict[str, Points]()
    for point in (*part["fitted"], *part["seen"]):
        label = f"{point['parameters']:,.0f}"
        points.setdefault(label, []).append((point["tokens"], point["loss"]))
        lines[label] = [(tokens, law.loss(point["parameters"], tokens)) for tokens, _ in points[label]]
    held_out = f"{part['seen'][0]['parameters']:,.0f}"
    tokens, low, high = ([p[name] for p in part["predicted"]] for name in ("tokens", "low", "high"))
    numbers = [
        (name, f"{part['law'][name]:.4g}", f"{low:.4g} to {high:.4g}")
        for name, (low, high) in part["intervals"].items()
    ]
    rows = [
        (
            f"{p['parameters']:,.0f}",
            f"{p['tokens']:,.0f}",
            f"{p['loss']:.4f} [{p['low']:.4f}, {p['high']:.4f}]",
            f"{s['loss']:.4f}",
        )
        for p, s in zip(part["predicted"], part["seen"], strict=True)
    ]
    bands = {held_out: (tokens, low, high)}
    return [
        curves_picture(lines, "tokens", "loss", points=points, bands=bands, log_x=True, log_y=True),
        f"<p class='soft'>By parameters; dots are runs, lines the law, the band what it predicted of {held_out}.</p>",
        html_table(("number", "", "interval of 95 %"), numbers), f"<h3>Predicted on {_text(part['predicted_on'])}</h3>",
        html_table(("parameters", "tokens", "predicted", "came"), rows),
    ]  # fmt: skip


def _check_curves(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Curves of equal axes in one picture."""
    pictures: dict[tuple[Any, ...], dict[str, Points]] = {}
    for curve in curves:
        axes = tuple(curve[name] for name in ("x_name", "y_name", "log_x", "log_y"))
        pictures.setdefault(axes, {})[curve["label"]] = list(zip(curve["x"], curve["y"], strict=True))
    return [curves_picture(lines, x, y, log_x=log_x, log_y=log_y) for (x, y, log_x, log_y), lines in pictures.items()]


def effect_picture(parts: Sequence[Mapping[str, Any]]) -> str:
    """The effect with its interval of 95 %, zero and the margin."""
    effect = parts[0]["effect"]
    mean, low, high = effect["effect"]
    if low is None or high is None:
        return ""
    margin = effect["margin"] or 0.0
    least, most = min(low, -margin, 0.0), max(high, margin, 0.0)
    padding = 0.08 * (most - least) or 1.0
    least, most = least - padding, most + padding

    def across(value: float) -> float:
        return float(12 + (value - least) / (most - least) * (WIDTH - 24))

    marks = [f'<line class="axis" x1="{across(0):.1f}" x2="{across(0):.1f}" y1="6" y2="40"/>',
             f'<text x="{across(0):.1f}" y="54" text-anchor="middle">0</text>']  # fmt: skip
    if margin:
        width = across(margin) - across(-margin)
        marks.insert(0, f'<rect x="{across(-margin):.1f}" width="{width:.1f}" y="6" height="34" fill="var(--band)"/>')
    colour = "var(--yes)" if low > 0 or high < 0 else "var(--soft)"
    marks.append(
        f'<line x1="{across(low):.1f}" x2="{across(high):.1f}" y1="23" y2="23" stroke="{colour}" stroke-width="3"/>'
    )
    marks.append(f'<circle cx="{across(mean):.1f}" cy="23" r="5" fill="{colour}"/>')
    label = f"{mean:+.4g} [{low:+.4g}, {high:+.4g}]"
    marks.append(f'<text x="{across(mean):.1f}" y="54" text-anchor="middle" dx="0" dy="12">{label}</text>')
    return f'<svg viewBox="0 0 {WIDTH} 70" role="img" aria-label="effect {label}">{"".join(marks)}</svg>'


def curves_picture(
    lines: Mapping[str, Points], x_name: str, y_name: str, *, points: Mapping[str, Points] | None = None,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]] | None = None,
    log_x: bool = False, log_y: bool = False,
) -> str:  # fmt: skip
    """Lines, bands and points by label as inline SVG; empty where there are none.

    Args:
        lines: (x, y) by label.
        x_name: of the horizontal axis.
        y_name: of the vertical one.
        points: that are drawn as dots.
        bands: (x, low, high) behind the line of that label.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical one is.
    """
    points, bands = points or {}, bands or {}

    def is_drawn(x: float, y: float) -> bool:
        return math.isfinite(x) and math.isfinite(y) and not (log_x and x <= 0) and not (log_y and y <= 0)

    drawn = [p for many in (*lines.values(), *points.values()) for p in many if is_drawn(*p)]
    drawn += [
        (x, y)
        for xs, low, high in bands.values()
        for x, pair in zip(xs, zip(low, high, strict=True), strict=True)
        for y in pair
    ]
    if not drawn:
        return ""
    x_axis, y_axis = ((math.log10 if is_log else float) for is_log in (log_x, log_y))
    xs, ys = [x_axis(x) for x, _ in drawn], [y_axis(y) for _, y in drawn]
    first, last, low, high = min(xs), max(xs), min(ys), max(ys)
    last, high = last if last > first else first + 1, high if high > low else low + max(abs(low) / 100, 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x_axis(x) - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (high - y_axis(y)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    marks, keys = [], []
    for number in range(NUM_TICKS):
        x, y = (a + (b - a) * number / (NUM_TICKS - 1) for a, b in ((first, last), (low, high)))
        x, y = 10**x if log_x else x, 10**y if log_y else y
        across, down = place(x, y)
        marks.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down:.1f}" y2="{down:.1f}"/>')
        marks.append(f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{_tick(y)}</text>')
        anchor = "end" if number == NUM_TICKS - 1 else "middle"
        marks.append(f'<text x="{across:.1f}" y="{HEIGHT - 15}" text-anchor="{anchor}">{_tick(x)}</text>')
    marks.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">{_text(x_name)}</text>')
    marks.append(f'<text x="2" y="12">{_text(y_name)}</text>')
    labels = [*dict.fromkeys((*lines, *points))]
    for number, label in enumerate(labels):
        hue = 240 - 240 * number // max(1, len(labels) - 1)  # of many, which are in an order, from blue to red
        colour = COLOURS[number] if len(labels) <= len(COLOURS) else f"hsl({hue} 65% 50%)"
        if label in bands:
            xs_, lows, highs = bands[label]
            around = [place(x, y) for x, y in zip(xs_, lows, strict=True)] + [
                place(x, y) for x, y in reversed(list(zip(xs_, highs, strict=True)))
            ]
            marks.append(f'<polygon fill="{colour}" opacity="0.15" points="{_pairs(around)}"/>')
        if label in lines:
            marks.append(
                f'<polyline class="curve" stroke="{colour}" '
                f'points="{_pairs(place(*p) for p in lines[label] if is_drawn(*p))}"/>'
            )
        for x, y in (place(*p) for p in points.get(label, ()) if is_drawn(*p)):
            marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>')
        keys.append(f'<span class="key"><span style="color: {colour}">&#9632;</span> {_text(label)}</span>')
    name = f"{_text(y_name)} by {_text(x_name)}"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{"".join(marks)}</svg>'
    return f'{svg}<div class="soft">{" &emsp; ".join(keys)}</div>'


def _tick(number: float) -> str:
    """A number at an axis: 251,904 or 2.00 M in place of 2.519e+05 and 2e+06."""
    return f"{number:.4g}" if abs(number) < 10_000 else quantity(number).strip()


def _pairs(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _class(verdict: str) -> str:
    return "no" if verdict.startswith("not") else "yes" if verdict.startswith(("shown", "no difference")) else "soft"


def _verdict(verdict: str, reason: str = "") -> str:
    after = f": {_text(reason)}" if reason else ""
    return f"<p><span class='verdict {_class(verdict)}'>{_text(verdict)}</span>{after}</p>"


def html_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; empty without rows."""
    rows = list(rows)
    if not rows:
        return ""
    head = f"<tr>{''.join(f'<th>{_text(name)}</th>' for name in headings)}</tr>" if any(headings) else ""
    lines = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class='scroll'><table>{head}{lines}</table></div>"


def _text(value: Any) -> str:
    return html.escape(str(value))
