"""Charts: well-formed SVG of what can be drawn, with a key to all labels."""

from xml.etree import ElementTree

from archetype.chart import COLOURS, HEIGHT, WIDTH, Chart

NAME = "{http://www.w3.org/2000/svg}"


def test_lines_dots_and_bands_lie_on_the_chart() -> None:
    curve, band = ([1, 10, 100], [3.0, 2.0, 1.0]), ([1, 100], [1.0, 0.5], [4.0, 2.0])
    chart = Chart("tokens", "loss", {"a <b>": curve}, {"a <b>": curve}, {"a <b>": band}, log_x=True)
    root = ElementTree.fromstring(chart.svg())
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{NAME}circle")]
    assert len(dots) == 3 and all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in dots)
    assert dots[2][0] - dots[1][0] == dots[1][0] - dots[0][0]  # by logarithms
    assert len([*root.iter(f"{NAME}polyline")]) == len([*root.iter(f"{NAME}polygon")]) == 1
    texts = [text.text for text in root.iter(f"{NAME}text")]
    assert {"a <b>", "tokens", "loss", "1", "100", "0.5", "4"} <= set(texts)


def test_what_has_no_place_is_left_out() -> None:
    curve = ([0, 1, 2, 4], [1.0, float("inf"), 2.0, 3.0])
    root = ElementTree.fromstring(Chart("x", "y", {}, {"a": curve}, log_x=True).svg())
    assert len([*root.iter(f"{NAME}circle")]) == 2
    assert Chart("x", "y", {"a": ([], [])}).svg() == Chart("x", "y", {}, {"a": ([0], [1])}, log_x=True).svg() == ""
    assert "nan" not in Chart("x", "y", {"a": ([1], [1.0])}).svg()  # an axis whose ends are the same


def test_a_key_of_many_labels_takes_several_rows() -> None:
    lines = {f"a label of size {n}": ([0, 1], [n, n]) for n in range(len(COLOURS) + 4)}
    root = ElementTree.fromstring(Chart("x", "y", lines).svg())
    keys = [*root.iter(f"{NAME}rect")]
    assert len(keys) == len({key.attrib["fill"] for key in keys}) == len(lines)
    rows = {int(key.attrib["y"]) for key in keys}
    assert 1 < len(rows) < len(lines) and max(rows) < float(root.attrib["viewBox"].split()[3])
    assert all(float(key.attrib["x"]) < WIDTH for key in keys)
