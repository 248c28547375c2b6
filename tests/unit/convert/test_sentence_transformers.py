"""modules.json of sentence-transformers: each mode of pooling, layers behind it, and what is not known."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import BertConfig, BertModel

import archetype
from archetype.errors import CheckpointError
from archetype.language_model import LanguageModel
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.published import EXACT
from tests.helpers.weights import distance, randomize

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


BAD: list[tuple[str, str, Any, str]] = [
    ("modules.json", "modules.json", {"0": 1}, "does not list modules"),
    ("outside", "modules.json", [{"type": "a.Pooling", "path": "../x"}], "does not list modules"),
    ("module", "modules.json", [module(1, "Pooling"), module(2, "CNN")], "CNN here is not known"),
    ("mode", "1_Pooling/config.json", {"pooling_mode": "median"}, "'median' is not known"),
    ("no mode", "1_Pooling/config.json", {}, "is not known"),
    ("length", "sentence_bert_config.json", {"max_seq_length": "long"}, "not a positive whole number"),
]  # fmt: skip


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    for name, file, content, cause in BAD:
        with case(name), pytest.raises(CheckpointError, match=cause):
            write(tmp_path / name, {"pooling_mode": "mean"})
            (tmp_path / name / file).write_text(json.dumps(content))
            load(tmp_path / name).embed(TEXTS)
