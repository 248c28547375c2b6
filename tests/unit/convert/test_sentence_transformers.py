"""modules.json of sentence-transformers, both ways: poolings, layers, heads that it replaces, and what is not known."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.convert.sentence_transformers.files import SentenceSettings, read_settings
from archetype.convert.sentence_transformers.head import ACTIVATIONS, dense_folders, read_head, write_head
from archetype.errors import CheckpointError
from archetype.models.file import read
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.published import EXACT
from tests.helpers.strategies import sentence_heads
from tests.helpers.weights import distance, randomize
from tests.unit.parts.test_sentence_head import model_with

D = 16
TEXTS = [[5, 9, 2, 30], [7], [3, 3, 40, 21, 8, 60, 1], [50, 4]]


def module(number: int, kind: str, old: bool = True) -> dict[str, Any]:
    place = "sentence_transformers.models" if old else "sentence_transformers.sentence_transformer.modules.any"
    path = "" if kind == "Transformer" else f"{number}_{kind}"
    return {"idx": number, "name": str(number), "path": path, "type": f"{place}.{kind}"}


def write(folder: Path, pooling: dict[str, Any], *further: str, dense: dict[str, Any] | None = None) -> Tensor:
    """A folder as sentence-transformers writes it, and the vectors of all tokens by transformers, (texts, T, D)."""
    sizes = {"vocab_size": 61, "hidden_size": D, "intermediate_size": 24, "num_hidden_layers": 2}
    model = BertModel(BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=32)).eval()
    randomize(model).save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *further]
    (folder / "modules.json").write_text(json.dumps([module(*pair) for pair in enumerate(kinds)]))
    configs = {"Pooling": pooling, "Dense": dense or {}}
    for number, kind in enumerate(kinds[1:], start=1):
        place = folder / f"{number}_{kind}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(configs.get(kind, {})))
        if kind == "Dense":
            torch.manual_seed(number)
            save_file({"linear.weight": torch.randn(6, D), "linear.bias": torch.randn(6)}, place / "model.safetensors")
    length = max(map(len, TEXTS))
    tokens = torch.tensor([text + [0] * (length - len(text)) for text in TEXTS])
    mask = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in TEXTS])
    with torch.no_grad():
        vectors: Tensor = BertModel.from_pretrained(folder).eval()(tokens, attention_mask=mask).last_hidden_state
    return vectors


def load(folder: Path) -> LanguageModel:
    lm = archetype.load(folder)
    lm.tokenizer = train_tokenizer("bytes", "", None)
    return lm


def rows(vectors: Tensor) -> list[Tensor]:
    return [row[: len(text)] for row, text in zip(vectors, TEXTS, strict=True)]


def weighted(row: Tensor) -> Tensor:
    weights = torch.arange(1, len(row) + 1.0)
    return (weights @ row) / weights.sum()


MODES = {
    "cls": lambda row: row[0],
    "max": lambda row: row.max(0).values,
    "mean": lambda row: row.mean(0),
    "mean_sqrt_len_tokens": lambda row: row.sum(0) / len(row) ** 0.5,
    "weightedmean": weighted,
    "lasttoken": lambda row: row[-1],
}
OLD = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}


def test_texts_are_pooled_as_the_file_says(tmp_path: Path) -> None:
    for mode, pool in MODES.items():
        with case(mode):
            vectors = write(tmp_path / mode, {"pooling_mode": mode})
            expected = torch.stack([pool(row) for row in rows(vectors)])
            lm = load(tmp_path / mode)
            assert distance(lm.embed(TEXTS), expected) < EXACT
            assert distance(lm.embed(TEXTS, pooling="mean"), expected) > EXACT  # which asks for another, of length 1
            assert distance(lm.embed(TEXTS, normalized=True).norm(dim=-1), torch.ones(4)) < EXACT


def test_older_keys_and_several_modes(tmp_path: Path) -> None:
    keys = {f"pooling_mode_{name}": True for name in OLD.values()} | {"pooling_mode_max_tokens": False}
    vectors = write(tmp_path, keys, "Normalize")
    joined = torch.stack([torch.cat([MODES[mode](row) for mode in OLD]) for row in rows(vectors)])
    expected = torch.nn.functional.normalize(joined, dim=-1)
    lm = load(tmp_path)
    assert distance(lm.embed(TEXTS), expected) < EXACT
    assert distance(lm.embed(TEXTS, normalized=False), joined) < EXACT


def test_a_layer_behind_it_and_the_way_through_a_run_and_an_export(tmp_path: Path) -> None:
    dense = {"in_features": D, "out_features": 6, "activation_function": "torch.nn.modules.activation.Tanh"}
    vectors = write(tmp_path / "theirs", {"pooling_mode": "mean"}, "Dense", "Normalize", dense=dense)
    torch.manual_seed(2)
    weight, bias = torch.randn(6, D), torch.randn(6)
    hidden = torch.tanh(torch.stack([row.mean(0) for row in rows(vectors)]) @ weight.T + bias)
    lm = load(tmp_path / "theirs")
    embedded = lm.embed(TEXTS)
    assert distance(embedded, torch.nn.functional.normalize(hidden, dim=-1)) < EXACT
    lm.save(tmp_path / "run")
    archetype.export(archetype.load(tmp_path / "run"), tmp_path / "out")
    for folder in ("run", "out"):
        assert torch.equal(load(tmp_path / folder).embed(TEXTS), embedded)
    for name in ("modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"):
        assert (tmp_path / "theirs" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_texts_are_cut_lowercased_and_prompted(tmp_path: Path) -> None:
    write(tmp_path, {"pooling_mode": "mean"})
    settings = {"max_seq_length": 4, "do_lower_case": True}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    prompts = {"prompts": {"query": "Q: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    lm = archetype.load(tmp_path)
    lm.tokenizer = train_tokenizer("characters", "abcq: ", None)
    plain = archetype.load(tmp_path)
    plain.sentence_files, plain.tokenizer = {}, lm.tokenizer
    assert distance(lm.embed("ABCCCC"), plain.embed("q: a", "mean", normalized=False)) < EXACT


@given(sentence_heads())
@settings(max_examples=30, deadline=None)
def test_every_head_is_written_and_read_the_same(head: spec.SentenceEmbeddingHead) -> None:
    own = all(layer.activation in ACTIVATIONS.values() for layer in head.layers)
    model = model_with(head)
    if own:
        files = write_head(model, {})
        assert read_head(files) == head
        assert read_settings(files) == SentenceSettings(max_length=model.context_length)
        widths = [json.loads(files[f"{path}/config.json"]) for path in dense_folders(files)]
        assert all(one["in_features"] == two["out_features"] for one, two in zip(widths[1:], widths, strict=False))
    else:
        with pytest.raises(CheckpointError, match=r"is not an activation of sentence-transformers"):
            write_head(model, {})


def test_every_published_folder_says_a_head_that_is_written_back(shared: Path) -> None:
    folder, unknown = shared / "published/configs", dict[str, str]()
    heads = dict[str, Any]()
    for file in sorted(folder.glob("*.modules.json")):
        name = file.name.removesuffix(".modules.json")
        beside = (path.name.removeprefix(f"{name}.") for path in folder.glob(f"{name}.*.json"))
        paths = {one: re.sub(r"^(\d_[A-Za-z]+)\.", r"\1/", one) for one in beside}
        files = {path: (folder / f"{name}.{one}").read_bytes() for one, path in paths.items()}
        try:
            head = read_head(files)
        except CheckpointError as error:
            unknown[name.partition("__")[2]] = str(error)
            continue
        if head is None:
            continue
        model = model_with(head).replace(d_model=64)
        assert read_head(write_head(model, files)) == head
        said = read_settings(files)
        said = said if "sentence_bert_config.json" in files else replace(said, max_length=9)  # the model's context
        assert read_settings(write_head(model, files)) == said
        heads[name.partition("__")[2]] = (head.pooling, [layer.width for layer in head.layers], head.normalize)
    assert heads["LaBSE"] == (("first",), [768], True)
    assert heads["embeddinggemma-300m"] == (("mean",), [3072, 768], True)
    assert heads["distiluse-base-multilingual-cased-v1"] == (("mean",), [512], False)
    assert heads["gte-large-en-v1.5"][0] == ("first",) and len(heads) >= 8
    assert unknown.keys() == {"instructor-large", "NoInstruct-small-Embedding-v0"}


@pytest.mark.parametrize("has_tensors", [True, False])
def test_a_head_that_names_tokens_gives_way(has_tensors: bool, tmp_path: Path) -> None:
    """As in the library, whose folders often name one without having it; the tensors are written back."""
    vectors = write(tmp_path / "theirs", {"pooling_mode": "mean"}, "Normalize")
    tensors = load_file(tmp_path / "theirs/model.safetensors")
    config = json.loads((tmp_path / "theirs/config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (tmp_path / "theirs/config.json").write_text(json.dumps(config))
    if has_tensors:
        masked = randomize(BertForMaskedLM(BertConfig.from_dict(config))).state_dict()
        cls = {name: tensor.clone() for name, tensor in masked.items() if name.startswith("cls.")}
        save_file(
            {f"bert.{name}": tensor for name, tensor in tensors.items()} | cls, tmp_path / "theirs/model.safetensors"
        )
    expected = torch.nn.functional.normalize(torch.stack([row.mean(0) for row in rows(vectors)]), dim=-1)
    lm = load(tmp_path / "theirs")
    assert distance(lm.embed(TEXTS), expected) < EXACT and lm.spec == archetype.load_spec(tmp_path / "theirs")
    assert bool(lm.left_out) == has_tensors
    archetype.export(lm, tmp_path / "out")
    again = load(tmp_path / "out")
    assert torch.equal(again.embed(TEXTS), lm.embed(TEXTS)) and again.spec == lm.spec
    written = load_file(tmp_path / "out/model.safetensors")
    assert any(name.startswith("cls.") for name in written) == has_tensors


def test_a_head_for_classes_stays_and_vectors_are_still_the_librarys(tmp_path: Path) -> None:
    vectors = write(tmp_path, {"pooling_mode": "lasttoken"})
    sizes = BertConfig.from_pretrained(tmp_path, num_labels=3)
    model = BertForSequenceClassification(sizes)
    model.bert.load_state_dict(BertModel.from_pretrained(tmp_path).state_dict())
    model.save_pretrained(tmp_path)
    lm = load(tmp_path)
    assert lm.spec.head.num_classes == 3
    assert distance(lm.embed(TEXTS), torch.stack([row[-1] for row in rows(vectors)])) < EXACT


@pytest.mark.parametrize("pools_prompt", [True, False])
def test_whether_a_prompt_is_pooled_stays_where_the_head_is_written_anew(pools_prompt: bool, tmp_path: Path) -> None:
    write(tmp_path / "theirs", {"pooling_mode": "mean", "include_prompt": pools_prompt})
    archetype.export(archetype.load(tmp_path / "theirs", overrides=["head.pooling=[max]"]), tmp_path / "out")
    assert json.loads((tmp_path / "out/1_Pooling/config.json").read_text())["include_prompt"] is pools_prompt


def test_a_head_that_was_changed_is_written_anew_with_prompts_and_length(tmp_path: Path) -> None:
    dense = {
        "in_features": D,
        "out_features": 6,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write(tmp_path / "theirs", {"pooling_mode": "mean"}, "Dense", dense=dense)
    said = {"config_sentence_transformers.json": {"prompts": {"query": "Q: "}, "default_prompt_name": None},
            "sentence_bert_config.json": {"max_seq_length": 9}}  # fmt: skip
    for name, content in said.items():
        (tmp_path / "theirs" / name).write_text(json.dumps(content))
    lm = load(tmp_path / "theirs")
    with torch.no_grad():
        lm.model.sentence_head.layers[0].weight.mul_(2)
    expected = lm.embed(TEXTS)
    archetype.export(lm, tmp_path / "weights")
    assert torch.equal(load(tmp_path / "weights").embed(TEXTS), expected)
    changed = archetype.load(tmp_path / "theirs", overrides=["head.pooling=[max]", "head.normalize=true"])
    assert changed.spec.head.pooling == ("max",)
    archetype.export(changed, tmp_path / "spec")
    assert archetype.load(tmp_path / "spec").spec == changed.spec
    for folder in ("weights", "spec"):
        assert load(tmp_path / folder).sentence_settings == lm.sentence_settings
        for name, content in said.items():
            assert json.loads((tmp_path / folder / name).read_text()) == content


def test_runs_that_were_imported_before_read_their_modules(tmp_path: Path) -> None:
    write(tmp_path / "theirs", {"pooling_mode": "max"}, "Normalize")
    lm = load(tmp_path / "theirs")
    lm.save(tmp_path / "run")
    file = tmp_path / "run/spec.yaml"
    file.write_text(re.sub(r"head:\n(  .*\n)+", "head: {kind: none}\n", file.read_text()))
    assert read(file).head.is_absent and torch.equal(load(tmp_path / "run").embed(TEXTS), lm.embed(TEXTS))


BAD: list[tuple[str, str, Any, str]] = [
    ("modules.json", "modules.json", {"0": 1}, "must list modules"),
    ("outside", "modules.json", [{"type": "a.Pooling", "path": "../x"}], "must list modules"),
    ("module", "modules.json", [module(1, "Pooling"), module(2, "CNN")], "CNN is not supported"),
    ("mode", "1_Pooling/config.json", {"pooling_mode": "median"}, "'median' is not supported"),
    ("no mode", "1_Pooling/config.json", {}, "is not supported"),
    ("order", "modules.json", [module(1, "Pooling"), module(2, "Normalize"), module(3, "Dense")], "Dense is not"),
    ("prompts", "config_sentence_transformers.json", {"prompts": {"a": 1}}, "must map names to texts"),
    ("prompt", "config_sentence_transformers.json", {"default_prompt_name": "a"}, "'a' is not one of the prompts"),
    ("length", "sentence_bert_config.json", {"max_seq_length": "long"}, "not a positive whole number"),
]  # fmt: skip


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    for name, file, content, cause in BAD:
        with case(name), pytest.raises(CheckpointError, match=cause):
            write(tmp_path / name, {"pooling_mode": "mean"})
            (tmp_path / name / file).write_text(json.dumps(content))
            load(tmp_path / name).embed(TEXTS)
