"""What stands in an exported folder beside the weights, and that nothing wrong is called done."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import archetype
from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.convert import hf_folder
from archetype.errors import CheckpointError
from archetype.io.weight_files import INDEX, PICKLED, PICKLED_INDEX, SINGLE
from archetype.models.build import Model, build
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.cases import case
from tests.unit.convert.test_apply import equal


def test_the_model_card_says_what_the_model_is(models: dict[str, Model], tmp_path: Path) -> None:
    export(LanguageModel(models["bert"].spec, models["bert"]), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    count = sum(parameter.numel() for parameter in models["bert"].parameters())
    assert f"A model of kind encoder with {count:,} parameters and 2 layers" in card
    assert "from transformers import BertForMaskedLM" in card
    assert card.startswith("---\nlibrary_name: transformers\ntags: [archetype, bert]\n---\n")


def test_what_does_not_read_back_is_not_called_done(
    models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intact = hf_folder.save

    def worn(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        tensors["model.norm.weight"].view(torch.int32)[3] ^= 1
        intact(path, tensors)

    monkeypatch.setattr(hf_folder, "save", worn)
    with pytest.raises(CheckpointError, match=r"final_norm.weight: reads back differently than it was written"):
        export(LanguageModel(models["llama"].spec, models["llama"]), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_none_read_back_as_they_are(models: dict[str, Model], tmp_path: Path) -> None:
    lm = LanguageModel(models["gpt2"].spec, models["gpt2"])
    bias = lm.model.state_dict()["final_norm.bias"]
    before = bias.clone()
    bias[0] = torch.nan
    try:
        export(lm, tmp_path / "out")
    finally:
        bias.copy_(before)
    assert load_file(tmp_path / "out" / SINGLE)["transformer.ln_f.bias"][0].isnan()


def test_the_names_of_classes_come_and_go(models: dict[str, Model], tmp_path: Path) -> None:
    lm = LanguageModel(models["bert for classes"].spec, models["bert for classes"], labels=("no", "yes", "perhaps"))
    export(lm, tmp_path / "named")
    assert json.loads((tmp_path / "named" / "config.json").read_text())["label2id"] == {"no": 0, "yes": 1, "perhaps": 2}
    assert load(tmp_path / "named").labels == ("no", "yes", "perhaps")
    export(LanguageModel(lm.spec, lm.model), tmp_path / "bare")
    assert load(tmp_path / "bare").labels == ()


def test_a_template_comes_and_goes(models: dict[str, Model], tmp_path: Path) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    export(LanguageModel(models["llama"].spec, models["llama"], template=template), tmp_path / "out")
    assert load(tmp_path / "out").template == template


def test_a_run_keeps_all_that_its_folder_said(models: dict[str, Model], tmp_path: Path) -> None:
    """Family, names of classes, chat template with its tokens, and every token that ends a text."""
    tokenizer = train_tokenizer("byte_bpe", "hello world, hello run", 300)
    tokenizer.bos = tokenizer.eos[0]
    end = "<|endoftext|>"
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": end, "eos_token": end})
    chat = spec.assign(models["llama"].spec, [f"vocab_size={tokenizer.vocab_size}"])
    special = {"eos_token_id": [tokenizer.eos[0], 5], "bos_token_id": tokenizer.bos, "pad_token_id": 7}
    cases = {
        "chat": LanguageModel(chat, build(chat), tokenizer, special=special, template=template),
        "classes": LanguageModel(models["bert for classes"].spec, models["bert for classes"], labels=("a", "b", "c")),
        "marian": LanguageModel(models["marian"].spec, models["marian"]),
    }
    for name, lm in cases.items():
        with case(name):
            folders = [tmp_path / name / step for step in ("folder", "run", "again")]
            export(lm, folders[0])
            before = load(folders[0])
            before.save(folders[1])
            after = load(folders[1])
            export(after, folders[2])
            assert (after.labels, after.template, after.special) == (before.labels, before.template, before.special)
            assert after.family is not None and before.family is not None and after.family.name == before.family.name
            files = {file.name for file in folders[0].iterdir()}
            assert files == {file.name for file in folders[2].iterdir()}
            for file in sorted(files):
                assert (folders[0] / file).read_bytes() == (folders[2] / file).read_bytes(), file
    chatting = load(tmp_path / "chat" / "run")
    assert chatting.tokenizer is not None and chatting.tokenizer.eos == tokenizer.eos
    assert chatting.ends == (tokenizer.eos[0], 5)
    assert chatting.chat([{"role": "user", "content": "hello"}], max_new_tokens=3) is not None


def test_only_what_writes_text_has_settings_for_it(models: dict[str, Model], tmp_path: Path) -> None:
    for name, has in (("llama", True), ("t5", True), ("bert", False), ("vit", False)):
        export(LanguageModel(models[name].spec, models[name]), tmp_path / name)
        assert (tmp_path / name / "generation_config.json").exists() == has


def test_a_target_begins_as_the_folder_says(models: dict[str, Model], tmp_path: Path) -> None:
    tokenizer = train_tokenizer("characters", "hello", None)
    tokenizer.eos = (2,)
    lm = LanguageModel(models["t5"].spec, models["t5"], tokenizer)
    export(lm, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["decoder_start_token_id"], config["pad_token_id"], config["eos_token_id"]) == (2, 2, 2)
    lm.special = {"decoder_start_token_id": 0, "pad_token_id": 0}
    export(lm, tmp_path / "other")
    assert load(tmp_path / "other").special["decoder_start_token_id"] == 0


@pytest.fixture
def old(models: dict[str, Model], tmp_path: Path) -> Path:
    """A folder as it was published before safetensors."""
    folder = tmp_path / "old"
    export(LanguageModel(models["llama"].spec, models["llama"]), folder)
    torch.save(load_file(folder / SINGLE), folder / PICKLED)
    (folder / SINGLE).unlink()
    return folder


def test_a_pickle_is_read_only_where_that_is_asked_for(models: dict[str, Model], old: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{PICKLED} is a pickle: `archetype import --allow-pickle` reads it"):
        load(old)
    assert equal(load(old, allow_pickle=True).model, models["llama"])


def test_pickles_in_shards(models: dict[str, Model], old: Path) -> None:
    tensors = torch.load(old / PICKLED)
    (old / PICKLED).unlink()
    names, places = sorted(tensors), {}
    for number, part in enumerate((names[:5], names[5:])):
        torch.save({name: tensors[name] for name in part}, old / f"pytorch_model-{number}.bin")
        places |= dict.fromkeys(part, f"pytorch_model-{number}.bin")
    (old / PICKLED_INDEX).write_text(json.dumps({"weight_map": places}))
    assert not (old / INDEX).exists()
    assert equal(load(old, allow_pickle=True).model, models["llama"])


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("how", ["torch", "pickle", "list", "text"])
def test_what_is_no_pickle_of_tensors_alone_is_refused_and_not_run(old: Path, tmp_path: Path, how: str) -> None:
    mark = tmp_path / "sprung"
    match how:
        case "torch":
            torch.save({"model.norm.weight": Trap(mark)}, old / PICKLED)
        case "pickle":
            (old / PICKLED).write_bytes(pickle.dumps(Trap(mark)))
        case "list":
            torch.save([torch.ones(2)], old / PICKLED)
        case "text":
            (old / PICKLED).write_text("no pickle")
    with pytest.raises(CheckpointError) as caught:
        archetype.load(old, allow_pickle=True)
    assert str(caught.value).startswith(f"{old / PICKLED}: ") and "\n" not in str(caught.value)
    assert not mark.exists()
