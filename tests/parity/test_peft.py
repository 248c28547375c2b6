"""Adapters: merged as not merged, written as folders that peft puts around the exported base, and read from such."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.convert.peft.config import CONFIG, read_config
from archetype.convert.peft.write import write_peft
from archetype.errors import CheckpointError, SpecError
from archetype.models.build import Model
from archetype.parts.adapter.module import install, merge
from tests.helpers.weights import distance, randomize

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft itself
TOLERANCE = 1e-5
# preset: the class of transformers, and targets that one tensor of the file may hold a part of
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "llama-tiny": ("LlamaForCausalLM", ("q", "v", "blocks.1.feedforward.down")),
    "gpt2-tiny": ("GPT2LMHeadModel", ("q", "v", "up")),
    "bert-tiny": ("BertForMaskedLM", ("blocks.[0-1].mixer.{k,o}", "up")),
    "t5-tiny": ("T5ForConditionalGeneration", ("q", "v", "decoder.blocks.0.cross.o")),
    "bloom-560m": ("BloomForCausalLM", ("q", "v")),
}
SMALL = ["d_model=32", "vocab_size=64", "layers[*].mixer.num_heads=4", "layers[*].feedforward.d_ff=128"]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Model, tuple[str, ...]]:
    """The class, a model of random tensors that was exported to tmp_path / base, and what gets adapters."""
    architecture, targets = CASES[request.param]
    source = archetype.load_spec(request.param)
    if request.param == "bloom-560m":
        source = spec.assign(source.replace(layers=source.layers[:2]), SMALL)
    model = archetype.build(source)
    randomize(model)
    archetype.export(LanguageModel(model.spec, model), tmp_path / "base")
    return architecture, model, targets


def ours(model: Any) -> Tensor:
    tokens = torch.arange(3, 51).view(2, 24)
    with torch.inference_mode():
        arguments = {"source": tokens, "target": tokens[:, :9]} if "decoder" in dict(model.named_children()) else None
        logits: Tensor = (model(**arguments) if arguments else model(tokens)).logits
    return logits


def theirs(model: Any) -> Tensor:
    tokens = torch.arange(3, 51).view(2, 24)
    with torch.inference_mode():
        more = {"decoder_input_ids": tokens[:, :9]} if model.config.is_encoder_decoder else {}
        logits: Tensor = model(input_ids=tokens, **more).logits
    return logits


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_peft_reads_what_is_written_and_merging_changes_nothing(
    kind: str, case: tuple[str, Model, tuple[str, ...]], tmp_path: Path
) -> None:
    from peft import PeftModel

    architecture, model, targets = case
    before = ours(model)
    adapter = spec.Adapter.kinds[kind].parse({"rank": 3, "alpha": 5.0, "dropout": 0.1, "targets": targets})
    assert isinstance(adapter, spec.Adapter)
    install(model, adapter)
    assert distance(ours(model), before) < 1e-6  # it begins without a change
    own = {name for name, _ in model.named_parameters() if name.endswith(("lora_A", "lora_B", "magnitude"))}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in sorted(own):
            model.get_parameter(name).normal_(1.0 if name.endswith("magnitude") else 0.0, 0.3, generator=generator)
    after = ours(model)
    assert distance(after, before) > 1e-2
    (tmp_path / "adapter").mkdir()
    lm = archetype.load(tmp_path / "base")
    assert lm.family is not None
    write_peft(model, adapter, lm.family, tmp_path / "adapter", str(tmp_path / "base"))
    hf = getattr(transformers, architecture).from_pretrained(tmp_path / "base")
    assert distance(theirs(PeftModel.from_pretrained(hf, tmp_path / "adapter").eval()), after) < TOLERANCE
    merge(model)
    assert distance(ours(model), after) < TOLERANCE
    assert {*model.state_dict()} == {*lm.model.state_dict()}
    assert distance(ours(archetype.load(tmp_path / "adapter").model), after) < TOLERANCE


@pytest.mark.parametrize(("use_rslora", "use_dora"), [(True, False), (False, True)])
def test_what_peft_writes_is_read(use_rslora: bool, use_dora: bool, tmp_path: Path) -> None:
    """One adapter for all of c_attn, with ranks of their own, and a head for classes that learned whole."""
    from peft import LoraConfig, get_peft_model

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    classes = {"num_labels": 3, "pad_token_id": 0}
    model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**sizes, **classes))
    randomize(model)
    model.save_pretrained(tmp_path / "base")
    config = LoraConfig(
        r=4, lora_alpha=6, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, use_rslora=use_rslora,
        use_dora=use_dora, rank_pattern={"mlp.c_proj": 2}, alpha_pattern={"h.0.attn.c_attn": 3}, task_type="SEQ_CLS",
    )  # fmt: skip
    tuned = get_peft_model(transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path / "base"), config)
    randomize(tuned, seed=3)
    with torch.no_grad():  # all but the adapter and the head are the base's
        state = dict(model.named_parameters())
        for name, parameter in tuned.named_parameters():
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            if "lora" not in name and "modules_to_save" not in name and plain in state:
                parameter.copy_(state[plain])
    tuned.save_pretrained(tmp_path / "adapter")
    tokens = torch.arange(3, 51).view(2, 24)
    with torch.inference_mode():
        expected = tuned.eval()(input_ids=tokens).logits
        logits = archetype.load(tmp_path / "adapter").model(tokens).logits
    assert distance(logits, expected) < TOLERANCE


def test_what_cannot_be_read_or_adapted_is_said(tmp_path: Path) -> None:
    model = archetype.build("llama-tiny")
    for target in ("query", "blocks.7.mixer.q"):
        with pytest.raises(
            SpecError, match=r"matches no linear layer of this model; use some of down, gate, k, o, q, up"
        ):
            install(model, spec.LoRA(targets=(target,)))
    whole = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "base_model_name_or_path": "nowhere"}
    for change, message in {
        "peft_type": "is 'IA3', and only LORA is supported", "bias": "'some' is not supported",
        "r": "is missing or damaged", "base_model_name_or_path": "there is no such folder",
    }.items():  # fmt: skip
        values = whole | {"peft_type": {"peft_type": "IA3"}, "bias": {"bias": "some"}, "r": {"r": None}}.get(change, {})
        (tmp_path / CONFIG).write_text(json.dumps(values))
        with pytest.raises(CheckpointError, match=f"{change}: .*{message}"):
            archetype.load(tmp_path) if change.startswith("base") else read_config(tmp_path)
