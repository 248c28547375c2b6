"""Every type that transformers knows: what the pages of docs/zoo*.md say of it is so, and no type is read wrongly.

A score of types runs with the other tests, all of them in `make soak`.
"""

import json
import re
import warnings
from math import prod
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, Gemma3TextConfig

import archetype
from archetype.convert.source import read_hf_spec
from archetype.estimate.report import total_parameters
from archetype.families.class_keys import release_of
from archetype.io.weight_files import header
from benchmarks.zoo import page
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.hub import copy_headers
from tests.helpers.published import EXACT, same_tensors
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import TASKS, TEXT, TYPES, Outcome, outcome, page_of, rows_of, tables_of, write_small

PAGES = {task: page_of(task).read_text(encoding="utf-8") for task in TASKS}
INSTALLED = release_of(transformers.__version__)
ROWS = {task: {kind: status for kind, (status, _) in rows_of(page, INSTALLED).items()} for task, page in PAGES.items()}
PROMISED = {
    "causal": 132, "masked": 24, "texts": 73, "tokens": 53, "spans": 26, "pairs": 18, "images": 4, "image_text": 35,
}  # fmt: skip


# Together they run every line of archetype/convert/infer that all types run, and one cannot be made.
SCORE = (
    "afmoe", "aria_text", "axk1", "bitnet", "blenderbot-small", "codegen", "cohere2", "falcon_mamba", "gemma3", "glm4",
    "gpt_neox", "gpt_neox_japanese", "granitemoe_swa", "granitemoehybrid", "hunyuan_v1_dense", "hy_v3", "jamba",
    "kolibri1", "laguna", "lfm2_moe", "minicpm3", "ministral3", "modernbert-decoder", "nanochat", "nemotron_h",
    "openai-gpt", "qwen3_5", "qwen3_next", "rembert", "vaultgemma", "xglm", "xlm-roberta-xl", "zamba", "zaya",
)  # fmt: skip


# Numbers that are read with the weights and are none: no gradient reaches them.
NOT_TRAINED = re.compile(
    r".*(e_score_correction_bias|expert_bias|moe_statics.*|act_fn\.(beta|eps)|ffn\.gate\.(bias|tid2eid)|balancing_biases)"
)
# A norm that the class uses in two places, each of which has a norm here.
USED_TWICE = {"xmod": re.compile(r".*layer\.\d+\.output\.LayerNorm\..*")}


def check_page(kind: str, folder: Path, task: str = "causal") -> None:
    """What became of a type is what the page says; what was read is costed by its headers alone, to the unit."""
    result = outcome(kind, folder / "model", TASKS[task])
    assert result.status == ROWS[task][kind], f"{kind}: {result.said}"
    if result.status == "agrees" and not result.registered:
        headers = copy_headers(folder / "model", folder / "headers")
        family, read = read_hf_spec(headers, warn=False)
        assert family.reading is not None
        left_out = {name for name in header(headers) if name in family.reading.left_out or NOT_TRAINED.fullmatch(name)}
        twice = USED_TWICE.get(kind, NOT_TRAINED)
        sizes = {name: prod(tensor.shape) for name, tensor in header(headers).items() if name not in left_out}
        numbers = sum(size * (2 if twice.fullmatch(name) else 1) for name, size in sizes.items())
        assert total_parameters(read) == numbers, kind


@pytest.mark.parametrize("kind", every(4, SCORE))
def test_the_page_says_what_becomes_of_it(kind: str, tmp_path: Path) -> None:
    check_page(kind, tmp_path)


# Of the other tasks, what is read by its files, and what looks alike and is refused; `test_spellings.py` has the rest.
FURTHER = (
    ("masked", "bart"), ("masked", "deberta"), ("texts", "gpt_neox"), ("texts", "qwen3_next"), ("texts", "ctrl"),
    ("tokens", "glm4"), ("tokens", "mpnet"), ("spans", "bart"), ("pairs", "umt5"), ("images", "beit"),
)  # fmt: skip


@pytest.mark.parametrize(("task", "kind"), FURTHER)
def test_the_pages_of_other_tasks_say_what_becomes_of_it(task: str, kind: str, tmp_path: Path) -> None:
    check_page(kind, tmp_path, task)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(TASKS) - {"causal"}))
def test_the_pages_of_other_tasks_say_what_becomes_of_all(task: str, tmp_path: Path) -> None:
    for kind in TASKS[task].types:
        with case(kind):
            check_page(kind, tmp_path / kind, task)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(TYPES) - set(SCORE)))
def test_the_page_says_what_becomes_of_every_other_type(kind: str, tmp_path: Path) -> None:
    check_page(kind, tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_a_page_counts_at_least_what_was_promised_and_nothing_differs(task: str) -> None:
    types, known = set(TASKS[task].types), tables_of(PAGES[task])
    if INSTALLED in known:
        assert set(ROWS[task]) == types
    elif max(known) < INSTALLED:
        assert types <= ROWS[task].keys(), "run make zoo"
    for release in known:
        statuses = [status for status, _ in rows_of(PAGES[task], release).values()]
        assert statuses.count("agrees") >= PROMISED[task] and "differs" not in statuses
    newest = rows_of(PAGES[task])
    agree = [status for status, _ in newest.values()].count("agrees")
    assert f"Of {len(newest)} types, {agree} are read and agree" in PAGES[task]


def test_a_page_keeps_what_other_releases_have_otherwise() -> None:
    """Written by either release, it says the same of both."""
    one, other = (Outcome(kind, "agrees", "0.0e+00") for kind in ("bert", "bart"))
    pages = []
    for order in (("5.8", [one]), ("5.11", [one, other])), (("5.11", [one, other]), ("5.8", [one])):
        text = "written by transformers 5.8"
        for version, results in order:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(transformers, "__version__", f"{version}.0")
                text = page("masked", results, None, text)
        pages.append(text)
        assert rows_of(text, (5, 8)).keys() == rows_of(text, (5, 10)).keys() == {"bert"}
        assert rows_of(text).keys() == rows_of(text, (6, 0)).keys() == {"bert", "bart"}
        assert "Of 2 types, 2 are read" in text and "transformers 5.11.0 and read" in text
    assert pages[0] == pages[1]


def test_a_layout_that_a_comparison_corrected_is_named_and_so_not_proved_by_a_page() -> None:
    """Were such a type named as proved, its tensors would be read by what is assumed."""
    results = [Outcome(kind, "agrees", "0.0e+00", corrected=kind == "bert") for kind in ("bart", "bert")]
    text = page("causal", results, None, "written by transformers 5.8")
    assert "| bert | agrees | by its files, corrected |" in text and "| bart | agrees | by its files |" in text


# Of models with experts, transposed and fused matrices, parts that are left out, and a section for the text.
WRITTEN = ("codegen", "cohere2", "ernie4_5_moe", "git", "gpt_neox_japanese", "granitemoeshared", "glm4", "mbart")


def test_transformers_loads_what_is_written_back_of_families_that_are_not_registered(tmp_path: Path) -> None:
    for kind in WRITTEN:
        with case(kind), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder, run, out = (tmp_path / kind / name for name in ("folder", "run", "out"))
            expected = write_small(kind, folder)
            lm = archetype.load(folder)
            assert lm.family is not None and lm.family.reading is not None
            lm.save(run)
            archetype.export(archetype.load(run), out)
            assert json.loads((out / "config.json").read_text()) == json.loads((folder / "config.json").read_text())
            same_tensors(folder, out)
            model, loading = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
            assert not loading["missing_keys"] and not loading["mismatched_keys"]
            with torch.no_grad():
                assert torch.equal(model.eval()(TEXT, use_cache=False).logits, expected)


def test_the_spelling_of_the_files_that_gemma_3_was_published_with(tmp_path: Path) -> None:
    """Neither kinds of layers nor their positions apart: a period, and a base for the layers with a window."""
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8, "pad_token_id": 0}
    config = Gemma3TextConfig(**sizes, **heads, max_position_embeddings=64)
    randomize(AutoModelForCausalLM.from_config(config)).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    older = {key: value for key, value in values.items() if key not in ("layer_types", "rope_parameters")}
    older |= {"sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    older |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    (tmp_path / "config.json").write_text(json.dumps(older))
    theirs, tokens = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), torch.arange(4, 44)[None]
    lm = archetype.load(tmp_path)
    with torch.no_grad():
        assert distance(lm.model(tokens).logits, theirs(tokens, use_cache=False).logits) < EXACT
    assert [block.mixer.pattern.kind for block in lm.spec.layers] == ["window"] * 5 + ["full"]


def test_the_window_of_a_modernbert_decoder_is_half_of_what_both_sides_have(tmp_path: Path) -> None:
    """Published files have only `local_attention`; where transformers wrote `sliding_window` too, that is used."""
    write_small("modernbert-decoder", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(values | {"local_attention": 10}))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, lm = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), archetype.load(tmp_path)
        assert distance(lm.model(TEXT).logits, theirs(TEXT, use_cache=False).logits) < EXACT
    full, window = {"kind": "full"}, {"kind": "window", "size": 5}
    assert [block.mixer.pattern.dump() for block in lm.spec.layers] == [full, window, full]
