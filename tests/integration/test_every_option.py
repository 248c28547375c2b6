"""A walk over all options of all verbs: each changes something that is observed, or is refused in this combination.

An option that no table names makes a test fail: whoever adds one says what it does, in each mode of its verb.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from _pytest.mark import ParameterSet

from archetype.apps.cli.main import VERBS
from archetype.apps.cli.verb import Verb
from archetype.machine.device import resolve_dtype
from tests.helpers.cases import case
from tests.helpers.material import TRAIN, Material
from tests.helpers.options import Mode, Walk, call, options, verbs

MODES: dict[str, dict[str, Mode]] = {  # of each verb
    "list": {"all": Mode("")},
    "show": {"preset": Mode("llama-tiny"), "folder": Mode("{exported}")},
    "diff": {"two": Mode("llama-tiny gpt2-tiny")},
    "set": {"one": Mode("llama-tiny d_model=32"), "matched": Mode("llama-tiny --match gpt2-tiny parameters")},
    "schema": {"one": Mode("")},
    "cost": {
        "plain": Mode("llama-tiny"), "several": Mode("llama-tiny gpt2-tiny --compare"),
        "fit": Mode("llama-tiny --fit 1GiB"), "device": Mode("llama-tiny --device H100-SXM"), "pair": Mode("t5-tiny"),
    },
    "draw": {"parameters": Mode("llama-tiny"), "bytes": Mode("llama-tiny --measure bytes"),
             "flops": Mode("llama-tiny --measure flops")},
    "gallery write": {"one": Mode("--only llama-3-8b")},
    "gallery add": {"preset": Mode("llama-tiny --only llama-3-8b"), "folder": Mode("{exported} --only llama-3-8b")},
    "tokenizer train": {
        "byte_bpe": Mode("--text {text} --to out --vocab-size 280"),
        "bytes": Mode("--text {text} --to out --kind bytes"),
        "words": Mode("--text {text} --to out --kind words"),
    },
    "tokenizer show": {"byte_bpe": Mode("{tokenizer}"), "bytes": Mode("{run}")},
    "tokenizer encode": {"one": Mode("{run} a")},
    "tokenizer decode": {"one": Mode("{run} 97 98")},
    "train": {
        "new": Mode(f"{{text}} {TRAIN} --steps 3 --to out"),
        "no steps": Mode(f"{{text}} {TRAIN} --tokens 200 --to out"),
        "chosen": Mode("{text} --spec {decoder} --steps 3 --to out"),
        "images": Mode("--images {images} --spec vit-tiny --steps 2 --batch-size 2 --to out"),
        "chat": Mode("--from {run} --chat {chat} --steps 2 --set data.template={template} --to out"),
        "further": Mode("{text} --from {run} --sequence-length 16 --batch-size 4 --steps 2 --to out"),
        "resumed": Mode("--resume run --steps 82", ("run",)),
        "planned": Mode(f"{{text}} {TRAIN} --steps 3 --plan --json"),
        "on a cluster": Mode("--spec llama-tiny --batch-size 32 --plan 1x8 --json"),
        "stuck": Mode(f"{{text}} {TRAIN} --steps 5 --learning-rate 1e-12 --set evaluate_every=1 --to out"),
        "rates": Mode(f"{{text}} {TRAIN} --find-rate --json"),
    },
    "generate": {
        "one": Mode("{run} hello --max-new-tokens 90 --temperature 1 --seed 1"),
        "several": Mode("{run} hello you --max-new-tokens 90 --temperature 1 --seed 1"),
        "chat": Mode("{chatting} hello --chat --max-new-tokens 90 --temperature 1 --seed 1"),
        "file": Mode("{run} --input {prompts} --output out.jsonl --max-new-tokens 90 --temperature 1 --seed 1"),
        "masks": Mode("{masked} hello --max-new-tokens 30 --temperature 1 --seed 1"),
    },
    "evaluate": {"text": Mode("{run} --text {text}"), "masks": Mode("{masked} --text {text}"),
                 "labelled": Mode("{classes} --data {labelled} --json"),
                 "pairs": Mode("{pairs} --source {source} --target {target}"),
                 "retrieval": Mode("{run} --retrieval {anchors}"), "correlation": Mode("{run} --correlation {scored}")},
    "translate": {
        "texts": Mode("{pairs} the model reads a token and says"),
        "file": Mode("{pairs} --input {source} --output out.txt"),
    },
    "embed": {
        "sentences": Mode("{sentences} hello you --json"),
        "decoder": Mode("{run} hello you --json"),
        "encoder": Mode("{classes} hello you --json"),
    },
    "classify": {"texts": Mode("{classes} hello you --json")},
    "inspect": {
        "summary": Mode("{run} hello --json"), "attention": Mode("{run} hello --view attention --layer 0 --json"),
        "attributed": Mode("{run} hello --view attribution"), "corrupt": Mode("{run} hello --corrupt reads"),
        "pair": Mode("{pairs} hello"),
    },
    "runs": {"all": Mode(".", ("run", "chatting"))},
    "plot": {"one": Mode("{run}")},
    "report": {"one": Mode("run", ("run",))},
    "import": {"folder": Mode("{exported} --to out")},
    "export": {
        "run": Mode("{run} --to out"), "gguf": Mode("{run} --to out --format gguf"), "new": Mode("llama-tiny --to out"),
        "adapter": Mode("{adapted} --to out --adapter-only"), "merged": Mode("{adapted} --to out"),
        "own": Mode("{run} --to out --format archetype-hf"),
        "program": Mode("ngram-tiny --to out --format torch-export"),
    },
    "compare plan": {"one": Mode("{experiment} --store {store}")},
    "compare run": {"one": Mode("{experiment} --store store")},
    "compare status": {"one": Mode("{experiment} --store {store}")},
    "compare report": {"one": Mode("{experiment} --store {store}")},
    "compare all": {"exact": Mode("{claims} --exact --store {store}"), "run": Mode("{claims} --store store")},
    "compare search": {"one": Mode("{search} --store store")},
}  # fmt: skip
AUTO = resolve_dtype("auto", torch.device("cpu"))
VALUES = {  # of options, in every mode of their verb
    "set --match": "gpt2-tiny parameters", "set --solve": "d_model", "set --scale": "width=1/2", "set --to": "a.yaml",
    "cost --batch": "2", "cost --length": "32", "cost --source-length": "16", "cost --dtype": "float32",
    "cost --state-dtype": "fp8", "cost --attention": "allowed", "cost --fit": "2GiB", "cost --device": "A100-80GB",
    "cost --devices": "2", "draw --measure": "active", "draw --batch": "2", "draw --length": "32",
    "gallery write --to": "other", "gallery add --to": "other", "gallery add --name": "mine",
    "gallery add --ancestor": "gpt2-tiny", "gallery add --date": "2026-11-30", "gallery add --why": "Small.",
    "draw --dtype": "float32", "draw --aspect": "16:9", "draw --to": "a.png", "tokenizer train --text": "{labelled}",
    "tokenizer train --to": "other", "tokenizer train --kind": "bpe", "tokenizer train --vocab-size": "270",
    "tokenizer train --text {text} --to out --kind words --vocab-size": "8",
    "tokenizer show --merges": "3", "tokenizer show --text": "{text}",
    "tokenizer show --column": "label --text {labelled}",
    "train --recipe": "{recipe}", "train --to": "other", "train --resume": "{run}", "train --set": "max_grad_norm=0.1",
    "train --from": "{run}", "train --teacher": "{run}",
    "train --add-tokens": "<a>", "train --device": "cpu", "train --plan": "1x2",
    "train --gpu": "A100-80GB", "train --spec": "gpt2-tiny", "train --steps": "5", "train --batch-size": "3",
    "train --micro-batch-size": "1", "train --sequence-length": "12", "train --patience": "1",
    "train --dtype": "bfloat16" if AUTO == "float32" else "float32",
    "train --seed": "7", "train --track": "tensorboard", "train --train": "blocks.*", "train --adapter": "lora",
    "train --text": "{labelled}", "train --source": "{source}", "train --target": "{target}",
    "train --images": "{images}", "train --labelled": "{labelled}", "train --labelled-tokens": "{tokens}",
    "train --chat": "{chat}", "train --preferences": "{preferences}",
    "train --pairs": "{anchors}", "train --scored-pairs": "{scored}", "train --tokenizer": "characters",
    "train --vocab-size": "280", "train --learning-rate": "0.003", "train --warmup-steps": "2", "train --tokens": "100",
    "train --column": "text", "train --flops": "1e6", "train --minutes": "0.01", "train --epochs": "0.1",
    "generate --json-schema": "{schema}", "generate --json-whitespace": "free --json-schema {schema}",
    "generate --lark": "{lark}", "generate --system": "Be brief.", "generate --chat-template": "{terse}",
    "generate --draft": "{run}", "generate --input": "{prompts}", "generate --output": "o.jsonl",
    "generate --slots": "2",
    "generate --max-new-tokens": "3", "generate --temperature": "0.2", "generate --top-k": "1",
    "generate --top-p": "0.01",
    "generate --min-p": "0.9", "generate --repetition-penalty": "3", "generate --seed": "5", "generate --stop": "e",
    "generate --block": "5", "generate --order": "random", "generate --tokens-per-step": "3", "evaluate --draws": "2",
    "generate --regex": "[0-9]+", "evaluate --text": "{source}", "evaluate --data": "{labelled}",
    "evaluate --source": "{source}", "evaluate --target": "{target}", "evaluate --tasks": "piqa",
    "evaluate --retrieval": "{anchors}", "evaluate --correlation": "{scored}", "evaluate --recall-at": "3",
    "embed --prompt": "query",
    "evaluate --stride": "3", "evaluate --length": "9", "evaluate --num-fewshot": "1", "evaluate --limit": "1",
    "evaluate --num-beams": "3", "evaluate --length-penalty": "0.1 --num-beams 3", "translate --input": "{source}",
    "translate --output": "o.txt", "translate --num-beams": "3", "translate --length-penalty": "0.1 --num-beams 3",
    "translate --max-extra-tokens": "2", "embed --pooling": "mean", "inspect --view": "lens", "inspect --layer": "1",
    "inspect --head": "1", "inspect --target": "you", "inspect --token": "a", "inspect --position": "1",
    "inspect --corrupt": "reads", "inspect --to": "a.json", "plot --x": "tokens", "plot --to": "a.png",
    "plot --loss": "training", "schema --to": "schema.json",
    "import --to": "other", "import --set": "name=other", "export --to": "other", "export --family": "mistral",
    "export --format": "gguf", "export --type": "q8_0", "export --seed": "3",
    **{f"{verb} --dtype": "bfloat16" for verb in
       ("generate", "evaluate", "translate", "embed", "classify", "inspect", "import", "export")},
    **{f"{verb} --weights": "int8" for verb in ("generate", "evaluate", "translate", "import", "export")},
    **{f"{verb} --device": "cpu" for verb in ("generate", "evaluate", "translate", "embed", "classify", "inspect")},
    **{f"compare {verb} {option}": value for verb in ("plan", "run", "status", "report", "all", "search")
       for option, value in (("--store", "other"), ("--data-dir", "."), ("--workers", "2"), ("--engine", "ray"),
                             ("--to", "reports"))},
}  # fmt: skip
NOWHERE = {  # what changes nothing that can be observed here, and why
    "--device": "there is one device here", "--accept-unproved": "it lifts a refusal: tests/parity/test_proof.py",
    "train --force": "it lifts a refusal of what is too large", "train --allow-changes": "it lifts a refusal",
    "train --skip-bad": "no record here is bad: tests/integration/test_messy_data.py",
    "train --minutes": "this machine is measured: tests/unit/training/test_defaults.py",
    "--minutes": "ends nothing so short: tests/unit/machine/test_time_budget.py",
    "import --allow-pickle": "it lifts a refusal", "export --allow-different-tokens": "it lifts a refusal",
    "generate --draft": "guesses save time and change no text", "generate --lookup": "guesses change no text",
    "generate --slots": "how many run together changes no text",
    "generate --deterministic": "a text alone has the same bits: tests/unit/generate/test_deterministic.py",
    "compare run --workers": "more of them change no number", "compare all --workers": "more of them change no number",
    "compare search --workers": "more of them change no number",
    "--engine": "the other engines need Ray or Slurm", "--data-dir": "these experiments draw their data",
    **{f"{verb} {option}": "rounding changes no word of so few; `evaluate` shows it"
       for verb in ("generate", "translate") for option in ("--dtype", "--weights")},
    "generate --state-dtype": "rounding changes no word of so few: tests/unit/generate/test_state_dtype.py",
    **{f"{verb} --column": "each mode reads plain text: tests/integration/test_text_files.py"
       for verb in ("tokenizer train", "evaluate", "train")},
    "--full": "it is the default", "compare run --gpu": "needs a GPU",
    **{f"compare report --{mode}": "other runs, which `compare run` makes" for mode in ("quick", "extended", "gpu")},
    "generate --json": "the same text as an object", "generate --ignore-eos": "no model here has an end token",
    "evaluate --tasks": "needs lm-eval's data", "evaluate --num-fewshot": "belongs to --tasks",
    "evaluate --limit": "belongs to --tasks", "translate --output": "belongs to --input",
    "import --further-tokens": "no file here has such layers",
    **{f"{verb} --set": "layouts of types that are not registered: tests/parity/test_proof.py"
       for verb in ("generate", "evaluate", "export")},
}  # fmt: skip
UNTRIED = {  # verbs that are not walked, and why
    "demo": "trains for minutes; its parts are those of other verbs",
    "check": "tests/unit/apps/cli/test_check.py",
    "explain": "tests/unit/apps/cli/test_json.py",
    "transplant": "tests/unit/surgery",
    "chat": "tests/integration/test_chat.py: it reads what is typed",
    "serve": "tests/unit/apps/cli/test_serve.py: it ends when it is told to",
    "bench": "measures time",
    "parity": "tests/parity",
    "upload": "tests/integration/test_upload.py: it writes to a hub",
    "fill": "tests/unit/generate: needs a model with a mask",
    "answer": "tests/unit/generate/test_spans.py: needs a head for spans",
    "compare models": "tests/unit/studies/test_chosen.py: it trains for minutes",
    "compare extend": "needs a report in full mode",
    "compare calibrate": "takes minutes",
    "compare claim": "is `compare run` of a file by its number",
    "compare schema": "has no options",
}
ELSEWHERE = {  # what need not change anything in every mode, and why
    "train --to": "of a plan it is the command of the run, with --plan behind it",
    "train --patience": "it ends nothing while the loss falls",
    **{f"evaluate {option}": "rounding changes no rank of so few" for option in ("--dtype", "--weights")},
}
QUICK = {
    "set",
    "schema",
    "cost",
    "tokenizer train",
    "tokenizer show",
    "list",
}  # what every run tries; the soak tries all


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """All calls share what each mode does without a further option."""
    return Walk(Material(tmp_path_factory.mktemp("material")), VALUES, tmp_path_factory.mktemp("walk"))


def _tried() -> Iterator[ParameterSet]:
    """Every verb with every mode; most of them in the soak alone."""
    for verb, modes in MODES.items():
        marks = [] if verb in QUICK else [pytest.mark.slow]
        yield pytest.param(verb, id=verb, marks=marks)
        assert modes


@pytest.mark.parametrize("verb", [*_tried()])
def test_an_option_changes_something_or_is_refused(verb: str, walk: Walk) -> None:
    command, wrong = dict(verbs())[verb], []
    for option in options(command):
        name = f"{verb} {option.opts[0]}"
        if name in NOWHERE or option.opts[0] in NOWHERE:
            continue
        works, refusals = False, ""
        for mode, call_of in MODES[verb].items():
            if option.opts[0] in call_of.arguments.split():
                works = True
                continue
            outcome, said = walk.outcome(verb, call_of, option)
            works, refusals = works or outcome == "changed", f"{refusals}\n{said}" * (outcome == "refused")
            if outcome == "ignored" and name not in ELSEWHERE:
                wrong.append(f"{name} is ignored in the mode {mode!r}: {said}")
        if not works:
            wrong.append(f"{name} does nothing in any mode{refusals}")
    assert not wrong, "\n".join(wrong)


def test_every_option_has_a_value_or_a_reason() -> None:
    named = {f"{verb} {option.opts[0]}" for verb, command in verbs() for option in options(command)}
    walked = {name for name in named if name.rpartition(" ")[0] not in UNTRIED}
    flags = {f"{verb} {one.opts[0]}" for verb, command in verbs() for one in options(command) if one.is_flag}
    reasons = {name for name in named if name in NOWHERE or name.rpartition(" ")[2] in NOWHERE}
    called = {
        f"{verb} {word}" for verb, modes in MODES.items() for mode in modes.values() for word in mode.arguments.split()
    }
    missing = {name for name in walked - flags - reasons if name not in VALUES and name not in called}
    assert not missing, f"say in VALUES what to give them: {sorted(missing)}"
    unwalked = {verb for verb, _ in verbs()} - MODES.keys() - UNTRIED.keys()
    assert not unwalked, f"say in MODES how they are called: {sorted(unwalked)}"
    stale = {name for name in (*NOWHERE, *VALUES) if name[0] != "-" and name.count(" -") == 1} - named
    stale = {name for name in stale if not name.startswith("compare ")}
    assert not stale, f"no verb has these options: {sorted(stale)}"


def _tables() -> Iterator[tuple[str, str, str, str]]:
    """(verb, option, other, what is said) of everything that a verb's module says of its options."""
    for verb, command in verbs():
        module: Any = import_module(f"archetype.apps.cli.{VERBS[verb.partition(' ')[0]][0].partition('.')[0]}")
        names = {one.name: one for one in command.params}
        for option, partners in getattr(module, "NEEDS", {}).items():
            there = [names[partner] for partner in partners if partner in names]
            if option in names and there and not any(partner.required for partner in there):
                yield verb, option, "", "has no effect without"
        for option, others in getattr(module, "EXCLUDES", {}).items():
            for other in others:
                if option in names and other in names:
                    yield verb, option, other, "cannot be combined with"


def test_what_the_tables_of_a_verb_say_is_refused_in_one_line(tmp_path: Path) -> None:
    commands = dict(verbs())
    for verb, option, other, said in _tables():
        with case(verb, option, other):
            command: Any = commands[verb]
            assert isinstance(command, Verb)
            partner = next(iter(command.needs.get(option, ()) if other else ()), "")
            words: list[str] = []
            for one in (one for one in command.params if one.required or one.name in (option, other, partner)):
                words += [one.opts[0]] if one.param_type_name == "option" else []
                words += [] if getattr(one, "is_flag", False) else _value(one)
            done = call([*verb.split(), *words], tmp_path)
            assert (done.status, done.output) == (2, "") and said in done.error, done.error
            assert done.error.count("\n") == 1, done.error


def _value(option: Any) -> list[str]:
    """Something that an option's type takes."""
    choices = [one for one in get_args(option.type_descriptor.annotation) if not isinstance(one, type)]
    return [str(choices[-1] if choices else 2)] * max(1, option.nargs)
