"""Published configurations whose ids are not their tokenizer's: prompts, bos and eos, here and in an export."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import AutoTokenizer

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.errors import ArchetypeError
from archetype.families.own import OWN
from archetype.models.build import build
from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from tests.helpers.cases import case
from tests.helpers.examples import every

pytestmark = [
    pytest.mark.filterwarnings("ignore::archetype.errors.Notice"),  # of keys that are named
    pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning"),  # of types that transformers lacks
]
SIZES = {  # of vocabularies, by the folder of the tokenizer that the models of this size have
    30_522: "bert-base-uncased", 50_265: "roberta-base", 50_400: "gpt-j-6b", 49_155: "granite-3.1",
    129_280: "lenml-deepseek_v3", 32_768: "mistral-7b-instruct-v0.3", 51_200: "phi-2", 32_064: "phi-3-mini",
    50_304: "stable-code-3b", 32_128: "t5-small", 30_000: "albert-base-v2", 21_128: "chinese-roberta",
    151_936: "lenml-qwen3", 152_064: "lenml-qwen3",
}  # fmt: skip
SMALL = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "max_position_embeddings": 64, "max_window_layers": 1,
}  # fmt: skip
DROPPED = ("quantization_config", "auto_map", "vision_config", "layer_types")  # what the tiny model has not


class Mismatch(NamedTuple):
    """A configuration that names another bos or eos than its tokenizer does."""

    config: dict[str, Any]
    tokenizer: Path


def mismatches(shared: Path, names: set[str]) -> list[Mismatch]:
    """Those whose tokenizer is one of these folders."""
    tokenizers = {name: open_tokenizer(shared / "published" / "tokenizers" / name) for name in names}
    differing = []
    for file in sorted((shared / "published" / "configs").glob("*.json")):
        config = json.loads(file.read_text())
        if not isinstance(config, dict) or "model_type" not in config:
            continue
        name = SIZES.get(config.get("vocab_size"), "")
        if name not in names:
            continue
        tokenizer = tokenizers[name]
        eos = config.get("eos_token_id", tokenizer.eos[:1])
        ends = tuple(eos) if isinstance(eos, list | tuple) else (eos,)
        if config.get("bos_token_id", tokenizer.bos) != tokenizer.bos or ends != tokenizer.eos[:1]:
            differing.append(Mismatch(config, shared / "published" / "tokenizers" / name))
    return differing


def kinds(differing: list[Mismatch]) -> list[Mismatch]:
    """Those that differ in model type, tokenizer or ids."""
    keys = ("model_type", "bos_token_id", "eos_token_id")
    return [*{(one.tokenizer.name, *(str(one.config.get(key)) for key in keys)): one for one in differing}.values()]


def copied(tokenizer: Path, config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in tokenizer.iterdir():
        if not file.name.startswith("generation_config"):
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(folder: Path) -> tuple[Any, ...]:
    """What transformers makes of texts and of the names."""
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    plain = [theirs(text, add_special_tokens=False).input_ids for text in AWKWARD_TEXTS]
    prompts = [theirs(text).input_ids for text in AWKWARD_TEXTS]
    return plain, prompts, theirs.bos_token_id, theirs.eos_token_id


def same_as_transformers(folder: Path) -> tuple[Any, ...]:
    """Compare a folder's tokenizer as both read it.

    Encoders have no bos or eos for transformers, which calls the tokens around a text cls and sep.
    """
    ours, theirs = open_tokenizer(folder), read(folder)
    plain = [*map(ours.encode, AWKWARD_TEXTS)]
    assert plain == theirs[0]
    assert [*map(ours.add_special_tokens, plain)] == theirs[1]
    assert theirs[2] in (None, ours.bos) and theirs[3] in (None, *ours.eos[:1])
    if not theirs[1][0]:  # no token goes around a text: both names count
        assert (ours.bos, next(iter(ours.eos), None)) == theirs[2:]
    return theirs


def exported(one: Mismatch, folder: Path) -> LanguageModel | None:
    """A tiny model of the configuration, exported from its own folder and read; None where its type is not read."""
    values = {key: value for key, value in one.config.items() if key not in DROPPED}
    config = values | {key: value for key, value in SMALL.items() if key in values or key == "hidden_size"}
    source = copied(one.tokenizer, config, folder / "source")
    try:
        spec = archetype.load_spec(source)
        export(LanguageModel(spec, build(spec)), folder / "weights")
        (source / "model.safetensors").write_bytes((folder / "weights" / "model.safetensors").read_bytes())
        lm = archetype.load(source)
    except ArchetypeError:
        return None
    assert lm.family is not OWN
    export(lm, folder / "out")
    return lm


def check(one: Mismatch, folder: Path) -> bool:
    """Compare source and export; whether there is an export."""
    expected = same_as_transformers(copied(one.tokenizer, one.config, folder / "given"))
    lm = exported(one, folder)
    if lm is None:
        return False
    assert same_as_transformers(folder / "out") == expected
    said = json.loads((folder / "out" / "config.json").read_text())
    for key in ("bos_token_id", "eos_token_id"):  # which generation reads, and no tokenizer
        assert said.get(key) == one.config.get(key), key
    again = archetype.load(folder / "out")
    assert again.ends == lm.ends and again.tokenizer is not None and lm.tokenizer is not None
    assert (again.tokenizer.bos, again.tokenizer.eos) == (lm.tokenizer.bos, lm.tokenizer.eos)
    return True


def test_one_in_every_run(shared: Path, tmp_path: Path) -> None:
    assert check(mismatches(shared, {"chinese-roberta"})[0], tmp_path)


@pytest.mark.slow
def test_each_is_read_and_exported_as_transformers_reads_it(shared: Path, tmp_path: Path) -> None:
    differing = mismatches(shared, {*SIZES.values()})
    assert len(differing) >= 20
    exports = 0
    for number, one in enumerate(kinds(differing)):
        with case(one.config["model_type"], one.tokenizer.name):
            exports += check(one, tmp_path / str(number))
    assert exports >= 5


def roberta(folder: Path, said: dict[str, Any], source: Path) -> Path:
    config = json.loads((source / "tokenizer_config.json").read_text()) | said
    copied(source, {"model_type": "roberta"}, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "said", every(3, [{"eos_token": "<s>"}, {"bos_token": "</s>"}, {"bos_token": "</s>", "cls_token": "<s>"}])
)
def test_a_roberta_whose_names_are_others(said: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """Names of bos and eos change no row: the tokens around a text are cls and sep."""
    source = shared / "published" / "tokenizers" / "roberta-base"
    folder = roberta(tmp_path / "source", said, source)
    expected = same_as_transformers(folder)
    assert expected[3 if "eos_token" in said else 2] == (0 if "eos_token" in said else 2)
    tokenizer = open_tokenizer(folder)
    (out := tmp_path / "out").mkdir()
    tokenizer.save(out)
    (out / "config.json").write_text('{"model_type": "roberta"}')
    assert same_as_transformers(out) == expected
