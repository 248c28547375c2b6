"""Every field of peft's LoraConfig, changed one at a time: read as peft reads it, or refused by its name."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor

import archetype
from archetype.convert.peft.config import CONFIG
from archetype.errors import CheckpointError
from tests.helpers.examples import every
from tests.helpers.weights import distance, randomize

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # of peft itself
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:RuntimeWarning"),
]
TOLERANCE = 1e-5


def _words(value: Any) -> list[str]:
    """The texts of a value, and of what it holds."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in _words(item)]
    return [text for item in value for text in _words(item)] if isinstance(value, list) else [str(value)]


PLAIN: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}
TABLE, HEAD = "embed_tokens", "lm_head"
# Changes of a plain configuration that are read as peft reads them. Those of one field, together with what they need.
READ: dict[str, list[dict[str, Any]]] = {
    "r": [{"r": 2}],
    "lora_alpha": [{"lora_alpha": 1}],
    "lora_dropout": [{"lora_dropout": 0.5}],
    "target_modules": [
        {"target_modules": "all-linear"}, {"target_modules": r".*layers\.1\..*_proj"},
        {"target_modules": ["self_attn.v_proj"]},
        {"target_modules": [TABLE]}, {"target_modules": [HEAD]}, {"target_modules": [TABLE, HEAD, "q_proj"]},
    ],
    "exclude_modules": [{"exclude_modules": ["layers.0.self_attn.q_proj"]}, {"exclude_modules": r".*layers\.1.*"}],
    "fan_in_fan_out": [{"fan_in_fan_out": True}],
    "bias": [{"bias": "all"}, {"bias": "lora_only"}],
    "use_rslora": [{"use_rslora": True}],
    "modules_to_save": [
        {"modules_to_save": ["k_proj"]}, {"modules_to_save": [TABLE]}, {"modules_to_save": [HEAD]},
        {"modules_to_save": [TABLE, HEAD]}, {"modules_to_save": ["norm"]},
    ],
    "init_lora_weights": [{"init_lora_weights": name} for name in
        (False, "gaussian", "eva", "olora", "pissa", "orthogonal", "mica")]
        + [{"init_lora_weights": "pissa", "use_rslora": True, "use_dora": True, "rank_pattern": {"q_proj": 3}}],
    "layers_to_transform": [{"layers_to_transform": 1}, {"layers_to_transform": [0]}],
    "layers_pattern": [{"layers_pattern": "layers", "layers_to_transform": [1]}],
    "rank_pattern": [{"rank_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 3}},
        {"rank_pattern": {"^model.*down_proj": 1}}],
    "alpha_pattern": [{"alpha_pattern": {"q_proj": 3, "layers.1.self_attn.q_proj": 9}},
        {"alpha_pattern": {"^layers.*": 9}}],
    "use_dora": [{"use_dora": True}, {"use_dora": True, "target_modules": [TABLE, HEAD, "v_proj"]}],
    "velora_config": [{"velora_config": {"num_groups": 4}}],
    "qalora_group_size": [{"qalora_group_size": 8}],
    "lora_bias": [{"lora_bias": True, "target_modules": ["q_proj"]}],
    "ensure_weight_tying": [{"ensure_weight_tying": True, "modules_to_save": [TABLE]},
        {"ensure_weight_tying": True, "target_modules": [TABLE, "v_proj"]}],
    "runtime_config": [{"runtime_config": peft.LoraRuntimeConfig(ephemeral_gpu_offload=True)}],
    "megatron_core": [{"megatron_core": "elsewhere"}],
    "inference_mode": [{"inference_mode": True}],
    "peft_version": [{"peft_version": "0.1"}],
    "revision": [{"revision": "main"}],
    "auto_mapping": [{"auto_mapping": {"parent_library": "transformers"}}],
    "task_type": [{"task_type": None}],
}  # fmt: skip
# Values in a file that are refused: what they ask for is not computed here.
REFUSED: dict[str, list[Any]] = {
    "peft_type": ["IA3", "ADALORA", "PROMPT_TUNING"],
    "base_model_name_or_path": [None, "", 3],
    "r": [None, 0, "8", True],
    "lora_alpha": [None, 0],
    "bias": ["some"],
    "init_lora_weights": ["loftq", "corda", "lora_ga", "pissa_niter_4", "of tomorrow"],
    "target_modules": [["v_proj"], "(", 3],
    "rank_pattern": [{"q_proj": 3}, {"q_proj": "3"}, {"(": 2}],
    "alpha_pattern": [{"q_proj": -1}, [1]],
    "trainable_token_indices": [[1, 2], {TABLE: [1]}],
    "alora_invocation_tokens": [[1, 2]],
    "use_qalora": [True],
    "monteclora_config": [{"num_samples": 8}],
    "layer_replication": [[[0, 2], [1, 2]]],
    "target_parameters": [["experts.down_proj"]],
    "use_bdlora": [{"nblocks": 2}],
    "arrow_config": [{"top_k": 3}],
    "kasa_config": [{"beta": 1e-4}],
    "exclude_modules": [["q_proj"]],
    "layers_to_transform": [[0]],
    "modules_to_save": [["q_proj"], "norm"],
    "of_tomorrow": [1],
}
# Fields that only say how an initialization was found, whose values are refused or passed with `init_lora_weights`.
OF_BEGINNINGS = {"loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_config"}
FIELDS = [pytest.param(field, index, False) for field, changes in READ.items() for index in range(len(changes))]
CASES = every(3, FIELDS) + [
    # a head that shares the embedding's table: of fields that say nothing of either in the soak alone
    pytest.param(field, index, True, marks=() if {TABLE, HEAD} & {*_words(change)} else pytest.mark.slow)
    for field, changes in READ.items()
    for index, change in enumerate(changes)
]


def base_model(folder: Path, tied: bool) -> Any:
    """A small Llama with biases, in a folder."""
    config = transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attention_bias=True, mlp_bias=True, tie_word_embeddings=tied,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    randomize(model)
    model.tie_weights()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The base with a head of its own, and with one that shares the embedding's table."""
    folders = {tied: tmp_path_factory.mktemp("base") for tied in (False, True)}
    for tied, folder in folders.items():
        base_model(folder, tied)
    return folders


@pytest.fixture
def base(bases: dict[bool, Path]) -> Path:
    return bases[False]


def tune(base: Path, folder: Path, architecture: Any = transformers.LlamaForCausalLM, **fields: Any) -> None:
    """Write the folder of an adapter of random numbers."""
    torch.manual_seed(7)  # of what peft begins with
    hf = architecture.from_pretrained(base)
    begun = fields.pop("init_lora_weights", True)
    as_begun = begun if begun in (False, "olora", "pissa", "mica") else True
    model = peft.get_peft_model(hf, peft.LoraConfig(**PLAIN | fields, init_lora_weights=as_begun))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            bias = fields.get("bias") == "all" and name.endswith("bias")
            if "lora_" in name or "modules_to_save" in name or bias or ("base_layer.bias" in name and "bias" in fields):
                tensor += 0.3 * torch.randn(tensor.shape, generator=generator)
    model.save_pretrained(folder)
    write(folder, {"init_lora_weights": begun})


def write(folder: Path, change: dict[str, Any]) -> None:
    values = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(values | change))


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        result: Tensor = model(torch.arange(48).view(2, 24)).logits
    return result


@pytest.mark.parametrize(("field", "index", "tied"), CASES)
def test_a_field_is_read_as_peft_reads_it(
    field: str, index: int, tied: bool, bases: dict[bool, Path], tmp_path: Path
) -> None:
    base = bases[tied]
    tune(base, tmp_path, **READ[field][index])
    plain = transformers.LlamaForCausalLM.from_pretrained(base)
    before = logits(plain)
    theirs = logits(peft.PeftModel.from_pretrained(plain, tmp_path).eval())
    lm = archetype.load(tmp_path)
    assert distance(logits(lm.model), theirs) < TOLERANCE
    assert distance(theirs, before) > 1e-2
    assert lm.spec == lm.model.spec


@pytest.mark.parametrize("field", REFUSED)
def test_a_value_that_is_not_computed_is_refused_by_its_key(field: str, base: Path, tmp_path: Path) -> None:
    tune(base, tmp_path)
    whole = (tmp_path / CONFIG).read_bytes()
    for value in REFUSED[field]:
        (tmp_path / CONFIG).write_bytes(whole)
        write(tmp_path, {field: value})
        with pytest.raises(CheckpointError) as caught:
            archetype.load(tmp_path)
        assert field in str(caught.value) or "adapter_config.json" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_every_field_of_peft_is_in_one_of_these_tables() -> None:
    fields = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert fields - READ.keys() - REFUSED.keys() == OF_BEGINNINGS


def test_a_folder_whose_tensors_do_not_fit_is_refused(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tune(base, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for change, cause in {
        "gone": {name: None}, "of another rank": {name: torch.zeros(2, 32)}, "of no matrix": {name: torch.zeros(4)},
        "of no module": {name.replace("q_proj", "x_proj"): tensors[name].clone()},
        "of another adapter": {name.replace("lora_A.weight", "lora_E"): tensors[name].clone()},
        "of no tensor": {"base_model.model.model.layers.0.self_attn.x_proj.weight": tensors[name].clone()},
    }.items():  # fmt: skip
        save_file({key: value for key, value in (tensors | cause).items() if value is not None}, file)
        with pytest.raises(CheckpointError, match=r"adapter_model.safetensors: base_model") as caught:
            archetype.load(tmp_path)
        assert "\n" not in str(caught.value), change


GPT2 = transformers.GPT2Config(
    n_embd=32, n_layer=2, n_head=2, vocab_size=64, n_positions=32, bos_token_id=1, eos_token_id=2
)  # fmt: skip
T5 = transformers.T5Config(
    vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0
)  # fmt: skip
GEMMA = transformers.Gemma3TextConfig(
    vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
    num_key_value_heads=2,
)  # fmt: skip
BERT = transformers.BertConfig(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
    max_position_embeddings=32,
)  # fmt: skip
# Matrices that a file turns and joins, tables that several modules have, embeddings that are scaled.
OTHERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("GPT2LMHeadModel", GPT2, {"target_modules": ["c_attn", "c_proj"], "init_lora_weights": "pissa"}),
    ("GPT2LMHeadModel", GPT2, {"target_modules": ["attn.c_proj"], "init_lora_weights": "olora"}),
    ("GPT2LMHeadModel", GPT2, {"target_modules": ["wte", "wpe", "c_fc"]}),
    ("GPT2LMHeadModel", GPT2, {"target_modules": ["c_attn"], "modules_to_save": ["wte"], "ensure_weight_tying": True}),
    ("GPT2LMHeadModel", GPT2, {"target_modules": ["c_attn"], "lora_bias": True, "modules_to_save": ["ln_1"]}),
    ("T5ForConditionalGeneration", T5, {"target_modules": ["q", "lm_head"]}),
    ("Gemma3ForCausalLM", GEMMA, {"target_modules": [TABLE, "q_proj"], "use_dora": True}),
    ("BertForMaskedLM", BERT, {"target_modules": ["query", "word_embeddings"], "task_type": None}),
    ("BertForMaskedLM", BERT, {"target_modules": ["query"], "modules_to_save": ["cls"], "task_type": None}),
]


@pytest.mark.parametrize("case", range(len(OTHERS)))
def test_other_families_are_read_as_peft_reads_them(case: int, tmp_path: Path) -> None:
    architecture, config, fields = OTHERS[case]
    kind = getattr(transformers, architecture)
    model = kind(config)
    randomize(model)
    model.tie_weights()
    model.save_pretrained(tmp_path / "base")
    tune(tmp_path / "base", tmp_path / "adapter", kind, **fields)
    hf = kind.from_pretrained(tmp_path / "base")
    tokens = torch.arange(3, 51).view(2, 24)
    target = {"decoder_input_ids": tokens[:, :9]} if config.is_encoder_decoder else {}
    with torch.inference_mode():
        before = hf(input_ids=tokens, **target).logits
        theirs = peft.PeftModel.from_pretrained(hf, tmp_path / "adapter").eval()(input_ids=tokens, **target).logits
        ours: Any = archetype.load(tmp_path / "adapter").model
        read = (ours(source=tokens, target=tokens[:, :9]) if target else ours(tokens)).logits
    assert distance(read, theirs) < TOLERANCE
    assert distance(theirs, before) > 1e-2


@pytest.mark.parametrize("fields", [{"target_modules": ["shared"]}, {"modules_to_save": ["shared"]}])
def test_a_table_of_several_modules_that_peft_does_not_keep_alike_is_refused(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    transformers.T5ForConditionalGeneration(T5).save_pretrained(tmp_path / "base")
    tune(tmp_path / "base", tmp_path / "adapter", transformers.T5ForConditionalGeneration,
        **{"target_modules": ["q"]} | fields)  # fmt: skip
    with pytest.raises(CheckpointError, match=r"base_model\.model\.shared\..* belongs to one of several modules"):
        archetype.load(tmp_path / "adapter")
