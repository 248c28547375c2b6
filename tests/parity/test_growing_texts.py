"""Texts that grow past the length from which on rotations are scaled, as transformers writes them.

What becomes of the keys that were rotated before is each class's own choice. Most keep them as they are; Phi-3's reads
the text anew. `REREADS` names those that do, and every causal type that is read here is held to its class.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import archetype
from archetype.api.exporting import export
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from tests.helpers.cases import case
from tests.helpers.one_key import tried_types
from tests.helpers.passes import forward_step
from tests.helpers.published import EXACT
from tests.helpers.weights import distance
from tests.helpers.zoo import TASKS, class_of, drawn, small_config

ORIGINAL, COUNT = 16, 14  # tokens of the context that was trained first, and tokens that are written
ROPE = ("rope_theta", "partial_rotary_factor")  # what a type's own rotations keep
PROMPT = torch.arange(4, 16)[None]  # shorter than that context
FIRST = ("phi3", "llama")
# in every run, so that the small configurations of all types are made in the soak alone
SOME = (*FIRST, "cwm", "gemma", "granitemoehybrid", "lfm2", "olmo", "qwen3_5_text")
SOME_PAIRS = ("llama", "dbrx", "gemma2", "helium", "llama4_text", "olmo_hybrid", "sarvam_moe")
NOT_SCALED = (
    # transformers itself writes no text of these with other scalings, or refuses them
    "ministral3", "flint", "phimoe", "recurrent_gemma",
    "lara_mini",  # no small layer rotates
    "minimax_m3_vl_text", "qwen4_exp_text",  # an index refuses what follows the length
    # its class drops its cache where it means to read the text anew, and then reads the newest token alone
    # (findings/phi4_multimodal_switch.sh)
    "phi4_multimodal",
)  # fmt: skip
REREADS = ("phi3",)  # types whose class reads a text anew as it outgrows that context


def rotated_features(config: Any) -> int:
    """Of a head."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(width * config.rope_parameters.get("partial_rotary_factor", 1.0))


def has_rules(kind: str) -> bool:
    """Whether a type's rotations can be scaled."""
    values = small_config(kind).to_dict()
    return (
        "rope_parameters" in values
        and "rope_type" in (values["rope_parameters"] or ())  # and not other positions for each kind of layers
        and "kv_lora_rank" not in values  # latent attention refuses what follows the length
        and kind not in NOT_SCALED
    )


def has_pairs(kind: str) -> bool:
    """Whether they can be scaled as the text grows: by two features of a head transformers divides by zero."""
    return has_rules(kind) and rotated_features(small_config(kind)) > 2 and kind != "phi3"  # which has LongRoPE alone


def types(some: tuple[str, ...], suitable: Callable[[str], bool]) -> pytest.MarkDecorator:
    """Some types, each in a test, and in the soak all others in one."""

    def others() -> list[str]:
        return [kind for kind in tried_types() if kind not in some and suitable(kind)]

    each = [pytest.param(lambda kind=kind: [kind], id=kind) for kind in some]
    return pytest.mark.parametrize("kinds", [*each, pytest.param(others, id="all others", marks=pytest.mark.slow)])


pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")


def published(kind: str, folder: Path, scaling: dict[str, Any], context_length: int) -> Any:
    """A small model of a type with scaled rotations, written to a folder and read back; None where it has none."""
    config: Any = small_config(kind)
    rope = {key: config.rope_parameters[key] for key in ROPE if key in config.rope_parameters}
    pairs = rotated_features(config) // 2
    lists = {"short_factor": [1.0] * pairs, "long_factor": [1.5 + pair for pair in range(pairs)]}
    config.rope_parameters = rope | scaling | (lists if scaling["rope_type"] == "longrope" else {})
    config.max_position_embeddings = context_length
    if hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = ORIGINAL
    config.eos_token_id = None
    make, config = class_of(config, TASKS["causal"])
    model = drawn(make(config))
    model.save_pretrained(folder)
    return make.from_pretrained(folder).eval()


def written(model: Any) -> tuple[list[int], list[Tensor]]:
    """The tokens that transformers writes greedily, and the logits of each."""
    result = model.generate(
        PROMPT, max_new_tokens=COUNT, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=0
    )
    return result.sequences[0, PROMPT.shape[1] :].tolist(), list(result.logits)


def by_steps(model: Any, tokens: list[int]) -> list[Tensor]:
    """The logits of each of these tokens here, written after each other."""
    logits, state = forward_step(model, PROMPT, model.new_state(1, 64))
    steps = [logits[:, -1]]
    for token in tokens[:-1]:
        logits, state = forward_step(model, torch.tensor([[token]]), state)
        steps.append(logits[:, -1])
    return steps


def read_whole(model: Any, tokens: list[int], expected: list[Tensor]) -> float:
    """How far logits are from those expected where each token's whole text is read anew."""
    text = torch.cat((PROMPT, torch.tensor([tokens])), dim=1)
    steps = (model(text[:, : PROMPT.shape[1] + step]).logits[:, -1] for step in range(len(tokens)))
    return max(distance(mine, theirs) for mine, theirs in zip(steps, expected, strict=True))


LONGROPE = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}


@types(SOME, has_rules)
@torch.no_grad()
def test_longrope(kinds: Callable[[], list[str]], tmp_path: Path) -> None:
    for kind in kinds():
        with case(kind):
            check_longrope(kind, tmp_path / kind)


def check_longrope(kind: str, folder: Path) -> None:
    model = published(kind, folder, LONGROPE, 4 * ORIGINAL)
    tokens, expected = written(model)
    lm = archetype.load(folder)
    assert lm.model.spec.rereads_past == ({ORIGINAL} if kind in REREADS else set())
    request = lm.engine().submit(PROMPT[0].tolist(), max_new_tokens=COUNT, ignore_eos=True)
    request.result()
    assert request.tokens == tokens
    by_step = max(distance(mine, theirs) for mine, theirs in zip(by_steps(lm.model, tokens), expected, strict=True))
    assert (by_step < EXACT) == (kind not in REREADS)
    assert (read_whole(lm.model, tokens, expected) < EXACT) == (kind in REREADS)  # the control


@pytest.mark.parametrize("kind", FIRST)
@torch.no_grad()
def test_transformers_generate_on_archetypes_own_class(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens and logits from `archetype.hf` as from the published class."""
    import archetype.hf

    tokens, expected = written(published(kind, tmp_path / "source", LONGROPE, 4 * ORIGINAL))
    export(archetype.load(tmp_path / "source"), tmp_path / "out", format="archetype-hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ours, logits = written(model)
    assert ours == tokens
    assert max(distance(mine, theirs) for mine, theirs in zip(logits, expected, strict=True)) < EXACT
    if kind in REREADS:  # the control: with the keys as the short factors rotated them
        monkeypatch.setattr(ModelSpec, "rereads_past", frozenset())
        _, logits = written(model)
        assert max(distance(mine, theirs) for mine, theirs in zip(logits, expected, strict=False)) > EXACT


@types(SOME_PAIRS, has_pairs)
@torch.no_grad()
def test_dynamic_scaling_keeps_keys_as_they_were_rotated(kinds: Callable[[], list[str]], tmp_path: Path) -> None:
    """Each length has its own frequencies. A file's context ends where they begin, so that it is made longer here."""
    for kind in kinds():
        with case(kind):
            check_dynamic_scaling(kind, tmp_path / kind)


def check_dynamic_scaling(kind: str, folder: Path) -> None:
    model = published(kind, folder, {"rope_type": "dynamic", "factor": 4.0}, ORIGINAL)
    tokens, expected = written(model)
    read = archetype.load(folder).model
    ours = build(read.spec.replace(context_length=4 * ORIGINAL)).eval()
    ours.load_state_dict(read.state_dict())
    for mine, theirs in zip(by_steps(ours, tokens), expected, strict=True):
        assert distance(mine, theirs) < EXACT
    assert read_whole(ours, tokens, expected) > 10 * EXACT  # the control
