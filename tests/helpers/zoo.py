"""Small models of every type that transformers knows for a task, with random weights, and what becomes of them here."""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype.convert.infer.small import LATENT, MOST, SIZES
from archetype.errors import ArchetypeError, UnknownFamily
from archetype.families.class_keys import Release, nearest, release_of
from tests.conftest import ROOT
from tests.helpers.published import EXACT
from tests.helpers.weights import distance, randomize

TEXT = torch.arange(4, 24)[None]
# Two texts, of which the second is shorter, and is padded at its end with a token that no text has.
ROWS, COUNTS = torch.stack((torch.arange(4, 24), torch.arange(24, 4, -1))), torch.tensor([20, 13])
IS_TOKEN = torch.arange(20) < COUNTS[:, None]
PICTURES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
STATUSES = ("agrees", "differs", "refused", "not made")
NOT_THERE = "not there"  # a type that an older release does not know
OTHERWISE = "## Differences in transformers "  # the section of an older release
DECAYS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")  # of MiniMax, in its files
GEMMA4: dict[str, Any] = {"per_layer_config": {}, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 61}
# What a type wants beside or against the sizes above.
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "axk1", "axk2", "minicpm3", "glm4_moe_lite", "glm_moe_dsa",
         "sarvam_mla"),
        LATENT,
    ),
    "deepseek_v4": {
        "num_hidden_layers": 3, "mlp_layer_types": ["hash_moe", "moe", "moe"], "o_groups": 2, "o_lora_rank": 6,
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"],
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 6},
    },
    "hrm_text": {"num_layers_per_stack": None},  # else num_hidden_layers is not the number of layers with a cache
    "longcat_flash": LATENT | {"num_hidden_layers": 4},  # which are two of the file
    # two layers in the loop, one before and one after it
    "dory": {
        "num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1,
        "initializer_range": 0.3,  # about the size of the random numbers: with less, scores are in the thousands
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    # a layer that only reads images, between two of text
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "moshi": {"sliding_window": 64},  # transformers applies a shorter window with a cache alone
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "dots1": {"n_shared_experts": 1},
    "youtu": LATENT | {"pad_token_id": None},  # transformers zeroes the vector of a padding token on loading
    "modernbert-decoder": {"local_attention": 8},
    "modernbert": {"local_attention": 8},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "position_buckets": 4,
        "max_relative_positions": 16,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "pooler_hidden_size": 32,
    },
    "deberta": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": 8,
        "position_biased_input": False,
        "pooler_hidden_size": 32,
    },
    "xmod": {"default_language": "en_XX"},
    "prophetnet": {"num_hidden_layers": None},
    "mamba": {"intermediate_size": None},
    "falcon_mamba": {"intermediate_size": None},
    "mamba2": {"head_dim": 16, "n_groups": 2},
    "nemotron_h": {"n_groups": 2, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"layer_types": None, "attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "position_embedding_type": "rope"},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "kimi_linear": LATENT | {"linear_head_dim": 8, "linear_num_heads": 3},
    "bailing_hybrid": LATENT | {"head_dim": 8, "qk_rope_head_dim": 8, "partial_rotary_factor": 1.0},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {
        "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 48, "hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note_text": LATENT | {
        "shared_experts_intermediate_size": 16, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 10, "swa_kv_lora_rank": 6, "swa_head_dim": 10, "swa_qk_nope_head_dim": 4,
        "swa_v_head_dim": 5,
    },
    "falcon_h1": {"layer_types": None, "mamba_d_ssm": 64, "mamba_n_heads": 4},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0, "laurel_rank": 4,
        "activation_sparsity_pattern": [0.5, 0.0], "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 61,
    },
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    # heads in which the delta rule of transformers rounds less: with its defaults, 6 and 12, up to 1.4e-5 in float32
    "olmo_hybrid": {"linear_key_head_dim": 8, "linear_value_head_dim": 16},
    # a layer with an index, as most of those that are published have
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2, "index_head_dim": 8,
        "index_block_size": 4, "index_topk_blocks": 2, "shared_intermediate_size": 24,
    },
    "phi4_multimodal": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"], "indexer_n_heads": 16, "indexer_kv_heads": 1,
        "indexer_head_dim": 8, "indexer_budget": 16, "indexer_compress_ratio": 4, "ngram_vocab_size_base": 61,
    },
    "glm5_next_text": {
        "num_key_value_heads": 4, "qk_rope_head_dim": 0, "index_kpool": 2, "index_topk": 4, "linear_head_dim": 8,
        "linear_num_heads": 3, "swiglu_limit": 0.3,
    },
    "glm5_next_vision": {"projection_intermediate_size": 48, "out_hidden_size": 32},
    "recurrent_gemma": {"layer_types": None, "num_hidden_layers": 3, "lru_width": 32},
    "inkling2_loop_text": {"unpadded_vocab_size": 61},
    # heads of one width; biases and factors of queries that a short text reaches
    "inkling_text": {
        "swa_head_dim": 8, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1, "rel_extent": 6,
        "log_scaling_n_floor": 4, "mlp_layer_types": ["dense", "sparse"],
    },
    "rembert": {"input_embedding_size": 24, "output_embedding_size": 40},
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 5], "attn_layers": ["local", "lsh"],
        "attention_head_size": 8, "feed_forward_size": 48,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 31, "shape_vocab_size": 31, "pronunciation_embed_dim": 8, "shape_embed_dim": 8,
    },
    "xlnet": {"max_position_embeddings": None},
    # two layers with the shared part: transformers cannot tie one
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
    # positions in three parts, of heads of 8 features
    **{
        kind: {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
        for kind in ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "paddleocr_vl_text", "glm4v_text",
                     "glm4v_moe_text", "glm_ocr_text", "ernie4_5_vl_moe_text")
    },
}  # fmt: skip


def _padded(model: PreTrainedModel) -> dict[str, Tensor]:
    """The texts as transformers takes them: padded with the token that the configuration names."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
    texts = {"input_ids": ROWS.where(IS_TOKEN, torch.tensor(padding)), "attention_mask": IS_TOKEN.long()}
    if hasattr(model.config, "attention_window"):  # the first token is global here, and nowhere else unless it is said
        texts["global_attention_mask"] = (torch.arange(20) == 0).expand(2, 20).long()
    return texts


@dataclass(frozen=True)
class Task:
    """A task of transformers.

    Attributes:
        title: what its types are for, in the title of their page.
        auto: the class that makes a model of a type.
        types: that have a model for it.
        theirs: the answers of a model of transformers to one input, each for one row of the result.
        ours: those of the same model here.
        sizes: settings beside those of all types.
    """

    title: str
    auto: Any
    types: tuple[str, ...]
    theirs: Callable[[Any], Tensor]
    ours: Callable[[Any], Tensor]
    sizes: dict[str, Any]

    @property
    def most(self) -> int:
        """Parameters of the largest model that is made; the pictures' parts have no small sizes in some types."""
        return 25_000_000 if self.auto is transformers.AutoModelForImageTextToText else MOST


def _causal(model: Any) -> Tensor:
    return model(TEXT, use_cache=False).logits  # type: ignore[no-any-return]


def _of_text_alone(model: Any) -> Tensor:
    """The logits of a text without pictures; positions in three parts are then all alike."""
    if model.config.is_encoder_decoder:
        raise ValueError("an encoder-decoder, which reads its picture as the source")
    return model(input_ids=TEXT, use_cache=False).logits  # type: ignore[no-any-return]


def _texts(model: Any) -> Tensor:
    target = {"decoder_input_ids": ROWS} if model.config.is_encoder_decoder else {}
    return model(**_padded(model), **target).logits  # type: ignore[no-any-return]


# Of two texts the same, each ended by the token by which a pair for classes finds the end.
ENDED = ROWS.where(torch.arange(20) != COUNTS[:, None] - 1, torch.tensor(SIZES["eos_token_id"]))


def _classes(model: Any) -> Tensor:
    if not model.config.is_encoder_decoder:
        return _texts(model)
    texts = _padded(model)
    return model(**texts | {"input_ids": ENDED.where(IS_TOKEN, texts["input_ids"])}, decoder_input_ids=ROWS).logits  # type: ignore[no-any-return]


def _our_classes(model: Any) -> Tensor:
    if not model.spec.reads_source:
        return _our_texts(model)
    return model(ROWS, num_tokens=COUNTS, source=ENDED, source_num_tokens=COUNTS).logits  # type: ignore[no-any-return]


def _our_texts(model: Any) -> Tensor:
    if model.spec.reads_source:
        return _our_pairs(model)
    return model(ROWS, num_tokens=COUNTS).logits  # type: ignore[no-any-return]


def _spans(model: Any) -> Tensor:
    target = {"decoder_input_ids": ROWS} if model.config.is_encoder_decoder else {}
    output = model(**_padded(model), **target)
    return torch.stack((output.start_logits, output.end_logits), -1)[IS_TOKEN]


def _our_spans(model: Any) -> Tensor:
    return _our_texts(model)[IS_TOKEN]


def _pairs(model: Any) -> Tensor:
    if not model.config.is_encoder_decoder:  # a decoder of sound, whose text alone is asked
        return _texts(model)[IS_TOKEN]
    return model(**_padded(model), decoder_input_ids=ROWS, use_cache=False).logits  # type: ignore[no-any-return]


def _our_pairs(model: Any) -> Tensor:
    if not model.spec.reads_source:
        return _our_texts(model)[IS_TOKEN]
    return model(ROWS, source=ROWS, source_num_tokens=COUNTS).logits  # type: ignore[no-any-return]


def _task(title: str, auto: Any, theirs: Callable[[Any], Tensor], ours: Callable[[Any], Tensor], **sizes: Any) -> Task:
    types = tuple(dict.fromkeys(auto._model_mapping._model_mapping))
    return Task(title, auto, types, theirs, ours, sizes)


CLASSES: dict[str, Any] = {"num_labels": 3}
TASKS: dict[str, Task] = {
    "causal": _task(
        "causal", transformers.AutoModelForCausalLM, _causal, lambda model: model(TEXT).logits, is_decoder=True
    ),
    "masked": _task(
        "masked tokens", transformers.AutoModelForMaskedLM,
        lambda model: _texts(model)[IS_TOKEN], lambda model: _our_texts(model)[IS_TOKEN],
    ),
    "texts": _task(
        "text classes", transformers.AutoModelForSequenceClassification, _classes, _our_classes,
        **CLASSES
    ),
    "tokens": _task(
        "token classes", transformers.AutoModelForTokenClassification,
        lambda model: _texts(model)[IS_TOKEN], lambda model: _our_texts(model)[IS_TOKEN], **CLASSES,
    ),
    "spans": _task(
        "question answering", transformers.AutoModelForQuestionAnswering, _spans, _our_spans
    ),
    "pairs": _task(
        "pairs", transformers.AutoModelForSeq2SeqLM, _pairs, _our_pairs
    ),
    "image_text": _task(
        "images and text", transformers.AutoModelForImageTextToText,
        _of_text_alone, lambda model: model(TEXT).logits,
    ),
    "images": _task(
        "image classes", transformers.AutoModelForImageClassification,
        lambda model: model(PICTURES).logits, lambda model: model(PICTURES).logits, **CLASSES,
    ),
}  # fmt: skip
TYPES = TASKS["causal"].types


def page_of(task: str) -> Path:
    """The page that says what becomes of a task's types."""
    return ROOT / "docs" / ("zoo.md" if task == "causal" else f"zoo_{task}.md")


def small_config(kind: str, task: Task = TASKS["causal"]) -> PreTrainedConfig:
    """A configuration of a few thousand parameters; what has no name above stays as it is by default."""
    config_class = CONFIG_MAPPING[kind]
    sizes = _sized(config_class(), task.sizes | SPECIAL.get(kind, {}), task.sizes.get("is_decoder", False))
    config: PreTrainedConfig = config_class(**sizes)
    config.architectures = [class_of(config, task)[0].__name__]
    return config


def class_of(config: PreTrainedConfig, task: Task) -> tuple[Any, PreTrainedConfig]:
    """The class of a configuration for a task, and the part of the configuration that it is made of."""
    classes = task.auto._model_mapping[type(config)]
    kind = classes[0] if isinstance(classes, tuple) else classes
    return kind, config if isinstance(config, kind.config_class) else config.get_text_config(decoder=True)


def _sized(default: PreTrainedConfig, special: dict[str, Any], is_decoder: bool) -> dict[str, Any]:
    sizes = {key: value for key, value in SIZES.items() if _settable(default, key)}
    sizes |= {"is_decoder": True} if is_decoder else {}
    sizes |= {"causal": True} if is_decoder and _settable(default, "causal") else {}
    for name in default.sub_configs:
        if isinstance(inner := getattr(default, name, None), PreTrainedConfig):
            sizes[name] = inner.to_dict() | _sized(inner, SPECIAL.get(inner.model_type, {}), is_decoder)
    sizes |= _layers(default)
    return {key: value for key, value in (sizes | special).items() if value is not None}


def _layers(default: PreTrainedConfig) -> dict[str, Any]:
    """A first layer, a last one, and as many between them as there are kinds of layers that neither is."""
    count = getattr(default, "num_hidden_layers", None)
    lists = {
        key: value
        for key, value in default.to_dict().items()
        if isinstance(value, list) and value and len(value) == count and _are_kinds(value)
    }
    lists = {key: value for key, value in lists.items() if _settable(default, key)}
    if not lists:
        return {}
    seen, chosen = {(key, kinds[place]) for place in (0, -1) for key, kinds in lists.items()}, [0]
    for layer in range(count):
        kinds = {(key, values[layer]) for key, values in lists.items()}
        if kinds - seen:
            seen |= kinds
            chosen.append(layer)
    chosen.append(count - 1)
    return {key: [values[layer] for layer in chosen] for key, values in lists.items()} | {
        "num_hidden_layers": len(chosen)
    }


def _are_kinds(values: list[Any]) -> bool:
    """Whether they are names or switches, such as that of SmolLM3's rotary positions, and not sizes."""
    return all(isinstance(value, str) for value in values) or all(value in (0, 1) for value in values)


def _settable(config: PreTrainedConfig, key: str) -> bool:
    try:
        present = hasattr(config, key)
    except RuntimeError:  # AmbiguousGlobalPerLayerAttributeError of newer releases
        return True  # it differs from layer to layer, as `per_layer_config` says
    except ValueError:
        return False
    attribute = getattr(type(config), key, None)
    return present and not (isinstance(attribute, property) and attribute.fset is None)


def write_small(kind: str, folder: Path, task: Task = TASKS["causal"]) -> Tensor:
    """A folder with a model of a type, every tensor random, and its answers.

    Raises:
        ValueError: it is larger than `MOST`.
    """
    config = small_config(kind, task)
    make, config = class_of(config, task)
    with torch.device("meta"):
        count = make(config).num_parameters()
    if count > task.most:
        raise ValueError(f"{count:,} parameters, and no key of its configuration makes the model smaller")
    drawn(make(config)).save_pretrained(folder)
    # read back, for buffers that are computed were drawn too
    model = make.from_pretrained(folder).eval()
    with torch.no_grad():
        return task.theirs(model)


def logits_of(model: PreTrainedModel) -> Tensor:
    """What a model makes of `TEXT`, (1, T, V)."""
    with torch.no_grad():
        logits: Tensor = model.eval()(TEXT, use_cache=False).logits
    return logits


def drawn(model: PreTrainedModel) -> PreTrainedModel:
    """The model with every tensor random but those that are computed, which are never trained."""
    computed = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    computed |= {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(DECAYS)}
    randomize(model)
    model.load_state_dict(computed, strict=False)
    return model


@dataclass(frozen=True)
class Outcome:
    """What became of one type.

    Attributes:
        status: read with logits that agree, read with others, refused here, or not made by transformers.
        said: how far the logits are from each other, or why there are none.
        registered: whether its family is one of those that are known here.
        corrected: whether a comparison with transformers found a layout other than the assumed one, at load.
    """

    kind: str
    status: Literal["agrees", "differs", "refused", "not made"]
    said: str
    registered: bool = False
    corrected: bool = False


def reason_of(error: ArchetypeError, folder: Path) -> str:
    """An error's words without the folder's name."""
    return str(error).removeprefix(f"{folder}/config.json: ").replace(str(folder), "")


def tables_of(text: str) -> dict[Release, dict[str, list[str]]]:
    """The rows of each release of a page, by type: those of the newest, and where another differs its own."""
    newest, *others = text.split(OTHERWISE)
    known = {release_of(newest.partition("written by transformers ")[2]): _cells(newest)}
    for one in others:
        rows = _cells(newest) | _cells(one)
        known[release_of(one)] = {kind: row for kind, row in rows.items() if row[1] != NOT_THERE}
    return known


def _cells(text: str) -> dict[str, list[str]]:
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    return {row[0]: row for row in rows if len(row) > 1 and row[1].strip() in (*STATUSES, NOT_THERE)}


def rows_of(text: str, release: Release | None = None) -> dict[str, tuple[str, str]]:
    """The outcome of each type of a page, and the words beside it, in a release (absent: the newest of the page)."""
    known = tables_of(text)
    rows = known[max(known) if release is None else nearest(known, release)]
    return {kind: (row[1], row[-1]) for kind, row in rows.items()}


def proved_by_pages() -> tuple[str, dict[str, list[str]]]:
    """The version of transformers that the pages are of, and the types that agree though they are not registered."""
    pages = {task: page_of(task).read_text(encoding="utf-8").partition(OTHERWISE)[0] for task in TASKS}
    (version,) = {one for page in pages.values() for one in re.findall(r"transformers (\d+\.\d+\.\d+)\b", page)}
    agree = {
        task: re.findall(r"^\| (\S+) \| agrees (?=\|).*\| by its files \|", page, flags=re.MULTILINE)
        for task, page in pages.items()
    }
    return version, {task: kinds for task, kinds in agree.items() if kinds}


def outcome(kind: str, folder: Path, task: Task = TASKS["causal"]) -> Outcome:
    """Make a small model of a type in a folder, and read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries, on configurations that nobody uses
            theirs = write_small(kind, folder, task)
    except Exception as error:  # whatever a type's code raises on sizes that it was not written for
        return Outcome(kind, "not made", f"{type(error).__name__}: {' '.join(str(error).split())[:100]}")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            lm = archetype.load(folder)
        except ArchetypeError as error:
            return Outcome(kind, "refused", reason_of(error, folder))
    with torch.no_grad():
        difference = distance(task.ours(lm.model), theirs)
    status: Literal["agrees", "differs"] = "agrees" if difference < EXACT else "differs"
    registered = not any(one.category is UnknownFamily for one in told)
    reading = None if lm.family is None else lm.family.reading
    return Outcome(kind, status, f"{difference:.1e}", registered, reading is not None and ", by " in reading.proof)
