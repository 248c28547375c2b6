"""Tasks of lm-eval: what it is told of our models is what they compute, and what its own run of transformers says.

In processes of their own, for the libraries start threads that would stand beside all further tests.
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import archetype
from archetype.api.language_model import LanguageModel
from archetype.distribution import install_command
from archetype.errors import DataError
from archetype.evaluation.score import score_continuations
from archetype.evaluation.tasks import evaluate_tasks
from archetype.families.llama import llama
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers import forked
from tests.helpers.weights import randomize

TEXT = "a model reads words and says what comes next of them\n" * 20
WORDS = ["a", "the words", "what", "next", "of them", "and", "of them", "a model reads words and says what comes " * 4]
QUESTIONS = [
    {"question": f"a model reads {word}", "choices": [" words", " next", f" of {word[:9]}", " them<eos>"],
     "answer": n % 4, "text": f"{word} says what comes next of them " * (1 + n)}
    for n, word in enumerate(WORDS)
]  # fmt: skip
TASKS = {
    "choices": "output_type: multiple_choice\ndoc_to_text: question\ndoc_to_choice: choices\ndoc_to_target: answer\n"
    "metric_list: [{metric: acc}, {metric: acc_norm}]\n",
    "greedy": "output_type: loglikelihood\ndoc_to_text: ''\ndoc_to_target: '{{text[:40]}}'\n"
    "metric_list: [{metric: perplexity}, {metric: acc}]\n",
    "rolling": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: text\n"
    "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]\n",
    "continued": "output_type: generate_until\ndoc_to_text: question\ndoc_to_target: '{{question}}'\n"
    "generation_kwargs: {until: ['rea'], max_gen_toks: 12, do_sample: false}\nmetric_list: [{metric: chrf}]\n",
}  # fmt: skip


def tiny(context_length: int = 64) -> LanguageModel:
    """A small Llama with random weights, and a tokenizer of its own."""
    tokenizer = train_tokenizer("byte_bpe", TEXT, 280)
    spec = llama(num_layers=2, d_model=16, num_heads=2, d_ff=24, vocab_size=280, context_length=context_length)
    return LanguageModel(spec, randomize(build(spec)), tokenizer)


def write_tasks(folder: Path, end: str) -> None:
    """Each task as a YAML file over one file of questions, some of whose answers end in the token that ends a text."""
    lines = [json.dumps(question).replace("<eos>", end) + "\n" for question in QUESTIONS]
    (folder / "questions.jsonl").write_text("".join(lines))
    head = (
        f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / 'questions.jsonl'}}}}}\ntest_split: test"
    )
    for name, rest in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{head}\n{rest}")


def end_of(lm: LanguageModel) -> str:
    assert lm.tokenizer is not None
    return next(name for name, id in lm.tokenizer.special_tokens.items() if id in lm.tokenizer.eos)


@torch.no_grad()
def test_continuations_are_scored_as_one_by_one() -> None:
    lm, drawn = tiny(context_length=12), torch.Generator().manual_seed(0)
    rows = [torch.randint(280, (n,), generator=drawn).tolist() for n in (2, 3, 9, 9, 14, 30)]
    pairs = [(row[:-k], row[-k:]) for row in [*rows, rows[2], rows[4]] for k in (1, min(len(row) - 1, 4))]
    pairs += [(rows[3][:-1], [token]) for token in range(5)]  # rows that differ in their last token alone
    greedy = rows[3][:4]
    for _ in range(3):
        greedy = [*greedy, int(lm.model(torch.tensor([greedy])).logits[0, -1].argmax())]
    pairs.append((greedy[:4], greedy[4:]))
    results = score_continuations(lm.model, pairs)  # type: ignore[arg-type]
    for (before, continuation), (logprob, is_greedy) in zip(pairs, results, strict=True):
        ids = [*before, *continuation][-13:]
        logits = lm.model(torch.tensor([ids[:-1]])).logits[0, -len(continuation) :].double()
        targets = torch.tensor(continuation)
        expected = float(logits.log_softmax(-1).gather(1, targets[:, None]).sum())
        assert logprob == pytest.approx(expected, rel=1e-5)
        assert is_greedy == bool((logits.argmax(-1) == targets).all())
    assert results[-1][1] and not all(is_greedy for _, is_greedy in results)
    for pair, cause in (
        (([], [1]), "has an empty context; add a context"),
        (([1], []), "has no token; add some text"),
        (([1], [1] * 13), "has 13 tokens, but the model's context is 12; shorten it"),
    ):
        with pytest.raises(DataError, match=f"^continuation 1: {cause}"):
            score_continuations(lm.model, [pair])  # type: ignore[arg-type]


def test_without_lm_eval_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(DataError, match=re.escape(f"lm-eval: is not installed; {install_command('lm-eval')}")):
        archetype.evaluate(tiny(), tasks=["hellaswag"])


@pytest.mark.parametrize(
    "names",
    [
        ("a_file_of_a_task", "equal_settings", "empty_contexts"),
        *(pytest.param((f"equal_{n}",), marks=pytest.mark.slow) for n in ("tiny", "stories")),
    ],
    ids=" ".join,
)
def test_in_a_process_of_its_own(names: tuple[str, ...], tmp_path: Path) -> None:
    options = ["-W", "default", "-o", "python_functions=alone_*", "-m", "", "-p", "no:cacheprovider"]
    options += ["-k", " or ".join(names)]
    environment = {"HF_HOME": str(tmp_path), "HF_DATASETS_CACHE": str(tmp_path)}
    done = forked.run(["python", "-m", "pytest", *options, __file__], environment)
    assert done.returncode == 0 and f"{len(names)} passed".encode() in done.stdout, (done.stdout + done.stderr).decode()


def alone_a_file_of_a_task(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from archetype.apps.cli.main import app

    lm = tiny()
    lm.save(tmp_path / "model")
    write_tasks(tmp_path, end_of(lm))
    arguments = [
        "evaluate",
        str(tmp_path / "model"),
        "--tasks",
        str(tmp_path / "choices.yaml"),
        "--limit",
        "5",
        "--json",
    ]
    monkeypatch.chdir(tmp_path)  # no repository of git, of which lm-eval's own front end lets git complain
    report = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert "git" not in capfd.readouterr().err
    assert report["num_questions"] == {"choices": 5}
    assert lm.tokenizer is not None
    right = 0
    for question in QUESTIONS[:5]:
        sums = []
        for choice in question["choices"]:  # type: ignore[attr-defined]
            before = lm.tokenizer.encode(str(question["question"]))
            both = f"{question['question']} {choice}".replace("<eos>", end_of(lm))
            ids = lm.tokenizer.encode_with_special_tokens(both)
            logprobs = lm.model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
            sums.append(float(sum(logprobs[n - 1, ids[n]] for n in range(len(before), len(ids)))))
        right += max(range(4), key=sums.__getitem__) == question["answer"]
    assert report["tasks"]["choices"]["acc"] == right / 5
    for tasks, message in (
        (str(tmp_path / "model"), f"{tmp_path / 'model'}: contains no tasks; add an lm-eval task file"),
        (str(tmp_path / "wrong.yaml"), "check the task and its data set"),
    ):
        data = f"{{data_files: {{test: {tmp_path}/none.jsonl}}}}"
        wrong = f"task: wrong\ndataset_path: json\ntest_split: test\ndataset_kwargs: {data}\n"
        (tmp_path / "wrong.yaml").write_text(wrong)
        with pytest.raises(DataError, match=message):
            evaluate_tasks(lm, [tasks])


SETTINGS: list[dict[str, Any]] = [  # of which each may be left out
    {"do_sample": False}, {"do_sample": True, "temperature": 1.0, "top_k": 1}, {"do_sample": None},
    {"temperature": 0.0}, {"temperature": 0}, {"temperature": 0.7, "top_k": 1}, {"do_sample": False, "temperature": 1},
    {"until": ["rea"]}, {"until": "words"}, {"until": ["ne", "mo"]}, {"until": ["<|endoftext|>"]},
    {"max_gen_toks": 3}, {"max_new_tokens": 9}, {"max_tokens": 5, "max_gen_toks": 2}, {"num_beams": 1},
    {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}, {"top_p": 0.5}, {"top_k": 0, "top_p": 0.01},
    {"min_new_tokens": 4}, {"suppress_tokens": [5, 9, 270]},
]  # fmt: skip
GENERATION: list[dict[str, Any]] = [  # of the model's own file
    {}, {"do_sample": True, "temperature": 0.9, "top_p": 0.9}, {"repetition_penalty": 1.3},
    {"do_sample": True, "top_k": 3, "max_new_tokens": 2}, {"eos_token_id": [7, 0]},
]  # fmt: skip


def alone_equal_settings(tmp_path: Path) -> None:
    """Whatever a task's `generation_kwargs` and the model's own file say, the text is that of lm-eval's own adapter."""
    import random

    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from archetype.evaluation.tasks import TOP_K, adapter

    archetype.export(tiny(), tmp_path / "exported")
    drawn, differ = random.Random(0), 0

    def ask(model: Any, options: dict[str, Any], repeats: int = 1) -> list[str]:
        requests = [Instance("generate_until", {}, ("a model reads", dict(options)), 0)] * repeats
        return model.generate_until(requests, disable_tqdm=True)  # type: ignore[no-any-return]

    for generation in GENERATION:
        (tmp_path / "exported" / "generation_config.json").write_text(json.dumps({"eos_token_id": 0} | generation))
        ours, theirs = adapter(archetype.load(tmp_path / "exported")), HFLM(str(tmp_path / "exported"), device="cpu")
        some = drawn.sample(SETTINGS, 6) if generation else SETTINGS
        cases = [{}, *some, *({**a, **b} for a, b in (drawn.sample(SETTINGS, 2) for _ in range(5)))]
        for case in cases:
            options = {"until": [], "max_gen_toks": 8} | case
            samples = options.get("temperature") and options.get("do_sample") is not False
            if samples and options.get("top_k") != 1:
                continue
            expected = ask(theirs, options)
            assert ask(ours, options) == expected, (generation, options)
            differ += expected != ask(theirs, {"until": [], "max_gen_toks": 8})
    assert differ > 15  # the settings do something
    one = {"until": [], "max_gen_toks": 1, "temperature": 1.5}
    for top_k in (None, 0):
        samples = {name: set(ask(model, one | ({} if top_k is None else {"top_k": top_k}), 400))
                   for name, model in (("ours", ours), ("theirs", theirs))}  # fmt: skip
        for name in samples:
            assert (len(samples[name]) <= TOP_K) == (top_k is None), (name, top_k, len(samples[name]))
    again = ask(ours, one | {"max_gen_toks": 6}, 64)
    assert len(set(again)) > 50 and ask(ours, one | {"max_gen_toks": 6}, 64) == again
    for wrong, message in (
        ({"do_sample": True}, "do_sample: is True and the temperature is 0; set a temperature above 0"),
        ({"until": ["a", ""]}, "until: contains an empty string"),
        ({"num_beams": 4}, "num_beams: 4 is not supported; remove it"),
        ({"seed": 4}, "seed: 4 is not supported"),
        ({"max_length": 40}, "max_length: 40 is not supported"),
    ):
        with pytest.raises(DataError, match=f"^generation_kwargs: {message}"):
            ask(ours, {"until": []} | wrong)


def alone_empty_contexts(tmp_path: Path) -> None:
    """What stands for an empty context is the tokenizer's own token, whatever ids other files name."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from archetype.evaluation.tasks import adapter

    lm, folder = tiny(), tmp_path / "exported"
    archetype.export(lm, folder)
    ids = {"bos_token_id": 5, "eos_token_id": [7, 0]}
    for file, more in (("config", {"bos_token_id": 5}), ("generation_config", ids)):
        path = folder / f"{file}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    ours, theirs = adapter(archetype.load(folder)), HFLM(str(folder), device="cpu", dtype="float32")

    def ask(model: Any, kind: str, *pairs: tuple[str, ...]) -> list[Any]:
        return getattr(model, kind)([Instance(kind, {}, pair, 0) for pair in pairs], disable_tqdm=True)  # type: ignore[no-any-return]

    assert ours.prefix_token_id == theirs.prefix_token_id == ours.eot_token_id == 0
    pairs = [("", "words"), ("", f"{end_of(lm)} words"), ("a model", " reads"), (" a ", "model"), ("a m", "odel reads")]
    results = (ask(model, "loglikelihood", *pairs) for model in (ours, theirs))
    for (logprob, is_greedy), other in zip(*results, strict=True):
        assert logprob == pytest.approx(other[0], rel=1e-5) and is_greedy == other[1]
    assert ask(ours, "loglikelihood_rolling", (TEXT,)) == pytest.approx(
        ask(theirs, "loglikelihood_rolling", (TEXT,)), rel=1e-5
    )
    joined = [("re", "ads"), (" ", "words"), ("\n", "a"), ("word", "s")]  # on which lm-eval's adapter fails
    for pair in joined:
        with pytest.raises(AssertionError):
            ask(theirs, "loglikelihood", pair)
    tokenizer = lm.tokenizer
    assert tokenizer is not None
    expected = []
    for context, continuation in joined:
        before = tokenizer.encode(context.rstrip()) or [0]
        after = tokenizer.encode((context + continuation)[len(context.rstrip()) :])
        logprobs = lm.model(torch.tensor([[*before, *after]])).logits[0].log_softmax(-1)
        places = range(len(before) - 1, len(before) + len(after) - 1)
        expected.append(float(sum(logprobs[place, token] for place, token in zip(places, after, strict=True))))
    assert [logprob for logprob, _ in ask(ours, "loglikelihood", *joined)] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(DataError, match=r"^answer '': adds no tokens to the context 'a model'; every answer"):
        ask(ours, "loglikelihood", ("a model", ""))
    bare = LanguageModel(lm.spec, lm.model, train_tokenizer("characters", TEXT, None))
    with pytest.raises(DataError, match=r"^tokenizer: has neither bos nor eos"):
        ask(adapter(bare), "loglikelihood", ("", "words"))


def alone_equal_tiny(tmp_path: Path) -> None:
    check_equal(tiny(), tmp_path)


def alone_equal_stories(tmp_path: Path, shared: Path) -> None:
    """A real model whose tokenizer starts every text with a token of its own."""
    check_equal(archetype.load(shared / "stories260K"), tmp_path)


def check_equal(lm: LanguageModel, folder: Path) -> None:
    """All figures, and all answers one by one, equal those of lm-eval's own run of transformers."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from archetype.evaluation.tasks import adapter

    write_tasks(folder, end_of(lm))
    archetype.export(lm, folder / "exported")
    scores = evaluate_tasks(lm, [str(folder)])
    assert scores.num_questions == dict.fromkeys(TASKS, len(QUESTIONS))
    theirs = HFLM(str(folder / "exported"), dtype="float32", batch_size=3, device="cpu")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    output: Any = lm_eval.simple_evaluate(theirs, tasks=[*TASKS], task_manager=manager, bootstrap_iters=0)
    for task, figures in scores.tasks.items():
        assert len(figures) >= 1
        for name, value in figures.items():
            other, exact = output["results"][task][f"{name},none"], 1e-5
            if name.endswith("perplexity"):  # 1e36 of a text: the rounding of 83 nats, exponentiated
                value, other, exact = math.log(value), math.log(other), 1e-6
            assert value == pytest.approx(other, rel=exact), (task, name)
    ours = adapter(lm)
    for task, samples in output["samples"].items():
        requests = [
            type("Request", (), {"args": tuple(arguments)}) for sample in samples for arguments in sample["arguments"]
        ]
        kind = manager.load([task])["tasks"][task].OUTPUT_TYPE
        ask = {"multiple_choice": "loglikelihood"}.get(kind, kind)
        answers = [answer for sample in samples for answer in sample["resps"]]
        expected = [answer[0] if isinstance(answer, list) else answer for answer in answers]
        for mine, other in zip(getattr(ours, ask)(requests), expected, strict=True):
            if ask == "loglikelihood":
                assert mine[0] == pytest.approx(other[0], rel=1e-5) and mine[1] == other[1], task
            else:
                assert mine == (other if ask == "generate_until" else pytest.approx(other, rel=1e-5)), task
