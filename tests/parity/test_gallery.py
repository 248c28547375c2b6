"""The checks on the gallery's cards, made again from the published files and from the coverage of transformers.

`python -m benchmarks.gallery` writes what these tests compare with.
"""

from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from archetype.gallery.card import OUTSIDE
from archetype.gallery.entries import entries
from archetype.spec.base import fingerprint
from benchmarks.gallery import config_of, evidence, missing
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.gallery import PINNED, PROVEN, VALUES, find
from tests.helpers.published_models import published_models, spec_of
from tests.helpers.zoo import page_of, rows_of

OF_TEXT = ("model.language_model.", "lm_head.")
ZOO = rows_of(page_of("causal").read_text(encoding="utf-8"))
READABLE = [name for name in (*PINNED, *VALUES) if not entries()[name].evidence.needs]
READABLE.sort(key=lambda name: name != "smollm3-3b")  # which has a header and is small


def test_logits_agree_where_the_coverage_of_transformers_says_so() -> None:
    for name, entry in entries().items():
        with case(name):
            agrees = entry.type in PROVEN or ZOO.get(entry.type, ("", ""))[0] == "agrees"
            assert (entry.evidence.agrees == transformers.__version__) is agrees


def test_what_is_missing_is_what_the_coverage_of_transformers_says() -> None:
    for name, entry in entries().items():
        if name not in PINNED and name not in VALUES:
            with case(name):
                outcome = find(entry, {}, ZOO)
                assert entry.evidence.needs == ("" if outcome.is_read else missing(outcome.said))


@pytest.mark.filterwarnings("ignore:.*rope_scaling:FutureWarning")  # which published files still have
@pytest.mark.filterwarnings("ignore::archetype.errors.UnreadKeys")  # GPT-2 XL's output_past, for one
@pytest.mark.parametrize("name", every(len(READABLE), READABLE))  # the largest take half a minute
def test_a_card_is_what_the_published_files_say(name: str, shared: Path) -> None:
    models = {model.file: model for model in published_models(shared)}
    entry = entries()[name]
    assert evidence(entry, shared, models, ZOO) == entry.evidence
    config = config_of(name, models)
    assert config is not None
    said = spec_of(shared, config)
    assert fingerprint(entry.specification()) == fingerprint(said)
    assert entry.evidence.numbers is not None and entry.evidence.places


def test_what_a_published_count_has_beside_the_text_model_is_counted(shared: Path) -> None:
    models = {model.file: model for model in published_models(shared)}
    for name, (count, _) in OUTSIDE.items():
        config_file = config_of(name, models)
        assert config_file is not None
        values = config_file.values
        with torch.device("meta"):
            config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
            kind = getattr(transformers, values["architectures"][0], None)
            whole = kind(config) if kind else transformers.AutoModelForImageTextToText.from_config(config)
        others = [one for place, one in whole.named_parameters() if not place.startswith(OF_TEXT)]
        assert sum(one.numel() for one in others) == count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rope_scaling:FutureWarning")
def test_what_is_missing_is_what_the_published_files_need(shared: Path) -> None:
    models = {model.file: model for model in published_models(shared)}
    for name in PINNED.keys() - {*READABLE}:
        with case(name):
            assert evidence(entries()[name], shared, models, ZOO) == entries()[name].evidence
