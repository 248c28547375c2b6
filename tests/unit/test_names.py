"""The package uses the field's words: no name that was given up for one of them comes back.

The claims, tests and benchmarks have no vague names either.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import archetype

PACKAGE = Path(archetype.__file__).parent
FILES = {file.relative_to(PACKAGE).as_posix(): file for file in sorted(PACKAGE.rglob("*.py"))}
ROOT = Path(__file__).parents[2]
AROUND = [file for folder in ("claims", "tests", "benchmarks") for file in sorted((ROOT / folder).rglob("*.py"))]

# What each name became; the old ones are no token of the package.
RENAMED = {
    "faces": "api", "_House": "api", "_Room": "api", "pickled": "allow_pickle", "mean_span": "mean_span_length",
    "full_up_to": "dense_up_to_blocks", "StackInPlace": "StackView", "Setting": "MaskContext", "Span": "ForwardContext",
    "seen_source": "encoder_output", "KeyValues": "KVCache", "Ring": "RingKVCache", "SourceKeys": "CrossKVCache",
    "Crossed": "BlockState", "Hidden": "RNNState", "HiddenCell": "LSTMState", "SelectiveState": "MambaState",
    "OfPatches": "PatchState", "Unfinished": "PartialPatch", "Started": "WithStartToken", "Newest": "NGramState",
    "kept_as": "to", "advanced": "advance", "NOWHERE": "EMPTY_SLOT", "_turned": "apply_rope",
    "_remember": "keys", "_whole": "attend", "Scoring": "ScoreFunction",
    "within_best_groups": "group_limited_mask", "reset_buffers": "reset_parameters", "skeleton": "build_on_meta",
    "teach": "forward", "alike": "group_equal_layers", "read_twice": "shared_input", "looked_at": "dense_attention",
    "NOTHING": "ZERO", "Clues": "CheckpointInfo", "Habit": "FamilyQuirks", "Reading": "InferenceReport",
    "Frame": "ModelDims", "Sorted": "GroupedTensors", "accounted": "check_all_used", "durable": "atomic",
    "learning": "setup", "Session": "TrainState", "Task": "Objective",
    "Interrupt": "StopSignal", "framed": "add_special_tokens", "encode_rendered": "encode_with_special_tokens",
    "well_formed": "check_utf8", "_receded": "evict_oldest", "Stopper": "StopStringFilter", "Guess": "Prediction",
    "worth": "scores", "capped": "softcap", "remembered": "cache_length", "once": "cached",
}  # fmt: skip

# The same for words that have a good meaning elsewhere: nothing that a file below defines is called so.
RENAMED_IN = {
    "training/recipe.py": {
        "share": "mask_probability or noise_density", "warmup": "warmup_steps", "final": "min_lr_ratio",
        "clip": "max_grad_norm", "smoothing": "label_smoothing", "length": "sequence_length",
        "validation": "validation_fraction",
    },
    "generate/beam.py": {"beams": "num_beams", "longer": "max_extra_tokens", "never": "suppress_tokens"},
    "spec/": {
        "cross": "cross_attention", "clip": "clip_qkv", "summary": "num_summary", "correction": "expert_bias",
        "best": "top_k_in_group", "classes": "num_classes", "channels": "num_channels", "fault": "invalid",
        "token_types": "num_token_types", "global_tokens": "num_global_tokens", "bridge": "state_bridge",
        "fits": "check", "stands": "check", "changed": "replace", "computed": "num_computed_pairs",
    },
    "nn/": {
        "counts": "num_tokens", "fresh": "starts_at_zero", "Source": "EncoderOutput", "bytes": "nbytes",
        "seen": "split_heads_and_norm", "joined": "merge_heads", "balance": "load_balancing_loss",
        "draw": "reset_parameters",
    },
    "models/": {"Source": "EncoderOutput", "bytes": "nbytes", "draw": "reset_parameters"},
    "cost/": {"kept": "saved_activations", "outside": "embedding_and_head", "ends": "embedding_and_head"},
    "cost/formula.py": {"over": "__truediv__"},
    "families/rules.py": {"theirs": "hf", "ours": "param", "at": "for_layer", "of": "for_expert"},
    "convert/apply.py": {"fill": "load_tensors"},
    "training/": {"facts": "provenance", "scored": "cross_entropy_loss", "Outcome": "LossOutput"},
}  # fmt: skip

# What a name should not be called where it can be called what it holds.
VAGUE = {"found", "made", "given", "kept", "wanted"}


@cache
def tree(path: str) -> ast.Module:
    return ast.parse(FILES[path].read_text(encoding="utf-8"))


def names(path: str) -> set[str]:
    """All names in a file, defined there or used: every text in its syntax tree but the constants."""
    texts = set[str]()
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Constant):
            for value in vars(node).values():
                values = value if isinstance(value, list) else [value]
                texts.update(one for one in values if isinstance(one, str))
    return {name for text in texts for name in text.split(".")}


def defined(module: ast.Module) -> Iterator[str]:
    """Every function, class, parameter, field, attribute and variable that a module defines."""
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def assigned(module: ast.Module) -> Iterator[str]:
    """Every parameter and variable that a module assigns to; functions and attributes are left out."""
    for node in ast.walk(module):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def old_names(path: str) -> set[str]:
    """The names in a file that should be others; a file is read as a syntax tree where one is among its words."""
    words = set(re.findall(r"\w+", FILES[path].read_text(encoding="utf-8")))
    scoped = {old for place, renamed in RENAMED_IN.items() if path.startswith(place) for old in renamed} | VAGUE
    used = RENAMED.keys() & names(path) if words & RENAMED.keys() else set()
    return used | (scoped & set(defined(tree(path))) if words & scoped else set())


def test_no_name_that_was_given_up_is_in_the_package() -> None:
    assert len(FILES) > 100
    old = {path: old_names(path) for path in FILES}
    assert {path: names for path, names in old.items() if names} == {}


def test_no_variable_of_tests_and_benchmarks_is_vague() -> None:
    assert len(AROUND) > 100
    vague = {}
    for file in AROUND:
        text = file.read_text(encoding="utf-8")
        if any(word in text for word in VAGUE) and (used := VAGUE & set(assigned(ast.parse(text)))):
            vague[file.relative_to(ROOT).as_posix()] = used
    assert vague == {}


def test_every_kind_of_definition_is_seen() -> None:
    module = ast.parse(
        "def a(b, *c, d=0, **e): f = g[0] = self.h = 1\n"
        "class i:\n    j: int = 0\n"
        "for k, (l, m) in x: [n for n in y if (o := n)]\n"
        "with x as p:\n    try: pass\n    except x as q: pass\n"
        "match x:\n    case [r, *s]: pass\n"
        "async def t(): lambda u: u\n"
    )
    assert set(defined(module)) == set("abcdefhijklmnopqrstu")
    assert set(assigned(module)) == set("bcdefjklmnopu")
