"""Known tasks by lm-eval, the harness of EleutherAI: it asks, our scores and our engine answer."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archetype.distribution import install_command
from archetype.errors import DataError, one_line
from archetype.generate.engine import Engine, Loaded
from archetype.generate.score import score_continuations
from archetype.models.causal import CausalModel
from archetype.table import Table

SLOTS = 32  # texts that are continued together
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


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
    lm: Loaded, tasks: list[str], num_fewshot: int | None = None, limit: int | None = None
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
    results = lm_eval.simple_evaluate(
        adapter(lm), tasks=[*names, *(task for task in tasks if Path(task).is_file())], task_manager=manager,
        num_fewshot=num_fewshot, limit=limit, bootstrap_iters=0, log_samples=False,
    )  # fmt: skip
    scores = {
        task: {name.removesuffix(",none"): value for name, value in figures.items() if isinstance(value, float)}
        for task, figures in results["results"].items()
    }
    return TaskScores(scores, {task: counts["effective"] for task, counts in results["n-samples"].items()})


def adapter(lm: Loaded) -> Any:
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

    class Adapter(TemplateLM):  # type: ignore[misc]
        """The interface that lm-eval calls."""

        @property
        def eot_token_id(self) -> int:
            """The token that ends a text; without one the token that starts it."""
            return tokenizer.eos[0] if tokenizer.eos else tokenizer.bos or 0

        @property
        def prefix_token_id(self) -> int:
            """The token that stands for an empty context."""
            return self.eot_token_id if tokenizer.bos is None else tokenizer.bos

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
            """The ids of a text, in which special tokens may be spelled out, with the one that starts a text."""
            ids, bos = tokenizer.encode_with_special_tokens(string), tokenizer.bos
            adds_bos = tokenizer.adds_bos if add_special_tokens is None else add_special_tokens
            return [bos, *ids] if adds_bos and bos is not None and ids[:1] != [bos] else ids

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
                limit = options["max_gen_toks"]
                settings = {name: options[name] for name in SAMPLING if name in options}
                settings |= {"max_new_tokens": limit, "stop": tuple(filter(None, options.get("until") or ()))}
                room = context - limit if limit < context else max(1, context // 2)
                submitted[number] = engine.submit(prompts[number][-room:], id=number, continues=False, **settings)
            return [submitted[number].result() for number in range(len(prompts))]

    return Adapter()
