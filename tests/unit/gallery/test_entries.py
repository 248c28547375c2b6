"""The models of the gallery: their facts are complete, and each specification is what the published files say."""

import re

import pytest
import torch

from archetype.families.index import preset_facts
from archetype.gallery.card import card_of, published_digits
from archetype.gallery.entries import entries, specification
from archetype.gallery.facts import SPECS
from archetype.gallery.tiny import tiny
from archetype.models.build import build
from archetype.spec.base import fingerprint
from archetype.spec.edit import assign
from tests.helpers.cases import case
from tests.helpers.examples import every

SAID = [name for name, entry in entries().items() if entry.spec or (SPECS / f"{name}.yaml").is_file()]


def test_facts_are_complete() -> None:
    assert len(entries()) >= 108 and len(SAID) >= 67
    dates = [entry.date for entry in entries().values() if entry.date]
    assert dates == sorted(dates)
    for name, entry in entries().items():
        with case(name):
            assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", entry.date)
            assert entry.why.endswith(".") and 20 < len(entry.why) < 200
            assert not entry.report or entry.report.startswith("https://")
            assert not entry.ancestor or entry.ancestor in entries() or entry.ancestor in preset_facts()
            for claim in filter(None, (entry.total, entry.active)):
                assert published_digits(int(float(claim[:-1]) * {"M": 1e6, "B": 1e9, "T": 1e12}[claim[-1]]), claim)
            # what is missing is named for each model that cannot be said, and for no other
            assert not (entry.evidence.needs and name in SAID)
            assert (SPECS / f"{name}.yaml").is_file() <= (not entry.spec and bool(entry.evidence.config))


def test_an_ancestor_is_older() -> None:
    for name, entry in entries().items():
        if entry.ancestor in entries():
            with case(name):
                assert entries()[entry.ancestor].date <= entry.date


@pytest.mark.parametrize("name", every(4, SAID))
def test_no_check_of_a_specification_fails(name: str) -> None:
    marks = card_of(entries()[name]).marks
    assert [mark.name for mark in marks] == ["parameters", "as published", "logits", "weights"]
    assert "no" not in [mark.state for mark in marks]
    assert marks[1].state == "yes"


def test_a_claim_is_compared_with_the_count_that_is_nearest() -> None:
    """11.0 billion active parameters of MiniMax M2 are no 10B, but 10.4 without the table of tokens are."""
    assert published_digits(11_030_537_216, "10B") and not published_digits(11_030_537_216, "10B", zeros=True)
    assert (
        card_of(entries()["minimax-m2"]).marks[1].text.startswith("10,415,940,608 active without the token embedding")
    )


def test_a_wrong_specification_fails_its_checks() -> None:
    card = card_of(entries()["deepseek-v3"])
    wrong = type(card)(card.entry, assign(card.spec, ["layers[3:].feedforward.experts_per_token=9"]))
    assert [mark.state for mark in wrong.marks[:2]] == ["yes", "no"]
    wrong = type(card)(card.entry, assign(card.spec, ["num_layers=60"]))
    assert wrong.marks[0].state == "no" and wrong.marks[0].text.startswith("659,")


@pytest.mark.parametrize("name", every(8, [name for name in SAID if entries()[name].ancestor]))
def test_the_changes_make_a_model_of_its_ancestor(name: str) -> None:
    card = card_of(entries()[name])
    assert fingerprint(assign(card.ancestor, card.changes)) == fingerprint(card.spec)


def test_every_model_has_a_small_relative() -> None:
    for name in SAID:
        with case(name):
            assert specification(f"{name}-tiny").d_model == 64


@pytest.mark.parametrize("name", every(12, SAID))
def test_a_small_relative_has_the_same_parts_and_trains(name: str) -> None:
    spec, small = specification(name), specification(f"{name}-tiny")
    assert small.name == f"{name}-tiny"
    layers = {(layer.mixer.kind, layer.feedforward.kind, layer.wiring.kind) for layer in spec.layers}
    assert {(layer.mixer.kind, layer.feedforward.kind, layer.wiring.kind) for layer in small.layers} == layers
    model = build(small)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000  # trains on a laptop
    tokens = torch.randint(small.vocab_size, (2, 33))
    logits = model(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    unused = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    # the index of keys has a loss of its own, and a bias of experts is moved by their balance
    assert all("index" in name or "bias" in name for name in unused)


def test_ratios_of_heads_are_kept() -> None:
    small = tiny(specification("qwen3-32b"))
    assert (small.layers[0].mixer.num_heads, small.layers[0].mixer.num_kv_heads) == (4, 1)
    assert small.layers[0].mixer.head_dim == 16 and small.d_model == 64


def test_a_name_of_the_gallery_is_a_specification_everywhere() -> None:
    import archetype

    assert archetype.load_spec("qwen3.6-35b-a3b").name == "qwen3.6-35b-a3b"
    assert archetype.load_spec("glm-5.2-tiny").d_model == 64
    with pytest.raises(archetype.ArchetypeError, match="there is no preset, file or folder of this name"):
        archetype.load_spec("deepseek-v4.1-flash")
