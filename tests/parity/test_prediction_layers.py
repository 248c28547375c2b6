"""Published prediction layers are read as further tokens, compute what the weights' own programs do, and are kept.

The reference is written out: both norms, the projection of [embedding; hidden vector] (in MiMo's order the other way),
a layer of transformers' class for the model, and the norm before the model's own head.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype import Engine, LanguageModel
from archetype.errors import CheckpointError
from archetype.models.decoder.module import Decoder
from archetype.nn.context import ForwardContext
from archetype.tokenizers import train_tokenizer
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG, same_tensors
from tests.helpers.weights import distance, randomize

TEXT = torch.arange(4, 24)[None]
SINGLE = "model.safetensors"
COMMON = dict(
    hidden_size=32, num_attention_heads=4, vocab_size=61, max_position_embeddings=64, pad_token_id=None,
    intermediate_size=48, moe_intermediate_size=16, num_experts_per_tok=2, tie_word_embeddings=False,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A type with prediction layers.

    Attributes:
        kind: its `model_type`.
        values: of its configuration.
        names: of the projection, of the norms of hidden vector and embedding, and of the last one.
        prefixes: what the names of each layer begin with.
        block: what stands before the names of a block.
        tables: tensors that repeat the model's, and whose.
        embedding_first: whether the projection reads the embedding first.
    """

    kind: str
    values: dict[str, Any]
    names: tuple[str, str, str, str]
    prefixes: tuple[str, ...]
    block: str = ""
    tables: tuple[tuple[str, str], ...] = ()
    embedding_first: bool = True


LAYERS = ("eh_proj", "hnorm", "enorm", "shared_head.norm")
TABLES = (("embed_tokens.weight", "model.embed_tokens.weight"), ("shared_head.head.weight", "lm_head.weight"))
CASES = {
    "deepseek": Case(
        "deepseek_v3", COMMON | dict(
            num_hidden_layers=2, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=12,
            kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, num_key_value_heads=4),
        LAYERS, ("model.layers.2.", "model.layers.3."), tables=TABLES),
    "sparse deepseek": Case(
        "deepseek_v32", COMMON | dict(
            num_hidden_layers=2, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=12,
            kv_lora_rank=10, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, num_key_value_heads=4,
            index_n_heads=16, index_head_dim=8, index_topk=5),
        LAYERS, ("model.layers.2.",), tables=TABLES),
    "glm": Case(
        "glm4_moe", COMMON | dict(
            num_hidden_layers=2, n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1, head_dim=8,
            num_key_value_heads=2, use_qk_norm=True, attention_bias=True),
        LAYERS, ("model.layers.2.",), tables=TABLES),
    "qwen": Case(
        "qwen3_next", COMMON | dict(
            num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"], head_dim=8,
            num_key_value_heads=2, num_experts=4, shared_expert_intermediate_size=16, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8),
        ("fc", "pre_fc_norm_hidden", "pre_fc_norm_embedding", "norm"), ("mtp.",), "layers.0."),
    "mimo": Case(
        "qwen2", {key: value for key, value in COMMON.items() if "moe" not in key and "experts" not in key} | dict(
            num_hidden_layers=2, num_key_value_heads=2),
        ("input_proj", "hidden_layernorm", "token_layernorm", "final_layernorm"), ("model.mtp_layers.0.",),
        embedding_first=False),
}  # fmt: skip


@dataclass
class Publication:
    """A folder with prediction layers, and the model and layers of transformers whose weights it has."""

    folder: Path
    theirs: Any
    parts: list[dict[str, Any]]


def publish(case: Case, folder: Path) -> Publication:
    """Write a small model with random prediction layers, each a further layer of the model's own class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        randomize(AutoModelForCausalLM.from_config(CONFIG_MAPPING[case.kind](**case.values))).save_pretrained(folder)
        theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tensors, parts = load_file(folder / SINGLE), []
    like = next(n for n in reversed(range(len(theirs.model.layers))) if hasattr(theirs.model.layers[n], "self_attn"))
    for number, prefix in enumerate(case.prefixes):
        layer, norm = theirs.model.layers[like], type(theirs.model.norm)
        g = torch.Generator().manual_seed(number)
        drawn = {name: torch.randn(tensor.shape, generator=g) * 0.1 for name, tensor in layer.state_dict().items()}
        block = type(layer)(theirs.config, like).eval()
        block.load_state_dict(drawn)
        norms = [norm(32, eps=theirs.config.rms_norm_eps) for _ in range(3)]
        projection = torch.randn(32, 64, generator=g) * 0.2
        for one in norms:
            randomize(one, number)
        parts.append({"block": block, "norms": norms, "projection": projection})
        # in the file as the model's own layers are: experts apart
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = {k: v.clone() for k, v in layer.state_dict().items()}
            layer.load_state_dict(drawn)
            theirs.save_pretrained(folder / f"layer{number}")
            layer.load_state_dict(before)
        own = f"model.layers.{like}."
        saved = load_file(folder / f"layer{number}" / SINGLE)
        added = {prefix + case.block + name.removeprefix(own): t for name, t in saved.items() if name.startswith(own)}
        added[f"{prefix}{case.names[0]}.weight"] = projection
        added |= {f"{prefix}{name}.weight": one.weight for name, one in zip(case.names[1:], norms, strict=True)}
        added |= {prefix + name: tensors[table] for name, table in case.tables}
        tensors |= {name: tensor.detach().clone().contiguous() for name, tensor in added.items()}
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    return Publication(folder, theirs, parts)


def reference(case: Case, one: Publication) -> list[Tensor]:
    """The logits of each further token, of the positions whose tokens are known."""
    theirs, body = one.theirs, one.theirs.model
    hidden, logits = body(TEXT, use_cache=False).last_hidden_state, []
    for ahead, part in enumerate(one.parts, 1):
        embedded = body.embed_tokens(TEXT[:, ahead:])
        hidden = hidden[:, : embedded.shape[1]]
        of_hidden, of_embedding, last = part["norms"]
        both = [of_embedding(embedded), of_hidden(hidden)]
        x = torch.cat(both if case.embedding_first else both[::-1], dim=-1) @ part["projection"].T
        positions = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        y = part["block"](
            x, attention_mask=mask, position_ids=positions, position_embeddings=body.rotary_emb(x, positions)
        )
        hidden = last(y[0] if isinstance(y, tuple) else y)
        logits.append(theirs.lm_head(hidden))
    return logits


def predicted(lm: LanguageModel) -> list[Tensor]:
    """The same of ours."""
    model = lm.model
    assert isinstance(model, Decoder) and model.further_tokens is not None and model.lm_head is not None
    context = ForwardContext.of(TEXT)
    further = model.further_tokens(model(TEXT).hidden, model.embedding(TEXT, context), context)
    return [model.lm_head(x, model.token_table)[:, : -1 - ahead] for ahead, x in enumerate(further)]


def loaded(folder: Path, **options: Any) -> LanguageModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return archetype.load(folder, **options)


@pytest.mark.parametrize("name", every(2, CASES))
@torch.no_grad()
def test_further_tokens_are_those_of_the_reference_and_are_written_back(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    one = publish(case, tmp_path / "theirs")
    expected = reference(case, one)
    lm = loaded(one.folder, further_tokens=True)
    assert lm.spec.further_tokens.count == len(case.prefixes)  # type: ignore[attr-defined]
    assert distance(lm.model(TEXT).logits, one.theirs(TEXT, use_cache=False).logits) < EXACT
    for ours, theirs in zip(predicted(lm), expected, strict=True):
        assert distance(ours, theirs) < EXACT
    archetype.export(lm, tmp_path / "written")
    same_tensors(one.folder, tmp_path / "written")
    lm.save(tmp_path / "run")
    again = loaded(tmp_path / "run")
    assert distance(predicted(again)[0], expected[0]) < EXACT
    archetype.export(again, tmp_path / "again")
    same_tensors(one.folder, tmp_path / "again")
    weight = lm.model.further_tokens.projections[0].weight  # type: ignore[union-attr, index]
    weight.copy_(weight.roll(32, dims=1))  # type: ignore[operator]
    assert distance(predicted(lm)[0], expected[0]) > WRONG
    plain = loaded(one.folder)
    assert plain.spec.further_tokens is None and plain.left_out  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["deepseek", "glm", "mimo"])
def test_a_published_model_is_its_own_draft(name: str, tmp_path: Path) -> None:
    publish(CASES[name], tmp_path / "theirs")
    lm = loaded(tmp_path / "theirs", further_tokens=True)
    lm.tokenizer = train_tokenizer("bytes", [], None)
    texts = []
    for draft in (None, "self"):
        engine = Engine(lm, slots=2, draft=draft)  # type: ignore[arg-type]
        prompts = ([5, 6, 7], [9, 3, 9, 3, 9])
        requests = [engine.submit(p, max_new_tokens=20, temperature=0.0, ignore_eos=True) for p in prompts]
        for _ in engine.events():
            pass
        texts.append([request.tokens for request in requests])
    assert texts[0] == texts[1]


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    one = publish(CASES["glm"], tmp_path / "theirs")
    tensors = load_file(one.folder / SINGLE)
    layer = "model.layers.2."
    remedy = "; load it without further_tokens"
    wrong: dict[str, tuple[dict[str, Tensor | None], str]] = {
        "another table": (
            {f"{layer}embed_tokens.weight": torch.zeros(61, 32)},
            f"{layer}embed_tokens.weight: differs from model.embed_tokens.weight, of which it should be a copy",
        ),
        "another block": (
            {f"{layer}self_attn.q_norm.weight": None},
            f"{layer}: has a block that differs from all layers of the model",
        ),
        "no layer": (
            {name: None for name in tensors if name.startswith(layer)},
            "further_tokens: the file has no known layers for multi-token prediction",
        ),
    }
    for edits, message in wrong.values():
        edited = {name: tensor for name, tensor in (tensors | edits).items() if tensor is not None}
        save_file(edited, one.folder / SINGLE)
        with pytest.raises(CheckpointError) as refused:
            loaded(one.folder, further_tokens=True)
        assert str(refused.value) == f"{one.folder}: {message}{remedy}"


def test_a_trained_models_copies_are_written_as_they_are_now(tmp_path: Path) -> None:
    publish(CASES["deepseek"], tmp_path / "theirs")
    lm = loaded(tmp_path / "theirs", further_tokens=True)
    table: nn.Parameter = lm.model.embedding.token.weight  # type: ignore[union-attr, assignment]
    with torch.no_grad():
        table.add_(1.0)
    archetype.export(lm, tmp_path / "written")
    written = load_file(tmp_path / "written" / SINGLE)
    assert torch.equal(written["model.layers.3.embed_tokens.weight"], table)
    assert loaded(tmp_path / "written", further_tokens=True).spec == lm.spec
