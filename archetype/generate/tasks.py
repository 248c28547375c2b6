"""Known tasks by lm-eval, the harness of EleutherAI: it asks, our scores and our engine answer."""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from archetype.distribution import install_command
from archetype.errors import DataError, one_line
from archetype.generate.engine import Engine, Loaded
from archetype.generate.generation_config import READ, is_unobeyed
from archetype.generate.score import score_continuations
from archetype.models.causal import CausalModel
from archetype.table import Table

SEED = 1234  # of lm-eval
SLOTS = 32  # texts that are continued together
OBEYED = READ.keys() - {"temperature", "max_new_tokens", "max_length", "stop_strings"}  # which are said otherwise
TOP_K = 50  # of transformers, where neither the task nor the model's generation_config.json says one


class Scored(Loaded, Protocol):
    """The parts of a language model that tasks need."""

    @property
    def special_names(self) -> dict[str, str]:
        """bos_token, eos_token and pad_token as they are spelled, where the model has them."""

    @property
    def generation(self) -> Mapping[str, Any]:
        """The contents of the model's generation_config.json."""


@dataclass(frozen=True)
class TaskScores:
    """The figures of each task.

    Attributes:
        tasks: by task and by name; behind a comma the filter of the answers, where a task has several.
        num_questions: asked of each task.
    """

    tasks: dict[str, dict[str, float]]
    num_questions: dict[str, int]

    def record(self) -> dict[str, Any]:
        """All figures by name."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            [task, name, f"{value:.4f}", f"{self.num_questions.get(task, 0):,}" if task in self.num_questions else ""]
            for task, figures in self.tasks.items()
            for name, value in figures.items()
        ]
        return str(Table(("task", "figure", "value", "questions"), rows, text_columns=2))


def evaluate_tasks(
    lm: Scored, tasks: list[str], num_fewshot: int | None = None, limit: int | None = None
) -> TaskScores:
    """The scores of a model that continues texts.

    Args:
        lm: with its tokenizer.
        tasks: names, YAML files of tasks, or folders of them.
        num_fewshot: examples before each question (default: the task's).
        limit: questions of each task (default: all).

    Raises:
        DataError: lm-eval is not installed, there is no such task, or its questions cannot be read.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise DataError("lm-eval", "is not installed", install_command("lm-eval")) from None

    class Tasks(TaskManager):  # type: ignore[misc]
        """Tasks whose faults are said in one line."""

        def load(self, task_list: Any) -> Any:
            try:
                return super().load(task_list)
            except (OSError, LookupError, TypeError, ValueError) as error:
                place = ", ".join(map(str, task_list))
                raise DataError(place, one_line(str(error), 160), "check the task and its data set") from None

    folders = [task for task in tasks if Path(task).is_dir()]
    names = [task for task in tasks if not Path(task).exists()]
    manager = Tasks(include_path=folders, include_defaults=bool(names))
    if missing := [name for name in names if name not in manager.all_tasks]:
        raise DataError("tasks", f"there is none called {missing[0]!r:.60}", "see `lm-eval ls tasks`, or name a file")
    for folder in folders:
        own = TaskManager(include_path=folder, include_defaults=False).all_subtasks
        if not own:
            raise DataError(folder, "holds no task", "write one as a YAML file of lm-eval")
        names += own
    # `simple_evaluate` does the same, and runs `git describe`, whose complaint outside of a repository reaches the user
    random.seed(0)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    loaded = manager.load([*names, *(task for task in tasks if Path(task).is_file())])
    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot")
        if own is None or (own and num_fewshot is not None):
            task.set_config(key="num_fewshot", value=num_fewshot or 0)
        task.set_fewshot_seed(seed=SEED)
    results = lm_eval.evaluate(adapter(lm), loaded, limit=limit, bootstrap_iters=0, log_samples=False)
    scores = {
        task: {name.removesuffix(",none"): value for name, value in figures.items() if isinstance(value, float)}
        for task, figures in results["results"].items()
    }
    return TaskScores(scores, {task: counts["effective"] for task, counts in results["n-samples"].items()})


def adapter(lm: Scored) -> Any:
    """A model as lm-eval asks it: log-likelihoods of continuations and of whole texts, and continuations.

    Args:
        lm: with its tokenizer.
    """
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    assert lm.tokenizer is not None and isinstance(lm.model, CausalModel)
    engine, tokenizer = Engine(lm, SLOTS), lm.tokenizer
    model, context = lm.model, lm.model.spec.context_length
    bos, eos = (special_id(lm, key) for key in ("bos_token", "eos_token"))
    prefix, ends = eos if bos is None else bos, tuple(filter(None, [lm.special_names.get("eos_token")]))

    class Adapter(TemplateLM):  # type: ignore[misc]
        """The interface that lm-eval calls."""

        @property
        def eot_token_id(self) -> int | None:
            """The tokenizer's `eos_token`, whatever else ends a text by the model's other files."""
            return eos

        @property
        def prefix_token_id(self) -> int:
            """The token before an empty context: the tokenizer's `bos_token`, or else its `eos_token`."""
            if prefix is None:
                cause = "has no token that starts or ends a text, which a question without a context begins with"
                raise DataError("tokenizer", cause, "choose tasks with contexts, or use a tokenizer that has one")
            return prefix

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
            """The ids of a text that may spell out special tokens, and those around it unless it starts with one."""
            ids = tokenizer.encode_with_special_tokens(string)
            if add_special_tokens is None:
                add_special_tokens = prefix is None or ids[:1] != [prefix]
            return tokenizer.add_special_tokens(ids) if add_special_tokens else ids

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            for context, continuation in (request.args for request in requests):
                if not continuation.strip() and not self.tok_encode(continuation, add_special_tokens=False):
                    cause = f"has no token after {context[-40:]!r}"
                    raise DataError(f"answer {continuation!r:.40}", cause, "give each answer of the task a text")
            answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm)
            return answers

        def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
            """Cut the ids of both where those of the context end.

            lm-eval's own adapter fails where a token reaches from the context to the end, or a context is spaces. Here
            the continuation is then encoded alone, and nothing before it is an empty context.
            """
            before, after = super()._encode_pair(context, continuation)
            if not after:
                after = self.tok_encode(context[len(context.rstrip()) :] + continuation, add_special_tokens=False)
            return before or [self.prefix_token_id], after

        def _loglikelihood_tokens(self, requests: list[Any], **options: Any) -> list[tuple[float, bool]]:
            return score_continuations(model, [(before, continuation) for _, before, continuation in requests])

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            windows = [
                (number, make_disjoint_window(window))
                for number, request in enumerate(requests)
                for window in get_rolling_token_windows(
                    self.tok_encode(request.args[0]), self.prefix_token_id, context, 1
                )
            ]
            totals = [0.0] * len(requests)
            scores = score_continuations(model, [window for _, window in windows])
            for (number, _), (logprob, _) in zip(windows, scores, strict=True):
                totals[number] += logprob
            return totals

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            prompts = [self.tok_encode(request.args[0]) for request in requests]
            submitted = {}
            for number in sorted(range(len(prompts)), key=lambda number: len(prompts[number])):
                options = normalize_gen_kwargs(requests[number].args[1])
                settings = sampling_of(options, lm)
                settings["stop"] += ends
                settings["seed"] = (lm.sampling.seed + number) % 2**63  # of a question's repeats each has its own
                limit = options["max_gen_toks"]
                room = context - limit if limit < context else max(1, context // 2)
                submitted[number] = engine.submit(prompts[number][-room:], id=number, continues=False, **settings)
            return [submitted[number].result() for number in range(len(prompts))]

    return Adapter()


def special_id(lm: Scored, key: str) -> int | None:
    """The id of the token that the tokenizer's own files call `bos_token` or `eos_token`; None where they name none."""
    assert lm.tokenizer is not None
    name = lm.special_names.get(key)
    ids = [] if name is None else lm.tokenizer.encode_with_special_tokens(name)
    return ids[0] if len(ids) == 1 else None


def sampling_of(options: Mapping[str, Any], lm: Scored) -> dict[str, Any]:
    """The settings that a task asks for, as fields of `Sampling`; greedy unless it asks for sampling, as in lm-eval.

    Args:
        options: the task's `generation_kwargs`, as lm-eval normalizes them.
        lm: whose own settings stand where the task says nothing.

    Raises:
        DataError: one of them is not obeyed here, or asks for samples without a temperature.
    """
    temperature = float(options.get("temperature", 0.0)) if options["do_sample"] else 0.0
    if options["do_sample"] and temperature <= 0:
        cause = f"is {options['do_sample']!r:.40} and the temperature is {temperature:g}"
        raise DataError("generation_kwargs: do_sample", cause, "give a temperature above 0, or leave do_sample out")
    if "" in options["until"]:
        cause = "holds an empty text, which lm-eval's own adapter finds after one token"
        raise DataError("generation_kwargs: until", cause, "leave it out")
    # transformers is given a task's limit as `max_length`, over which a model's own `max_new_tokens` has precedence
    limit, stop = lm.generation.get("max_new_tokens") or options["max_gen_toks"], tuple(options["until"])
    settings: dict[str, Any] = {"temperature": temperature, "max_new_tokens": limit, "stop": stop}
    if temperature and "top_k" not in options and lm.sampling.top_k is None and lm.generation.get("top_k") is None:
        settings["top_k"] = TOP_K
    for key in options.keys() - {"do_sample", "temperature", "max_gen_toks", "until"}:
        value = options[key]
        if key in OBEYED:
            settings[READ[key]] = value or None if key == "top_k" else value
        elif key in READ or is_unobeyed(key, value, options):
            raise DataError(f"generation_kwargs: {key}", f"{value!r:.40} is not done here", "leave it out")
    return settings
