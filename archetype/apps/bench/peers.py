"""Other libraries that run the same weights, each in its own process, timed in alternation with Archetype."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.apps.bench import peer_program
from archetype.apps.bench.jobs import START, Job, Timing, Workload
from archetype.convert.gguf.file import FILE
from archetype.convert.gguf.types import FileType
from archetype.errors import ArchetypeError, DataError, one_line

GGUF_TYPES: dict[str, FileType] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "lossless": "bf16",
    "int8": "q8_0",
    "int4": "q4_0",
}
# environment variables that our command line sets; a peer should run with its own defaults
OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")
KEPT_MEMORY = {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
WRITING: tuple[Job, ...] = ("decode", "prefill", "batch")


class Kind(NamedTuple):
    """Library to compare with: its jobs and its environment."""

    library: str
    jobs: tuple[Job, ...]
    environment: dict[str, str]


KINDS = {
    "transformers": Kind("transformers", (*WRITING, "train", "embed"), {}),
    # training is faster in any library if freed memory is kept, so transformers is timed with our setting, too
    "transformers, memory kept": Kind("transformers", ("train",), KEPT_MEMORY),
    "llama.cpp": Kind("llama.cpp", WRITING, {}),
}


class Peer:
    """Another library, running in its own process.

    Args:
        python: interpreter that has the library.
        threads: number of threads that it may use.
        folder: working directory of the process, with a file for its messages.

    Raises:
        DataError: the library is not installed there, or the process ends.
    """

    def __init__(self, name: str, python: str, threads: int, folder: Path) -> None:
        self.name, self.dtype = name, ""
        self.messages = folder / f"{name}.txt"
        environment = {key: value for key, value in os.environ.items() if key not in OURS}
        environment |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "GGML_NO_BACKTRACE": "1"}
        environment |= KINDS[name].environment
        source = Path(peer_program.__file__).read_text(encoding="utf-8")
        if (program := shutil.which(python)) is None:
            raise DataError("--peer-python", f"{python} is not a program", "pass the path of a Python interpreter")
        with self.messages.open("wb") as messages:
            # the program's text is passed, so that the other interpreter needs no file or package of ours
            self.process = subprocess.Popen(
                [Path(program).absolute(), "-c", source, KINDS[name].library],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                env=environment,
                cwd=folder,
                text=True,
                encoding="utf-8",
            )
        answer = self._answer()
        self.version = answer.get("version", "")
        if package := answer.get("missing"):
            self.close()
            raise DataError(package, f"is not installed in {python}", "install it, or pass --peer-python")

    def load(self, **request: Any) -> None:
        self._ask(json.dumps(request))  # answered when the weights are loaded

    def run(self) -> Timing:
        answer = self._ask("")
        return Timing(answer["seconds"], answer.get("first"), tuple(answer.get("tokens", ())))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()  # closes the pipes, and leaves no zombie

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer reports that it has ended
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():  # empty at the end of the process
            return json.loads(line)
        self.process.wait()
        self.close()
        messages = self.messages.read_text(encoding="utf-8", errors="replace").splitlines() or ["no message"]
        cause = f"ended with status {self.process.returncode}: {one_line(messages[-1], 160)}"
        raise DataError(KINDS[self.name].library, cause)


@contextlib.contextmanager
def opened(
    lm: LanguageModel, workload: Workload, dtype: str, weights: str | None, threads: int, python: str | None
) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """Start the peers of a job on the model's exported weights. Return them and the reasons for missing peers.

    Args:
        dtype: compute dtype in transformers.
        weights: weight format; llama.cpp uses its block format of the same width.
        threads: number of threads that each peer may use.
        python: interpreter that has the libraries; None to start no peers.
    """
    plain = replace(lm, tokenizer=None, template=None)  # the jobs read and write ids only
    kind = GGUF_TYPES.get(weights or dtype)
    request = {
        "job": workload.job,
        "prompts": workload.prompts,
        "new": workload.new,
        "dtype": dtype,
        "threads": threads,
        "is_pair": lm.spec.reads_source,
        "start": START,
    }
    peers: list[Peer] = []
    left_out: dict[str, str] = {}
    with TemporaryDirectory(prefix="archetype-bench-") as temporary, contextlib.ExitStack() as processes:
        folder = Path(temporary)
        for name, known in KINDS.items():
            if python is None or workload.job not in known.jobs:
                continue
            try:
                peer = Peer(name, python, threads, folder)
                processes.callback(peer.close)
                for_llama_cpp = known.library == "llama.cpp"
                target = folder / ("gguf" if for_llama_cpp else "hf")
                # exported once for all kinds of peers that read the format
                if not target.exists() and for_llama_cpp:
                    export(plain, target, format="gguf", type=kind)
                elif not target.exists():
                    export(plain, target)
                peer.dtype = (kind or dtype) if for_llama_cpp else dtype
                peer.load(**request, folder=str(target), file=str(target / FILE))
                peer.run()  # warm-up; fails if the library cannot run this job
                peers.append(peer)
            # a peer that fails is left out with its reason: the other times are still worth printing
            except ArchetypeError as error:
                left_out[name] = str(error)
        yield peers, left_out
