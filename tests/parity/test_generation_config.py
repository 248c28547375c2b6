"""Every field of transformers' GenerationConfig: the text of transformers, no effect, or a warning that names it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation import logits_process

import archetype
from archetype.api.language_model import LanguageModel
from archetype.errors import NotObeyed
from archetype.generate import Engine, Sampling, read_generation_config
from archetype.generate.beam import beam_search
from archetype.generate.filters import filtered
from archetype.generate.generation_config import (
    GENERATION_CONFIG,
    NEUTRAL,
    NEVER,
    OF_BEAMS,
    READ,
    SPECIAL,
    WITHOUT_EFFECT,
    generation_config,
)
from archetype.models.encoder_decoder.module import EncoderDecoder
from tests.helpers.examples import every, first_of_each
from tests.helpers.weights import randomize

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
EOS, NEW = 5, 12
PROMPTS = [[7, 3, 9, 3, 9], [11, 12, 13, 11], [20]]
# What the file says, beside the ids of special tokens: the greedy text is that of transformers.
OBEYED: dict[str, list[dict[str, Any]]] = {
    "max_new_tokens": [{"max_new_tokens": 4}],
    "max_length": [{"max_length": 9}],
    "min_new_tokens": [{"min_new_tokens": 7, "sequence_bias": [[[EOS], 90.0]]}],
    "min_length": [{"min_length": 9, "sequence_bias": [[[EOS], 90.0]]}],
    "sequence_bias": [{"sequence_bias": [[[3], 9.0], [[9, 4], 6.0], [[9, 3, 6], -4.0]]}],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": 60.0}, {"encoder_repetition_penalty": 0.6}],
    "repetition_penalty": [{"repetition_penalty": 1.6}, {"repetition_penalty": 0.5}],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": size} for size in (1, 2, 3)],
    "encoder_no_repeat_ngram_size": [{"encoder_no_repeat_ngram_size": 1},
        {"encoder_no_repeat_ngram_size": 2, "sequence_bias": [[[3], 40.0], [[3, 9], 90.0]]}],
    "bad_words_ids": [{"bad_words_ids": [[EOS], *([n] for n in range(0, 40, 2)), *([n, n] for n in range(40))]}],
    "forced_bos_token_id": [{"forced_bos_token_id": 4}],
    "forced_eos_token_id": [{"forced_eos_token_id": 6}, {"forced_eos_token_id": [EOS, 6]}],
    "exponential_decay_length_penalty": [{"exponential_decay_length_penalty": [2, 1.9]}],
    "suppress_tokens": [{"suppress_tokens": [n for n in range(40) if n % 3]}],
    "begin_suppress_tokens": [{"begin_suppress_tokens": [n for n in range(40) if n % 7]},
        {"begin_suppress_tokens": list(range(20)), "forced_bos_token_id": 4}],
    "together": [{
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "exponential_decay_length_penalty": [1, 1.2],
        "sequence_bias": [[[8], 3.0]], "min_new_tokens": 3, "suppress_tokens": [1],
    }],
}  # fmt: skip
FILTERS: dict[str, list[tuple[str, Any]]] = {
    "top_h": [("TopHLogitsWarper", value) for value in (0.2, 0.6, 0.99)],
    "typical_p": [("TypicalLogitsWarper", value) for value in (0.1, 0.5, 0.95)],
    "epsilon_cutoff": [("EpsilonLogitsWarper", value) for value in (1e-3, 0.05, 0.9)],
    "eta_cutoff": [("EtaLogitsWarper", value) for value in (1e-3, 0.05, 0.9)],
}
# Values with which a field that is not obeyed asks for something.
UNOBEYED: dict[str, Any] = {
    "num_beams": 4, "num_return_sequences": 2, "guidance_scale": 1.5, "token_healing": True, "penalty_alpha": 0.6,
    "max_time": 3.0, "watermarking_config": {"bias": 2.0}, "dola_layers": "high", "constraints": ["x"],
    "force_words_ids": [[3]], "of_tomorrow": 1, "chat_format": "raw",
}  # fmt: skip
# Cases that ask for nothing: the first token alone is forced, and only of a target; a text that repeats itself goes on.
WITHOUT_CHANGE = {("ll", "forced_bos_token_id", 0), ("t5", "repetition_penalty", 1)}
# What only a search obeys, and cases that change nothing of it.
RENORMALIZED: dict[str, list[dict[str, Any]]] = {
    "renormalize_logits": [{"renormalize_logits": True, "suppress_tokens": list(range(8, 24))}],
}  # fmt: skip
# Every target ends: of those that are cut off transformers may keep one that is likelier than all that ended.
ENDING = {"forced_eos_token_id": EOS}
WITHOUT_CHANGE_OF_BEAMS = {
    ("encoder_repetition_penalty", 1), ("encoder_no_repeat_ngram_size", 0), ("forced_eos_token_id", 1),
}  # fmt: skip
BEAMS = 3
CASES = [pytest.param(field, index) for field, values in OBEYED.items() for index in range(len(values))]
OF_EACH_FIELD = first_of_each(lambda field, index: [field], CASES)


@pytest.fixture(scope="module", params=every(2, ["llama", "t5"]))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(request.param, tmp_path_factory.mktemp(request.param))


def saved(kind: str, path: Path) -> Path:
    """The folder of a small model of random numbers."""
    config: Any
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            eos_token_id=EOS, bos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        model: Any = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.T5Config(
            vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, eos_token_id=EOS, pad_token_id=0,
            decoder_start_token_id=2,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config)
    randomize(model, seed=3)
    model.save_pretrained(path)
    return path


def given(folder: Path) -> dict[str, int]:
    """A number of tokens, where the file says none."""
    return {} if {"max_new_tokens", "max_length"} & _file(folder).keys() else {"max_new_tokens": NEW}


def ours(lm: LanguageModel, folder: Path, lookup: bool = False, slots: int = len(PROMPTS)) -> list[list[int]]:
    engine = Engine(lm, slots=slots, lookup=lookup)
    requests = [engine.submit(prompt, stop_ids=(EOS,), **given(folder)) for prompt in PROMPTS]
    for request in requests:
        request.result()
    return [request.tokens for request in requests]


def theirs(folder: Path) -> list[list[int]]:
    hf = transformers.AutoConfig.from_pretrained(folder)
    kind: Any = transformers.T5ForConditionalGeneration if hf.is_encoder_decoder else transformers.LlamaForCausalLM
    model = kind.from_pretrained(folder)
    texts = []
    for prompt in PROMPTS:
        ids = model.generate(torch.tensor([prompt]), **given(folder))[0].tolist()
        texts.append(ids[1:] if hf.is_encoder_decoder else ids[len(prompt) :])
    return texts


def _file(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / GENERATION_CONFIG).read_text())
    return values


def write(folder: Path, values: dict[str, Any]) -> None:
    ids = {key: value for key, value in _file(folder).items() if key in SPECIAL}
    (folder / GENERATION_CONFIG).write_text(json.dumps(ids | values))


@pytest.mark.parametrize(("field", "index"), OF_EACH_FIELD)
def test_a_field_is_obeyed_as_by_transformers(field: str, index: int, folder: Path) -> None:
    write(folder, {})
    before = theirs(folder)
    write(folder, OBEYED[field][index])
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotObeyed)
        expected = theirs(folder)
        lm = archetype.load(folder)
        assert ours(lm, folder) == expected
        assert ours(lm, folder, slots=1) == expected
        if not lm.spec.reads_source:
            assert ours(lm, folder, lookup=True) == expected  # guesses change nothing
    if (folder.name[:2], field, index) not in WITHOUT_CHANGE:
        assert before != expected  # the case asks for something


def beams(folder: Path, model: Any, field: str, index: int | None) -> tuple[list[list[int]], list[list[int]]]:
    """The targets of a search of three beams, by transformers and here."""
    asked = {} if index is None else (OBEYED | RENORMALIZED)[field][index]
    write(folder, ({} if EOS in asked.get("suppress_tokens", ()) else ENDING) | asked)
    limit = {} if {"max_new_tokens", "max_length"} & _file(folder).keys() else {"max_new_tokens": NEW}
    settings: dict[str, Any] = {"num_beams": BEAMS, "length_penalty": 0.0} | limit
    model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    expected = []
    for prompt in PROMPTS[:2]:
        ids = model.generate(torch.tensor([prompt]), **settings)[0, 1:].tolist()
        expected.append(ids[: ids.index(EOS)] if EOS in ids else ids)
    lm = archetype.load(folder)
    assert isinstance(lm.model, EncoderDecoder)
    return expected, beam_search(lm.model, PROMPTS[:2], 2, EOS, lm.beam(**settings))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[list[int]]]:
    """A folder, its model in transformers, and what that finds where the file says nothing."""
    folder = saved("t5", tmp_path_factory.mktemp("beams"))
    model: Any = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    expected, targets = beams(folder, model, "", None)
    assert expected == targets
    return folder, model, expected


@pytest.mark.parametrize(("field", "index"), every(3, [pytest.param("renormalize_logits", 0), *CASES]))
def test_beams_obey_a_field_as_those_of_transformers(
    field: str, index: int, searched: tuple[Path, Any, list[list[int]]]
) -> None:
    folder, model, before = searched
    expected, targets = beams(folder, model, field, index)
    assert targets == expected
    assert before != expected or (field, index) in WITHOUT_CHANGE_OF_BEAMS


@pytest.mark.parametrize("field", FILTERS)
def test_a_filter_keeps_the_tokens_that_transformers_keeps(field: str) -> None:
    logits: Tensor = (
        torch.randn(64, 300, generator=torch.Generator().manual_seed(1)) * torch.linspace(0.1, 6, 64)[:, None]
    )
    logits[:, 7] = -torch.inf  # as a filter before left it
    for name, value in FILTERS[field]:
        expected = getattr(logits_process, name)(value)(torch.zeros(64, 1, dtype=torch.long), logits)
        allowed = filtered(logits, Sampling.parse({field: value}))
        assert torch.equal(allowed.isfinite(), expected.isfinite())
        assert not torch.equal(allowed.isfinite(), logits.isfinite()) or value in (1.0, 1e-3)


def read(folder: Path, values: dict[str, Any]) -> Sampling:
    (folder / GENERATION_CONFIG).write_text(json.dumps(values))
    return read_generation_config(folder)[0]


@pytest.mark.parametrize("key", UNOBEYED)
def test_what_is_not_obeyed_is_named(key: str, tmp_path: Path) -> None:
    with pytest.warns(NotObeyed, match=f"generation_config.json: '{key}' may change the text") as caught:
        read(tmp_path, {key: UNOBEYED[key]})
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (None, *NEUTRAL.get(key, ())):
            read(tmp_path, {key: value})


def test_what_changes_no_text_passes_without_a_word(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(tmp_path, dict.fromkeys(WITHOUT_EFFECT, "x")) == Sampling(temperature=0.0)
        assert read(tmp_path, {"length_penalty": 2.0, "early_stopping": True}) == Sampling(temperature=0.0)
    with pytest.warns(NotObeyed, match="'num_beams', 'length_penalty'"):
        read(tmp_path, {"num_beams": 4, "length_penalty": 2.0})


def test_every_field_of_transformers_is_known() -> None:
    fields = set(transformers.GenerationConfig().to_dict()) | set(vars(transformers.GenerationConfig()))
    known = {*READ, *WITHOUT_EFFECT, *SPECIAL, *OF_BEAMS, *UNOBEYED, NEVER, "do_sample"}
    assert fields - known == set()
    assert {*OBEYED} - {"together", NEVER} | {*FILTERS} == {*READ} - {
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "stop_strings",
        "renormalize_logits",
    }


@pytest.mark.parametrize("field", [field for field in OBEYED if field not in ("max_new_tokens", NEVER, "together")])
def test_settings_are_read_as_they_were_written(field: str, tmp_path: Path) -> None:
    sampling = read(tmp_path, OBEYED[field][0])
    assert sampling != Sampling(temperature=0.0)
    assert read(tmp_path, json.loads(json.dumps(generation_config(sampling)))) == sampling


def test_every_key_goes_through_import_and_export(tmp_path: Path) -> None:
    """Whatever its value, and whether it is obeyed here or not."""
    spec = archetype.load_spec("llama-tiny")
    archetype.export(LanguageModel(spec, archetype.build(spec)), tmp_path / "hf")
    said: dict[str, Any] = {"eos_token_id": [EOS, 6], "pad_token_id": 0, "max_new_tokens": 256, "max_length": 77}
    said |= {"do_sample": False, "temperature": 0.7, "top_k": 0, "top_p": 1.0, "stop_strings": ["x"], "use_cache": True}
    said |= {key: value for values in OBEYED.values() for change in values for key, value in change.items()}
    said |= {name: values[0][1] for name, values in FILTERS.items()} | UNOBEYED
    said |= dict.fromkeys(WITHOUT_EFFECT - said.keys() - {"compile_config", "continuous_batching_config"}, 3)
    sampled = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "max_length": 50}
    for number, file in enumerate((said, sampled, {"max_new_tokens": 256}, {"num_beams": 4}, {})):
        (tmp_path / "hf" / GENERATION_CONFIG).write_text(json.dumps(file))
        folder = tmp_path / str(number)
        archetype.load(tmp_path / "hf").save(folder)
        archetype.load(folder).save(folder / "again")
        archetype.export(archetype.load(folder / "again"), folder / "out")
        written = json.loads((folder / "out" / GENERATION_CONFIG).read_text())
        assert {key: value for key, value in written.items() if key in file} == file
        assert not {key for key, value in written.items() if value is not None} - {*file, *SPECIAL, "do_sample"}
    lm = archetype.load(tmp_path / "0")  # settings that are changed replace the file's, and other keys stay
    lm.sampling = lm.settings(temperature=0.3, max_new_tokens=7)
    lm.save(tmp_path / "changed")
    assert archetype.load(tmp_path / "changed").sampling == lm.sampling
    written = json.loads((tmp_path / "changed" / GENERATION_CONFIG).read_text())
    assert (written["temperature"], written["max_new_tokens"], written["do_sample"]) == (0.3, 7, True)
    assert {key: written[key] for key in UNOBEYED} == UNOBEYED
