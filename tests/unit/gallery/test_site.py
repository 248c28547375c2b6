"""The pages of the gallery: small, without a foreign request, with links that lead somewhere."""

import csv
import json
import re
import shlex
import zlib
from base64 import urlsafe_b64decode
from functools import cache
from html import escape, unescape

import pytest

import archetype
from archetype.estimate.roofline import phase_times
from archetype.gallery.card import Card, Layers
from archetype.gallery.entries import entries
from archetype.gallery.html import card_page, index_page, layers_text, least_seconds, packed
from archetype.gallery.ideas import IDEAS, adoption
from archetype.gallery.rows import COLUMNS, table_rows
from archetype.gallery.site import all_cards, files_of, shared_files
from archetype.io.yaml import yaml_value
from archetype.machine.hardware import DEVICES
from archetype.models.file import parse
from archetype.spec.base import fingerprint
from archetype.spec.edit import assign
from tests.helpers.cases import case
from tests.helpers.examples import every

MOST = 100_000  # bytes of a page, and of a picture
FEW = ("deepseek-v3", "gemma-3-27b", "kimi-k2", "granite-4.1-30b", "nemotron-3-nano-30b-a3b", "deepseek-v4.1-flash")


@cache
def cards() -> dict[str, Card]:
    """All cards by id."""
    return {card.entry.id: card for card in all_cards()}


def at_length(card: Card, length: int) -> tuple[int, ...]:
    """State bytes, and FLOPs and state bytes read of the next token, as the page interpolates between its points."""
    points = card.points
    after = next((index for index, point in enumerate(points) if point.length >= length), len(points) - 1)
    right, left = points[after], points[max(after - 1, 0)]
    share = (length - left.length) / (right.length - left.length) if right.length != left.length else 1.0
    share = max(share, 0.0)
    return tuple(round(before + share * (after - before)) for before, after in zip(left[1:], right[1:], strict=True))


@pytest.fixture(scope="module")
def few() -> list[Card]:
    """Cards of each kind."""
    chosen = [cards()[name] for name in FEW]
    assert {card.kind for card in chosen} == {"said", "read", "missing"}
    return chosen


@pytest.mark.parametrize("name", every(40, list(entries())))
def test_a_page_is_small_and_loads_only_its_neighbours(name: str) -> None:
    files = dict(files_of(cards()[name], list(cards().values())))
    page = files[f"{name}.html"].decode()
    assert len(page.encode()) < MOST
    assert len(files.get(f"{name}-changes.svg", b"")) < MOST
    loaded = re.findall(r'(?:src|<link rel="stylesheet" href)="([^"]*)"', page)
    assert loaded and all(one in ("gallery.css", "gallery.js", f"{name}-changes.svg") for one in loaded)
    assert "url(" not in page and "@import" not in page and "onclick" not in page
    for address in re.findall(r'<a [^>]*?href="([^"#]*)"', page):
        if "://" not in address:
            assert address in files or address in ("index.html", *(f"{other}.html" for other in entries())), address
    if cards()[name].spec is not None:
        for file in (f"{name}.yaml", f"{name}-tiny.yaml"):
            with case(file):
                assert parse(yaml_value(files[file].decode(), file)).kind == "decoder"


def test_layers_are_counted_as_makers_do() -> None:
    """Gemma 4 E2B has 35 layers, Ouro 48 and Qwen3.8-Flash-Next 48, whatever else runs or is looked up."""
    expected = {
        "llama-3-8b": (32, 32, 0),
        "gemma-4-e2b": (35, 35, 35),
        "ouro-2.6b-thinking": (48, 192, 0),
        "qwen3.8-flash-next": (48, 48, 1),
        "nemotron-3-nano-30b-a3b": (52, 52, 0),
    }
    layers = {name: Layers.of(cards()[name].spec) for name in expected}
    assert {name: tuple(each) for name, each in layers.items()} == expected
    assert [layers_text(layers[name]) for name in ("llama-3-8b", "gemma-4-e2b", "ouro-2.6b-thinking")] == [
        "layers", "layers, plus 35 that only add vectors looked up by token", "layers, run 4 times each"
    ]  # fmt: skip
    assert layers_text(Layers(20, 44, 0)) == "layers, 44 with repeats"
    rows = {row["id"]: row for row in table_rows([cards()[name] for name in layers])}
    assert {name: (row["layers"], row["layers_run"]) for name, row in rows.items()} == {
        name: (each.distinct, each.run) for name, each in layers.items()
    }
    assert {name for name in COLUMNS if "*" not in name} <= {*rows["llama-3-8b"]}


def test_the_page_says_what_the_card_has() -> None:
    page = card_page(cards()["kimi-k2"], ["kimi-k2.5"])
    counts = ("1,026,408,209,408", "32,861,477,888", "published as 32B", "68.62 KiB", "2025-07-10")
    for text in (*counts, "archetype set deepseek-v3", "&#x27;layers[*].mixer.num_heads=64&#x27;", "kimi-k2.5.html"):
        assert text in page
    # where no published file was read, the page says what the specification is
    assert "preset <code>glm-4.5</code> (GLM Team 2025, table 1" in card_page(cards()["glm-4.7"], [])
    assert '<dd><a href="mimo-v2.5.html">Xiaomi MiMo-V2.5 310B</a></dd>' in card_page(cards()["mimo-v2.6-flash"], [])
    card = next(card for card in cards().values() if card.entry.evidence.needs)
    grey, needs = card_page(card, []), escape(card.entry.evidence.needs)
    assert "Not supported yet" in grey and f"Needs {needs}." in grey and "<svg" not in grey
    by_type = next(card for card in cards().values() if card.kind == "read")
    assert f"archetype gallery add {by_type.entry.repository}" in card_page(by_type, [])


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2", "glm-5.3-flash", "nemotron-3-super-120b-a12b"])
def test_the_command_on_a_page_makes_the_model_of_its_ancestor(name: str) -> None:
    command = re.search(r"<pre>(archetype set .*?)</pre>", card_page(cards()[name], []), re.DOTALL)
    assert command is not None
    program, verb, ancestor, *changes = shlex.split(unescape(command[1]).replace("\\\n", ""))  # as a shell joins lines
    assert (program, verb, ancestor) == ("archetype", "set", entries()[name].ancestor)
    assert fingerprint(assign(archetype.load_spec(ancestor), changes)) == fingerprint(cards()[name].spec)


def test_the_editor_opens_the_specification() -> None:
    link = re.search(r"spec=yaml:([\w-]+)", card_page(cards()["gemma-3-27b"], []))
    assert link is not None
    text = zlib.decompress(urlsafe_b64decode(link[1] + "=" * (-len(link[1]) % 4)), wbits=-15).decode()
    assert fingerprint(parse(yaml_value(text, "link"))) == fingerprint(cards()["gemma-3-27b"].spec)
    assert packed("") == "AwA"


def test_windows_saturate_and_recurrences_are_flat() -> None:
    # 52 of 62 layers keep 1,024 tokens: 16 heads of 128 numbers, keys and values, of two bytes
    window = cards()["gemma-3-27b"]
    assert at_length(window, 1024)[0] == 62 * 1024 * 2 * 16 * 128 * 2
    assert at_length(window, 16_384)[0] == (52 * 1024 + 10 * 16_384) * 2 * 16 * 128 * 2
    # between two points as well
    assert at_length(window, 12_000)[0] == window.report_at(12_000).state["bytes"]
    hybrid = cards()["nemotron-3-nano-30b-a3b"]
    growth = at_length(hybrid, 4096)[0] - at_length(hybrid, 2048)[0]
    assert growth == 2048 * 6 * 2 * 2 * 128 * 2
    assert least_seconds(3_350_000_000_000, 0, "H100-SXM") == pytest.approx(1.0)


def test_the_least_time_reads_only_the_keys_that_an_index_selects() -> None:
    def read(name: str, length: int) -> int:
        return at_length(cards()[name], length)[2] // 2  # numbers in bfloat16

    # 61 layers: the index's keys of all positions, and 2,048 latents with their rotary keys
    assert read("deepseek-v3.2", 131_072) == 61 * (131_072 * 128 + 2048 * (512 + 64))
    assert read("deepseek-v3.2", 1024) == at_length(cards()["deepseek-v3.2"], 1024)[0] // 2
    # three layers without an index; 16 blocks of 128 keys, of four heads
    assert read("minimax-m3", 131_072) == 3 * 131_072 * 4 * 256 + 57 * (131_072 * 128 + 16 * 128 * 4 * 256)
    # every fourth position is pooled in the layers with an index, and 512 of these keys are read
    index_layers = sum(layer.mixer.index is not None for layer in cards()["deepseek-v4-flash"].spec.layers)
    left_out = at_length(cards()["deepseek-v4-flash"], 65_536)[0] // 2 - read("deepseek-v4-flash", 65_536)
    assert left_out == index_layers * (65_536 // 4 - 512) * 512
    assert read("gpt-oss-20b", 4096) == at_length(cards()["gpt-oss-20b"], 4096)[0] // 2
    least = phase_times(cards()["deepseek-v3.2"].report_at(131_072), DEVICES["H100-SXM"])
    traffic = next(time.traffic for time in least if time.phase == "decode")
    assert traffic == cards()["deepseek-v3.2"].weights_read + 2 * read("deepseek-v3.2", 131_072)


def test_the_index_has_each_card_the_tree_and_the_ideas(few: list[Card]) -> None:
    page = index_page(few, adoption(few))
    assert [f'data-id="{name}"' in page for name in FEW] == [True] * len(FEW)
    assert "6 models: 4 with a specification, 1 of a supported type but with unknown sizes, and 1 in grey" in page
    tree = page[page.index('<ul class="tree">') :]
    assert tree.index("deepseek-v3.html") < tree.index("kimi-k2.html") < tree.index("11 changes")
    data = json.loads(re.search(r'id="models">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    fields = {data["names"][name]: values for name, *values in data["models"]["kimi-k2"][0]}
    assert fields["feedforward.num_experts"] == [384] and fields["mixer.kind"] == ["latent"]
    assert all(mark in page for mark in ('class="said"', 'class="read"', 'class="missing"'))


def test_ideas_are_those_of_the_specifications(few: list[Card]) -> None:
    ideas = {idea.name: (idea.first, sum(idea.users)) for idea in adoption(few).ideas}
    assert ideas["latent attention"] == ("deepseek-v3", 2)
    assert ideas["sliding-window or chunked attention"] == ("gemma-3-27b", 1)
    assert ideas["layers without positions (NoPE)"] == ideas["Mamba-2"] == ("nemotron-3-nano-30b-a3b", 1)
    assert "attention sinks" not in ideas
    assert adoption(few).months == ("2024-12", "2025-03", "2025-07", "2025-12")


def test_an_idea_is_of_the_models_that_use_it() -> None:
    """An idea counts only the models that have it: xLSTM caps its gates, which does not gate attention."""
    users = {
        "gated attention": (
            ("laguna-xs.2", "kimi-k3", "qwen3-next-80b-a3b"), ("deepseek-v3", "xlstm-7b", "kimi-linear-48b-a3b"),
        ),
        "mixture of experts": (("gemma-4-26b-a4b", "grok-2.5-270b"), ("gemma-4-31b",)),
        "attention sinks": (("gpt-oss-20b", "deepseek-v4-flash"), ("deepseek-v3",)),
        "sliding-window or chunked attention": (("deepseek-v4-flash", "gpt-oss-20b"), ("deepseek-v3",)),
        "sparse attention with a learned indexer": (("deepseek-v4-flash", "deepseek-v3.2"), ("deepseek-v3",)),
        "layers that run several times": (("ouro-2.6b-thinking",), ("gemma-4-e2b",)),
    }  # fmt: skip
    for idea, (using, others) in users.items():
        with case(idea):
            assert all(IDEAS[idea](cards()[name].fields) for name in using)
            assert not any(IDEAS[idea](cards()[name].fields) for name in others)


def test_the_table_is_json_and_csv(few: list[Card]) -> None:
    files = dict(shared_files(few))
    rows = json.loads(files["gallery.json"])["models"]
    assert [row["id"] for row in rows] == list(FEW)
    assert rows[2]["active"] == 32_861_477_888 and rows[5]["status"] == "missing" and rows[5]["total"] is None
    written = list(csv.DictReader(files["gallery.csv"].decode().splitlines()))
    assert [row["mark_as_published"] for row in written] == [row["mark_as_published"] for row in table_rows(few)]
    assert {"index.html", "gallery.css", "gallery.js"} < files.keys()
