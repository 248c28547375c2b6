"""Configurations as they were published: docs/published.md says what becomes of each, and made small they agree.

A score of them runs with the other tests, all of them in `make soak`.
"""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Mistral3ForConditionalGeneration
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype.errors import ArchetypeError
from archetype.gallery.entries import entries
from benchmarks.published import PAGE, found, gallery_row, row
from tests.helpers.cases import case
from tests.helpers.published import EXACT, WRONG, lose
from tests.helpers.published_models import EXPLAINED, NESTED, is_published_as, published_models, read_published
from tests.helpers.weights import distance
from tests.helpers.zoo import TEXT, drawn, logits_of, page_of, rows_of, small_config, write_small
from tests.helpers.zoo_published import outcome_as_published, pinned_decoders, summary

TEXT_OF_PAGE = PAGE.read_text(encoding="utf-8")
TABLES = dict(zip(("summary", "gallery", "all"), TEXT_OF_PAGE.split("\n## "), strict=True))
PINNED = {
    cells[0].removeprefix("| "): (cells[2], cells[5].removesuffix(" |"))
    for line in TABLES["all"].splitlines()
    if len(cells := line.split(" | ")) == 6 and cells[2] in ("read", "refused", "not tried")
}
# Of registered families and others, with a header and without, with parts that are left out, and refused.
SCORE = (
    "openai-community__gpt2", "google__t5-v1_1-base", "openai__gpt-oss-20b", "XiaomiMiMo__MiMo-7B",
    "LiquidAI__LFM2-1.2B", "1bitLLM__bitnet_b1_58-3B", "hkunlp__instructor-large", "Qwen__Qwen-72B",
)  # fmt: skip
SCORE_SMALL = ("lfm2", "qwen3_5", "laguna", "minicpm3")


def test_the_page_says_what_becomes_of_a_configuration(shared: Path) -> None:
    for model in published_models(shared):
        if model.file.removesuffix(".json") in SCORE:
            with case(model.file):
                assert row(read_published(shared, model)) in TABLES["all"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rope_scaling:FutureWarning")  # which published files still have
def test_the_page_says_what_becomes_of_every_configuration(shared: Path) -> None:
    results = [read_published(shared, model) for model in published_models(shared)]
    assert sorted(PINNED) == sorted(one.model.file.removesuffix(".json") for one in results)
    for one in results:
        with case(one.model.file):
            assert row(one) in TABLES["all"]
            assert one.differs in (None, 0) or one.model.file in EXPLAINED
            assert "DIFFERS" not in str(one.beside)


def test_most_are_read_and_no_count_differs() -> None:
    statuses = [status for status, _ in PINNED.values()]
    assert len(statuses) == 200 and statuses.count("read") >= 146
    assert "DIFFERS" not in TEXT_OF_PAGE
    assert len(re.findall(r"(more|less) there", TABLES["all"])) == len(EXPLAINED)


def test_the_gallery_is_what_the_other_pages_say_and_at_least_sixty_are_read() -> None:
    gallery = found({f"{name}.json": outcome for name, outcome in PINNED.items()})
    assert len(gallery) == len(entries()) >= 107
    for number, one in enumerate(gallery, 1):
        with case(one.entry.name):
            start = gallery_row(number, one).rpartition(" | ")[0]  # a reason may be cut in either table
            assert any(line.startswith(start) for line in TABLES["gallery"].splitlines())
    assert sum(one.is_read for one in gallery) >= 60


@pytest.mark.parametrize(
    ("total", "claim", "equal"),
    [
        (228_689_748_992, "230B total", True),  # two digits
        (14_659_507_200, "14B parameters", True),  # cut off
        (30_700_000_000, "30.7B", True),
        (30_640_000_000, "30.7B", False),
        (1_026_408_209_408, "1T total", True),
        (7_600_000_000, "3B", False),
        (228_689_748_992, "231B", False),
    ],
)
def test_a_published_count_is_compared_to_its_digits(total: int, claim: str, equal: bool) -> None:
    assert is_published_as(total, claim) is equal


@pytest.mark.parametrize("kind", SCORE_SMALL)
def test_a_published_configuration_made_small_agrees(kind: str, shared: Path, tmp_path: Path) -> None:
    model = pinned_decoders(shared)[kind][0]
    result = outcome_as_published(kind, model, tmp_path)
    assert result.status == "agrees", result.said


@pytest.mark.slow
def test_the_zoo_says_how_many_published_configurations_agree(shared: Path, tmp_path: Path) -> None:
    page = page_of("causal").read_text(encoding="utf-8")
    for kind, models in pinned_decoders(shared).items():
        with case(kind):
            results = [outcome_as_published(kind, one, tmp_path / kind / str(n)) for n, one in enumerate(models)]
            assert "differs" not in [one.status for one in results]
            assert re.search(rf"^\| {kind} \| [\w ]+ \| {summary(results)} \|", page, flags=re.MULTILINE)


def test_no_published_configuration_differs_in_the_zoo() -> None:
    page = page_of("causal").read_text(encoding="utf-8")
    cells = re.findall(r"^\| \S+ \| [\w ]+ \| (\d+) of (\d+)(.*?) \|", page, flags=re.MULTILINE)
    assert sum(int(agree) for agree, _, _ in cells) >= 95 and not any("differs" in others for _, _, others in cells)
    assert set(rows_of(page)) >= {"llama", "qwen3_5"}


@pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")
def test_kimi_is_deepseek_v3_under_another_name(tmp_path: Path) -> None:
    """Alone, and in a model that sees, whose projection of pictures is left out."""
    expected = write_small("deepseek_v3", tmp_path / "theirs")
    values = json.loads((tmp_path / "theirs" / "config.json").read_text())
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    seen = {f"{NESTED}{name}": tensor for name, tensor in tensors.items()} | {"mm_projector.proj.0.bias": torch.ones(4)}
    text = values | {"model_type": "kimi_k2"}
    whole = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
    for name, config, weights in (("alone", text, tensors), ("whole", whole, seen)):
        with case(name):
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text(json.dumps(config))
            save_file(weights, tmp_path / name / "model.safetensors")
            lm = archetype.load(tmp_path / name)
            assert lm.family is not None and lm.family.reading is not None
            assert lm.family.reading.left_out == (("mm_projector.proj.0.bias",) if name == "whole" else ())
            with torch.no_grad():
                assert distance(lm.model(TEXT).logits, expected) < EXACT
                lose("blocks.1.feedforward.correction")(lm.model)
                assert distance(lm.model(TEXT).logits, expected) > WRONG


@pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")
def test_the_text_of_a_model_that_sees_is_read_where_no_causal_class_has_its_type(tmp_path: Path) -> None:
    """Mistral Small 3.1."""
    vision: dict[str, Any] = {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    text = small_config("mistral").to_dict()
    config = CONFIG_MAPPING["mistral3"](text_config=text, vision_config=vision, image_token_id=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn(Mistral3ForConditionalGeneration(config)).save_pretrained(tmp_path)
        theirs = Mistral3ForConditionalGeneration.from_pretrained(tmp_path)
    with torch.no_grad():
        assert distance(archetype.load(tmp_path).model(TEXT).logits, logits_of(theirs)) < EXACT


CLASSES = ("EncoderModel", "RewardModel", "")


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "t5", "mpt"])
def test_a_registered_format_is_read_for_its_own_classes_alone(kind: str, tmp_path: Path) -> None:
    """Half a pair, or a body without its head, is never costed as the whole."""
    family = archetype.families.published()[kind]
    spec = next(preset.make() for name, preset in family.presets.items() if name.endswith("-tiny"))
    values = family.format.config_for(spec)
    own = values["architectures"][0]
    stem = re.sub("ForCausalLM|LMHeadModel|ForConditionalGeneration", "", own)
    for name in (own.lower(), own.upper()):
        assert family.format.spec_from(values | {"architectures": [name]}) == family.format.spec_from(dict(values))
    for name in (*(f"{stem}{end}" for end in CLASSES), "BitNet"):
        with case(name), pytest.raises(ArchetypeError, match=f"architectures: '{name}' is not supported in") as caught:
            family.format.spec_from(values | {"architectures": [name]})
        assert "\n" not in str(caught.value)
    if kind != "t5":  # all weights of a tied head are the embedding's
        bare = family.format.spec_from(values | {"architectures": [f"{stem}Model"]})
        assert bare.head.kind == ("language_model" if spec.head.tied else "none")
