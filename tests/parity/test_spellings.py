"""The same answers as transformers' models of types that are spellings of a registered family, every tensor random.

`tests/parity/test_encoders.py` and `test_pairs.py` prove the families themselves; here each type has one model of each
head, texts of two lengths, a round trip to the bit, and a mistake that must show.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import archetype
from archetype.estimate.report import total_parameters
from archetype.families.registry import SPELLINGS
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG, Change, lose, same_tensors, swap
from tests.helpers.weights import distance
from tests.helpers.zoo import SPECIAL, TASKS, write_small

ENCODERS = ("roberta", "albert", "modernbert", "eurobert", "deberta-v2", "deberta", *SPELLINGS["encoders"])
CASES = [
    *(("masked", kind) for kind in ENCODERS),
    # of each way to pool and to name a head for classes; the others' are in docs/zoo, and tested with it
    *(("texts", kind) for kind in (
        "roberta", "albert", "electra", "roformer", "distilbert", "mpnet", "ernie", "modernbert", "eurobert", "gte",
        "deberta-v2", "deberta", "bart", "mbart", "plbart", "mvp", "t5", "mt5",
    )),
    *(("tokens", kind) for kind in ("roberta", "distilbert", "modernbert", "llama", "gpt2")),
    *(("spans", kind) for kind in ("bert", "modernbert", "llama", "mistral", "gpt2")),
    *(("pairs", kind) for kind in SPELLINGS["pairs"]),
    *(("images", kind) for kind in SPELLINGS["pictures"]),
]  # fmt: skip


def mistake(model: nn.Module) -> Change:
    """Two parameters of a layer, exchanged."""
    stack = "decoder." if hasattr(model, "decoder") else ""
    return swap(f"{stack}blocks.0.mixer.k.weight", f"{stack}blocks.0.mixer.v.weight")


@pytest.mark.parametrize(("task", "kind"), every(12, (pytest.param(*case, id=" ".join(case)) for case in CASES)))
def test_a_type_is_read_computes_the_same_and_is_written_back(task: str, kind: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, on sizes that nobody uses
        theirs = write_small(kind, tmp_path / "theirs", TASKS[task])
    lm = archetype.load(tmp_path / "theirs")
    assert lm.family is not None and lm.family.reading is None  # nothing was inferred
    assert sum(p.numel() for p in lm.model.parameters()) == total_parameters(lm.spec)
    with torch.no_grad():
        assert distance(TASKS[task].ours(lm.model), theirs) < EXACT
    archetype.export(lm, tmp_path / "written")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "written"))
    prefix = lm.family.format.prefix  # of which transformers drops a part where it writes ViT-MSN
    names = {name.removeprefix(prefix): name for name in before}
    for name, tensor in after.items():
        assert torch.equal(before[names[name.removeprefix(prefix)]], tensor), name
    computed = {name for name in names if "embed_positions" in name or "position_ids" in name or "pooler" in name}
    assert names.keys() - computed <= {name.removeprefix(prefix) for name in after}
    mistake(lm.model)(lm.model)
    with torch.no_grad():
        assert distance(TASKS[task].ours(lm.model), theirs) > WRONG


BIASES = dict.fromkeys(("attention_bias", "mlp_bias"), True)
ROPE: dict[str, Any] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}
# Other values of the keys that say how these are built.
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("masked", "modernbert", BIASES | {"norm_bias": True, "classifier_bias": True, "decoder_bias": False}),
    ("masked", "modernbert", {"tie_word_embeddings": False, "classifier_activation": "silu", "local_attention": 5}),
    ("texts", "modernbert", {"classifier_pooling": "mean", "num_hidden_layers": 3, "layer_types": ["sliding_attention",
        "sliding_attention", "full_attention"], "rope_parameters": {"sliding_attention": ROPE}}),
    ("masked", "eurobert", BIASES | {"tie_word_embeddings": True, "head_dim": 8}),
    ("texts", "eurobert", {"classifier_pooling": "mean"}),
    ("texts", "eurobert", {"classifier_pooling": "bos"}),
    ("masked", "deberta-v2", {"share_att_key": False, "position_biased_input": True, "type_vocab_size": 2}),
    ("masked", "deberta-v2", {"pos_att_type": "c2p", "position_buckets": -1, "max_relative_positions": -1}),
    ("masked", "deberta-v2", {"pos_att_type": ["p2c"], "norm_rel_ebd": "none", "share_att_key": False,
        "max_relative_positions": 7}),
    ("masked", "deberta", {"pos_att_type": ["c2p"], "position_biased_input": True, "type_vocab_size": 2}),
    ("masked", "deberta", {"pos_att_type": ["p2c"], "max_relative_positions": -1}),
    ("masked", "gte", {"type_vocab_size": 0, "hidden_act": "silu", "rope_parameters": ROPE}),
]  # fmt: skip


@pytest.mark.parametrize(("task", "kind", "changes"), every(2, (pytest.param(*one) for one in VARIANTS)))
def test_a_type_built_otherwise(
    task: str, kind: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = write_small(kind, tmp_path / "usual", TASKS[task])
    monkeypatch.setitem(SPECIAL, kind, SPECIAL.get(kind, {}) | changes)
    theirs = write_small(kind, tmp_path / "theirs", TASKS[task])
    assert distance(theirs, usual) > WRONG
    lm = archetype.load(tmp_path / "theirs")
    with torch.no_grad():
        assert distance(TASKS[task].ours(lm.model), theirs) < EXACT
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "theirs", tmp_path / "written")
    assert archetype.load(tmp_path / "written").spec == lm.spec
    assert sum(p.numel() for p in lm.model.parameters()) == total_parameters(lm.spec)


BARE = (
    "roberta", "electra", "modernbert", "eurobert", "gte", "deberta-v2", "deberta", "distilbert", "mpnet", "bart",
    "pegasus", "deit", "ijepa",
)  # fmt: skip


@pytest.mark.parametrize("kind", every(4, BARE))
def test_a_model_without_a_head(kind: str, tmp_path: Path) -> None:
    """Its vectors, those of its pooler, and the same weights in what is written back."""
    names = {"pairs": SPELLINGS["pairs"], "images": SPELLINGS["pictures"]}
    task = TASKS[next((name for name, kinds in names.items() if kind in kinds), "masked")]
    auto = replace(task, auto=transformers.AutoModel, theirs=vectors_of(task.theirs))
    theirs = write_small(kind, tmp_path / "theirs", auto)
    lm = archetype.load(tmp_path / "theirs")
    with torch.no_grad():
        assert distance(vectors_of(task.ours)(lm.model), theirs) < EXACT
    archetype.export(lm, tmp_path / "written")
    one, other = (
        transformers.AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("theirs", "written")
    )
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def vectors_of(answers: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """The same call of a model, whose vectors stand for its logits."""

    class Vectors:
        def __init__(self, model: Any) -> None:
            self.model, self.config, self.spec = model, getattr(model, "config", None), getattr(model, "spec", None)

        def __call__(self, *inputs: Any, **named: Any) -> Any:
            output = self.model(*inputs, **named)
            hidden = output.hidden if hasattr(output, "hidden") else output.last_hidden_state
            return SimpleNamespace(logits=hidden)

    return lambda model: answers(Vectors(model))


NARROW: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 12, "num_hidden_layers": 4, "num_hidden_groups": 2},
    "albert, two layers a group": {"embedding_size": 12, "num_hidden_layers": 4, "inner_group_num": 2},
    "electra": {"embedding_size": 12},
    "roformer": {"embedding_size": 12},
}


@pytest.mark.parametrize("name", NARROW)
def test_tables_narrower_than_the_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ALBERT's groups of layers."""
    kind = name.split(",")[0]
    monkeypatch.setitem(SPECIAL, kind, NARROW[name])
    theirs = write_small(kind, tmp_path / "theirs", TASKS["masked"])
    lm = archetype.load(tmp_path / "theirs")
    with torch.no_grad():
        assert distance(TASKS["masked"].ours(lm.model), theirs) < EXACT
        archetype.export(lm, tmp_path / "written")
        same_tensors(tmp_path / "theirs", tmp_path / "written", ("roformer.encoder.embed_positions.weight",))
        assert archetype.load(tmp_path / "written").spec == lm.spec
        assert sum(p.numel() for p in lm.model.parameters()) == total_parameters(lm.spec)
        lose("embedding.project.weight")(lm.model)
        assert distance(TASKS["masked"].ours(lm.model), theirs) > WRONG


def test_positions_follow_the_tokens_that_are_not_padding(tmp_path: Path) -> None:
    """RoBERTa's are counted from the number after padding's; the rows before are never read."""
    for kind in ("roberta", "mpnet"):
        theirs = write_small(kind, tmp_path / kind, TASKS["masked"])
        lm = archetype.load(tmp_path / kind)
        offset = lm.spec.embedding.position.offset
        assert offset == (2 if kind == "mpnet" else 1)
        with torch.no_grad():
            lm.model.embedding.position.weight[:offset] = 7.0
            assert distance(TASKS["masked"].ours(lm.model), theirs) < EXACT
            lose("embedding.position.weight")(lm.model)
            assert distance(TASKS["masked"].ours(lm.model), theirs) > WRONG
