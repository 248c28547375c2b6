"""`archetype.hf`: models of every kind in transformers' hands: saved, loaded, padded, generated with, tuned, scored."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import peft
import pytest
import torch
import transformers
from torch import Tensor

import archetype
import archetype.hf as hf
from archetype import spec
from archetype.api.extension import load_extension
from archetype.api.loading import build_untrained
from archetype.errors import SpecError
from archetype.families.own import architecture_of
from archetype.hf.cache import LEAST, NAME, OLDER, ArchetypeCache
from tests.helpers import registered
from tests.helpers.weights import distance, randomize

EXACT, WRONG = 1e-5, 1e-3
TINY = [name for name in archetype.presets() if name.endswith("-tiny")]
ALWAYS = {
    "megabyte-tiny", "deepseek-v2-tiny", "mamba2-tiny", "gemma3-tiny", "gpt-oss-tiny", "ngram-tiny", "t5-tiny",
    "seq2seq-lstm-tiny", "bert-tiny", "deberta-v3-tiny", "vit-tiny",
}  # fmt: skip
EXTENSION = Path(__file__).parent.parent / "extensions" / "differential_attention.py"


def presets(*roles: str) -> Any:
    """Those whose models do one of these; most of them in the soak alone."""
    names = [name for name in TINY if any(getattr(archetype.load_spec(name), role) for role in roles)]
    marked = [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", marked)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def hybrid(**fields: Any) -> spec.ModelSpec:
    """Mamba and windowed attention in turn, which no class of transformers has."""
    data = archetype.load_spec("llama-tiny").dump()
    block = data["layers"][0]["block"]
    window = block | {"mixer": block["mixer"] | {"pattern": {"kind": "window", "size": 8}}}
    return archetype.load_spec(data | {"layers": [block | {"mixer": {"kind": "mamba"}}, window]} | fields)


def model_of(described: spec.ModelSpec, cls: Any = None, **config: Any) -> Any:
    """The model of its class, every tensor random."""
    cls = cls or getattr(hf, architecture_of(described))
    return randomize(cls(hf.ArchetypeConfig(spec=described, pad_token_id=0, **config))).eval()


def inputs_of(described: spec.ModelSpec) -> dict[str, Tensor]:
    if described.reads_images:
        channels, size = described.image_shape or (0, 0)
        return {"pixel_values": torch.rand(2, channels, size, size)}
    tokens = {"input_ids": torch.randint(1, described.input_vocab_size, (2, 9))}
    if described.reads_source:
        tokens["decoder_input_ids"] = torch.randint(1, described.input_vocab_size, (2, 4))
    return tokens


@torch.no_grad()
def answer(model: Any, **inputs: Any) -> Tensor:
    output = model(**inputs)
    numbers: Tensor = output.logits if "logits" in output else output.last_hidden_state
    return numbers


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("llama-tiny", (64, 2, 128, 256)), ("transformer-tiny", (64, 4, 128, 257)), ("megabyte-tiny", (64, 4, 128, 256)),
     ("vit-tiny", (64, 2, 17, 0)), ("bigram-tiny", (0, 0, 128, 256))],
)  # fmt: skip
def test_a_configuration_has_the_names_that_programs_of_transformers_read(
    name: str, sizes: tuple[int, int, int, int]
) -> None:
    config = hf.ArchetypeConfig(spec=archetype.load_spec(name))
    said = config.hidden_size, config.num_hidden_layers, config.max_position_embeddings, config.vocab_size
    assert said == sizes


@presets("continues_text", "fills_masks", "reads_source", "reads_images")
def test_a_model_of_any_kind_is_saved_and_loaded_by_both_libraries(name: str, tmp_path: Path) -> None:
    described = archetype.load_spec(name)
    model, inputs = model_of(described), inputs_of(described)
    expected = answer(model, **inputs)
    model.save_pretrained(tmp_path / "theirs")
    lm = archetype.load(tmp_path / "theirs")
    assert lm.spec == described
    archetype.export(lm, tmp_path / "ours", format="archetype-hf")
    for folder in ("theirs", "ours"):
        again = type(model).from_pretrained(tmp_path / folder).eval()
        assert distance(answer(again, **inputs), expected) < EXACT
    mine = {name.removeprefix("model.network."): tensor for name, tensor in model.state_dict().items()}
    assert mine.keys() == lm.model.state_dict().keys()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in lm.model.state_dict().items())
    assert archetype.cost_report(tmp_path / "theirs").parameters["total"] == model.num_parameters()


@presets("continues_text", "fills_masks")
def test_padding_on_either_side_changes_nothing(name: str) -> None:
    described = archetype.load_spec(name)
    model, tokens = model_of(described), inputs_of(described)["input_ids"]
    alone, padding = answer(model, input_ids=tokens[:1, :5]), torch.zeros(1, 4, dtype=torch.long)
    for left in (True, False):
        order = slice(None, None, 1 if left else -1)
        row, mask = (torch.cat((padding, x)[order], 1) for x in (tokens[:1, :5], torch.ones(1, 5, dtype=torch.long)))
        rows, masks = torch.cat((row, tokens[1:])), torch.cat((mask, torch.ones(1, 9, dtype=torch.long)))
        places = slice(4, None) if left else slice(5)
        assert distance(answer(model, input_ids=rows, attention_mask=masks)[:1, places], alone) < EXACT
        if left and name not in ("bigram-tiny", "ngram-tiny"):  # which sees few tokens
            assert distance(answer(model, input_ids=rows)[:1, places], alone) > WRONG


@presets("continues_text", "reads_source")
def test_generating_with_a_state_is_generating_without(name: str) -> None:
    """Greedily, with beams, and in rows that are padded."""
    check_generation(archetype.load_spec(name))


def test_a_hybrid_generates_with_a_state_as_without() -> None:
    check_generation(hybrid())


def check_generation(described: spec.ModelSpec) -> None:
    model, tokens = model_of(described, decoder_start_token_id=1), inputs_of(described)["input_ids"]
    settings = {"max_new_tokens": 5, "do_sample": False}
    for beams in (1, 3):
        whole = model.generate(tokens, use_cache=False, num_beams=beams, **settings)
        assert torch.equal(model.generate(tokens, num_beams=beams, **settings), whole)
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), tokens), 1)
    mask = (torch.arange(12) >= 3).long().expand(2, -1)
    start = 0 if described.reads_source else 3
    written = model.generate(padded, attention_mask=mask, **settings)[:, start:]
    assert torch.equal(written, model.generate(tokens, **settings))


def test_the_state_is_of_constant_size_and_grows_where_it_must() -> None:
    model = model_of(archetype.load_spec("mamba-tiny"))
    caches = [model(torch.ones(1, length, dtype=torch.long), use_cache=True)[NAME] for length in (3, 90)]
    assert caches[0].state.nbytes == caches[1].state.nbytes and isinstance(caches[0], ArchetypeCache)
    model = model_of(hybrid())
    tokens = torch.randint(1, 256, (2, LEAST + 20))
    whole, cache, steps = answer(model, input_ids=tokens), None, []
    for start in range(0, tokens.shape[1], 7):
        name = (NAME, OLDER, "cache")[start % 3]  # programs written for any release
        output = model(tokens[:, start : start + 7], **{name: cache}, use_cache=True)
        cache = output[NAME]
        steps.append(output.logits.detach())
    assert distance(torch.cat(steps, 1), whole) < EXACT


def test_no_old_name_of_a_cache_is_used_of_which_transformers_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    logger = transformers.utils.logging.get_logger("transformers").__class__
    monkeypatch.setattr(logger, "warning_once", lambda self, text, *args: said.append(text))
    model = model_of(archetype.load_spec("llama-tiny"))
    tokens = torch.randint(1, 256, (2, 9))
    for beams in (1, 2):
        model.generate(tokens, max_new_tokens=3, num_beams=beams, return_dict_in_generate=True)
    model.model(tokens, use_cache=True)
    assert not [text for text in said if OLDER in text]


def test_a_draft_that_is_always_right_loses_nothing_of_what_was_read() -> None:
    """The cache is then asked to forget no column, by `crop(0)`."""
    model = model_of(archetype.load_spec("llama-tiny"))
    tokens, settings = torch.randint(1, 256, (1, 9)), {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(tokens, **settings)
    assert torch.equal(model.generate(tokens, assistant_model=model_of_same(model), **settings), expected)
    cache = model(tokens, use_cache=True)[NAME]
    for forgotten in (0, -2, 5):
        cache.crop(forgotten)
        assert cache.get_seq_length() == {0: 9, -2: 7, 5: 5}[forgotten] and cache.is_croppable


def model_of_same(model: Any) -> Any:
    """Another model of the same weights."""
    other = type(model)(model.config)
    other.load_state_dict(model.state_dict())
    return other.eval()


def test_generating_goes_on_from_a_cache_that_was_given() -> None:
    model, tokens = model_of(hybrid()), torch.randint(1, 256, (2, 14))
    settings = {"max_new_tokens": 5, "do_sample": False}
    cache = model(tokens[:, :9], use_cache=True)[NAME]
    assert torch.equal(model.generate(tokens, **{NAME: cache}, **settings), model.generate(tokens, **settings))
    assert cache.get_seq_length() == 18  # the last token is written and not read


def test_texts_of_one_row_do_not_see_each_other_where_positions_begin_anew() -> None:
    model = model_of(archetype.load_spec("llama-tiny"))
    one, other = torch.randint(1, 256, (2, 1, 5)).unbind()
    places = torch.arange(5).repeat(2)[None]
    packed = answer(model, input_ids=torch.cat((one, other), 1), position_ids=places)
    alone = torch.cat([answer(model, input_ids=x) for x in (one, other)], 1)
    assert distance(packed, alone) < EXACT
    assert distance(answer(model, input_ids=torch.cat((one, other), 1)), alone) > WRONG
    with pytest.raises(SpecError, match="separate"):
        answer(model_of(hybrid()), input_ids=torch.cat((one, other), 1), position_ids=places)


@pytest.mark.parametrize(
    ("argument", "cause"),
    [
        ({"inputs_embeds": torch.zeros(1, 3, 64)}, "inputs_embeds: is not an argument"),
        ({"output_attentions": True}, "output_attentions: is not an argument"),
        ({"cross_attn_head_mask": torch.ones(2)}, "cross_attn_head_mask: is not an argument"),
        ({"position_ids": torch.tensor([[0, 2, 1]])}, "position_ids: differ"),
        ({"token_type_ids": torch.tensor([[0, 1, 1]])}, "token_type_ids: are not supported by causal models"),
        ({"attention_mask": torch.ones(1, 2)}, "attention_mask: has shape"),
        ({OLDER: transformers.DynamicCache()}, f"{NAME}: is a DynamicCache"),
        ({OLDER: ArchetypeCache(), "cache": ArchetypeCache()}, f"{OLDER}: is another name of"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(argument: dict[str, Any], cause: str) -> None:
    with pytest.raises(SpecError, match=cause):
        model_of(archetype.load_spec("llama-tiny"))(torch.ones(1, 3, dtype=torch.long), **argument)


def test_a_class_that_does_not_fit_is_refused_in_a_line() -> None:
    wrong = (
        (hf.ArchetypeForCausalLM, "bert-tiny"), (hf.ArchetypeForMaskedLM, "llama-tiny"),
        (hf.ArchetypeForImageClassification, "bert-tiny"), (hf.ArchetypeForSequenceClassification, "vit-tiny"),
    )  # fmt: skip
    for cls, name in wrong:
        with pytest.raises(SpecError, match=rf"{cls.__name__}: a model of kind .* does not"):
            cls(hf.ArchetypeConfig(spec=name))
    with pytest.raises(SpecError, match="spec: is missing"):
        hf.ArchetypeModel(hf.ArchetypeConfig())


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_is_resized_in_the_specification_too(tied: bool, mean: bool, tmp_path: Path) -> None:
    """Every row that was there stays, those of a bias too."""
    described = hybrid(head={"kind": "language_model", "tied": tied, "bias": True})
    model, tokens = model_of(described), inputs_of(described)["input_ids"]
    before = answer(model, input_ids=tokens)
    model.resize_token_embeddings(described.input_vocab_size + 3, pad_to_multiple_of=8, mean_resizing=mean)
    after = answer(model, input_ids=tokens)
    assert model.config.vocab_size == after.shape[-1] == 264 and distance(after[..., :256], before) < EXACT
    model.save_pretrained(tmp_path)
    again = hf.ArchetypeForCausalLM.from_pretrained(tmp_path).eval()
    assert distance(answer(again, input_ids=tokens), after) < EXACT
    assert archetype.load_spec(tmp_path).input_vocab_size == 264


def test_weights_are_drawn_as_the_specification_says() -> None:
    described = archetype.load_spec("mamba-tiny")
    ours = archetype.build(described)
    for model in (hf.ArchetypeForCausalLM(hf.ArchetypeConfig(spec=described)),
                 transformers.AutoModelForCausalLM.from_config(hf.ArchetypeConfig(spec=described))):  # fmt: skip
        for name, tensor in ours.state_dict().items():
            theirs = model.state_dict()[f"model.network.{name}"]
            assert torch.isfinite(theirs).all()
            assert theirs.std().item() == pytest.approx(tensor.std().item(), rel=0.3, abs=1e-6), name


@pytest.mark.parametrize(("name", "auto"), [
    ("llama-tiny", "SequenceClassification"), ("llama-tiny", "TokenClassification"),
    ("bert-tiny", "SequenceClassification"), ("bert-tiny", "TokenClassification"), ("vit-tiny", "ImageClassification"),
])  # fmt: skip
def test_a_model_gets_a_head_for_classes_and_learns(name: str, auto: str, tmp_path: Path) -> None:
    """A new head on the same vectors, which transformers says; the run goes back to Archetype with its names."""
    described = archetype.load_spec(name)
    model_of(described).save_pretrained(tmp_path / "base")
    cls, names = getattr(transformers, f"AutoModelFor{auto}"), {0: "a", 1: "b", 2: "c"}
    model = cls.from_pretrained(
        tmp_path / "base", id2label=names, label2id={n: i for i, n in names.items()}, ignore_mismatched_sizes=True
    )
    inputs = inputs_of(described)
    labels = torch.randint(3, (2, 9)) if auto == "TokenClassification" else torch.tensor([0, 2])
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(8):
        losses.append(model(**inputs, labels=labels).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.8 * losses[0]
    model.save_pretrained(tmp_path / "tuned")
    lm = archetype.load(tmp_path / "tuned")
    assert lm.labels == ("a", "b", "c")
    ours = lm.model(inputs.get("input_ids", inputs.get("pixel_values"))).logits
    assert distance(ours, answer(model.eval(), **inputs)) < EXACT


@pytest.mark.parametrize("name", ["hybrid", "deepseek-v2-tiny", "qwen3-moe-tiny"])
def test_adapters_of_peft_are_obeyed_in_every_form_of_a_pass(name: str) -> None:
    """Whole texts, steps with a state, and merged: latent attention reads the expanding matrix without a product."""
    described = hybrid() if name == "hybrid" else archetype.load_spec(name)
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model, tokens = model_of(described), torch.randint(1, 256, (2, 9))
    before = answer(model, input_ids=tokens)
    tuned = peft.get_peft_model(model, config).eval()
    for path, parameter in tuned.named_parameters():
        if "lora_" in path:
            torch.nn.init.normal_(parameter, std=0.3)
    whole = answer(tuned, input_ids=tokens)
    assert distance(whole, before) > WRONG
    settings = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    written = tuned.generate(input_ids=tokens, **settings)
    steps = answer(tuned, input_ids=written.sequences[:, :-1])[:, -4:]
    assert distance(torch.stack(written.logits, 1), steps) < EXACT
    assert distance(answer(tuned.merge_and_unload().eval(), input_ids=tokens), whole) < 1e-4


def test_the_trainer_trains_a_hybrid_with_recomputed_blocks(tmp_path: Path) -> None:
    """And its folder is Archetype's."""
    text = (Path(__file__).parent.parent.parent / "README.md").read_bytes()[:4096]
    rows = [{"input_ids": list(text[i : i + 32]), "labels": list(text[i : i + 32])} for i in range(0, 4096 - 32, 64)]
    model = hf.ArchetypeForCausalLM(hf.ArchetypeConfig(spec=hybrid(), pad_token_id=0, eos_token_id=0))
    fields = transformers.TrainingArguments.__dataclass_fields__  # releases before 5.23 have the older name alone
    recomputed = "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=12, per_device_train_batch_size=8, learning_rate=3e-3, report_to=[],
        **{recomputed: True}, save_strategy="no", logging_steps=1, use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    assert model.is_gradient_checkpointing
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    trainer.save_model(str(tmp_path / "model"))
    lm = archetype.load(tmp_path / "model")
    tokens = torch.tensor([rows[0]["input_ids"]])
    assert distance(lm.model(tokens).logits, answer(model.eval(), input_ids=tokens)) < EXACT


def test_accelerate_trains_a_hybrid_as_a_plain_loop_does() -> None:
    tokens = torch.randint(1, 256, (4, 2, 24))

    def losses(accelerator: accelerate.Accelerator | None) -> list[float]:
        torch.manual_seed(0)
        model: Any = hf.ArchetypeForCausalLM(hf.ArchetypeConfig(spec=hybrid(), pad_token_id=0))
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
        batches: Any = torch.utils.data.DataLoader(tokens, batch_size=None)
        if accelerator is not None:
            model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
        measured = []
        for batch in batches:
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward() if accelerator is None else accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            measured.append(loss.item())
        return measured

    plain = losses(None)
    assert losses(accelerate.Accelerator(cpu=True)) == plain
    assert plain[-1] != plain[0]


def test_a_pipeline_writes_with_the_tokenizer_of_the_folder(tmp_path: Path) -> None:
    archetype.train(tmp_path / "run", Path(__file__), spec=hybrid(), steps=2, batch_size=2, device="cpu")
    lm = archetype.load(tmp_path / "run", device="cpu")
    archetype.export(lm, tmp_path / "folder", format="archetype-hf")
    write = transformers.pipeline("text-generation", str(tmp_path / "folder"))
    (written,) = write("def ", max_new_tokens=8, do_sample=False)
    assert written["generated_text"] == "def " + lm.generate("def ", max_new_tokens=8, temperature=0.0)


def test_extensions_are_named_and_never_run_by_themselves(tmp_path: Path) -> None:
    with registered.registries_as_before():
        load_extension(EXTENSION)
        data = archetype.load_spec("llama-tiny").dump()
        data["layers"][0]["block"]["mixer"] = {"kind": "differential_attention", "num_heads": 2}
        model = model_of(archetype.load_spec(data))
        model.save_pretrained(tmp_path)
        again, inputs = hf.ArchetypeForCausalLM.from_pretrained(tmp_path).eval(), {"input_ids": torch.ones(1, 5).long()}
        assert distance(answer(again, **inputs), answer(model, **inputs)) < EXACT
    (needed,) = json.loads((tmp_path / "config.json").read_text())["extensions"]
    assert needed["name"] == EXTENSION.name and needed["kinds"] == ["Mixer.differential_attention"]
    for load in (transformers.AutoModelForCausalLM.from_pretrained, archetype.load):
        with pytest.raises(archetype.errors.ArchetypeError, match=r"attention\.py .*, which is not loaded"):
            load(tmp_path)


@pytest.mark.slow
def test_a_folder_with_code_is_read_where_that_code_is_trusted(tmp_path: Path) -> None:
    """In a process that has never imported the package."""
    lm = build_untrained("mamba-tiny")
    archetype.export(lm, tmp_path / "folder", format="archetype-hf", with_code=True)
    program = (
        "import sys; from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path / 'folder')!r}, trust_remote_code=True)\n"
        "print(type(model).__name__, model.num_parameters())"
    )
    environment = {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(archetype.__file__).parent.parent)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert result.stdout.split() == ["ArchetypeForCausalLM", "81856"], result.stderr
    archetype.export(lm, tmp_path / "plain", format="archetype-hf")
    assert "auto_map" not in json.loads((tmp_path / "plain" / "config.json").read_text())
