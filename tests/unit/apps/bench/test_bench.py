"""Timing: every job's numbers are there and fit together, on tiny models; no time itself is judged."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.apps.bench import jobs, peers, timed_job
from archetype.apps.bench.jobs import SIZES, Job, Timing, Workload, jobs_of, runner
from archetype.apps.bench.timed_job import Peaks, against_limit, rates, take_turns
from archetype.apps.cli.main import app
from archetype.errors import ArchetypeError, DataError
from archetype.estimate.report import cost_report
from archetype.estimate.roofline import weights_read
from archetype.families.t5 import t5
from archetype.generate import Engine
from archetype.machine import environment
from archetype.models.build import build
from archetype.native.library import library
from archetype.runs import peaks
from archetype.runs.peaks import Peak
from tests.helpers.cases import case
from tests.helpers.kernels import kernels
from tests.helpers.specs import ALL
from tests.helpers.weights import randomize

FIELDS = {
    "job", "model", "dtype", "weights", "batch", "prompt", "new", "repeat", "prefill_ms", "decode_tokens_per_s",
    "tokens_per_s", "tokens_per_s_range", "seconds", "tokens", "read_gb_per_s", "flops_per_s",
    "peak_bandwidth_gb_per_s", "peak_bandwidth_path", "peak_flops_per_s", "peak_flops_path", "fraction_of_limit",
    "bound", "page_bytes", "machine", "versions", "date", "deterministic", "state_dtype",
}  # fmt: skip
PEAKS = Peaks(bandwidth=Peak(1e9, "torch.sum"), flops=Peak(1e11, "torch.mm"), page_bytes=4096)


@pytest.fixture(autouse=True)
def small_peaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Peaks are measured on little, and the number of threads is as before."""
    monkeypatch.setattr(peaks, "SIDE", 64)
    monkeypatch.setattr(peaks, "READ_BYTES", 2**20)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def bench(*arguments: str) -> dict[str, Any]:
    """The object that a command prints."""
    result = CliRunner().invoke(app, ["bench", *arguments, "--repeat", "2", "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, ArchetypeError)
    return str(result.exception)


COMMANDS: dict[Job, tuple[str, ...]] = {
    "decode": ("llama-tiny", "--batch", "2", "--prompt", "9", "--new", "5"),
    "prefill": ("mamba-tiny", "--prompt", "7", "--dtype", "bfloat16"),
    "batch": ("llama-tiny", "--batch", "4", "--prompt", "16", "--new", "8"),
    "train": ("gpt2-tiny", "--batch", "2", "--prompt", "8"),
    "embed": ("bert-tiny", "--batch", "3", "--prompt", "6"),
}


@pytest.mark.parametrize("job", COMMANDS)
def test_every_number_is_there_and_they_fit_together(job: Job) -> None:
    result = bench(job, *COMMANDS[job], "--threads", "1")
    assert result.keys() - {"of_equal_lengths"} == FIELDS and ("of_equal_lengths" in result) == (job == "batch")
    assert result["versions"] == {"archetype": archetype.__version__, "torch": torch.__version__,
                                  "python": ".".join(map(str, sys.version_info[:3]))}  # fmt: skip
    assert result["machine"]["threads"] == 1 and result["machine"]["processor"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", result["date"])
    assert (result["prefill_ms"] is not None) == (job in ("decode", "prefill", "batch"))
    assert (result["decode_tokens_per_s"] is not None) == (job == "decode")
    numbers = {"decode": 2 * 4, "prefill": 7, "train": 16, "embed": 18}
    if job in numbers:
        assert result["tokens_per_s"] * result["seconds"] == pytest.approx(numbers[job])
        reads = result["read_gb_per_s"] / result["peak_bandwidth_gb_per_s"]
        computes = result["flops_per_s"] / result["peak_flops_per_s"]
        assert result["fraction_of_limit"] == pytest.approx(max(reads, computes))
        assert result["bound"] == ("memory" if reads > computes else "compute")
    low, high = result["tokens_per_s_range"]
    assert low <= result["tokens_per_s"] <= high


def test_tokens_are_those_of_generation() -> None:
    model = build(archetype.load_spec("llama-tiny"), seed=0).eval()
    (prompt,) = Workload.of("decode", model.spec, 1, 9, 40).prompts
    tokens: list[int] = []
    for _ in range(40):
        tokens.append(int(model(torch.tensor([prompt + tokens])).logits[0, -1].argmax()))  # type: ignore[union-attr]
    assert bench("decode", "llama-tiny", "--prompt", "9", "--new", "40")["tokens"] == tokens[:32]
    assert bench("prefill", "llama-tiny", "--prompt", "9")["tokens"] == tokens[:1]


def test_a_folder_is_timed_with_its_own_weights(tmp_path: Path) -> None:
    model = randomize(build(archetype.load_spec("llama-tiny")))
    lm = LanguageModel(model.spec, model)
    archetype.export(lm, tmp_path / "model")
    from_folder = bench("decode", str(tmp_path / "model"), "--prompt", "4", "--new", "6")
    timing = runner(lm.model.eval(), Workload.of("decode", lm.spec, 1, 4, 6), "float32")()
    assert from_folder["tokens"] == list(timing.tokens) and len(timing.tokens) == 6


def test_requests_read_their_prompts_in_every_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = list[Engine]()
    monkeypatch.setattr(jobs, "Engine", lambda *args, **options: engines.append(Engine(*args, **options)) or engines[0])
    model = build(archetype.load_spec("llama-tiny")).eval()
    run = runner(model, Workload.of("batch", model.spec, 2, 40, 3), "float32")
    assert run().tokens == run().tokens
    assert engines[0].stats().cached_tokens == 0 and engines[0].stats().finished == 4


def test_a_deterministic_model_is_timed_as_an_engine_runs_it() -> None:
    kernels("native")
    for arguments in (("decode", "t5-tiny", "--new", "5"), ("prefill", "llama-tiny", "--weights", "int8")):
        alone, together = (bench(*arguments, "--prompt", "9", "--batch", rows, "--deterministic") for rows in "13")
        assert alone["deterministic"] and alone["tokens"] == together["tokens"] and alone["tokens_per_s"] > 0


def test_the_table_says_what_the_object_says() -> None:
    result = CliRunner().invoke(app, ["bench", "batch", *COMMANDS["batch"], "--repeat", "1"], catch_exceptions=False)
    for words in ("batch llama-tiny, float32, 4 x 16 input tokens, 8 new", "prefill", "to equal lengths",
                  "GB/s", "GFLOP/s", "of the limit", "threads"):  # fmt: skip
        assert words in result.stdout, words


def test_what_a_step_reads_is_its_weights_and_its_state() -> None:
    llama = archetype.load_spec("llama-tiny")
    report = cost_report(llama, 2, 9 + 3, "float32")
    seconds = 0.5
    for weights, least in ((None, "float32"), ("int8", "int8")):
        measured = against_limit(llama, Workload.of("decode", llama, 2, 9, 6), "float32", weights, PEAKS, seconds)
        traffic = 5 * (weights_read(cost_report(llama, 2, 12, least), 2) + report.state["bytes"])
        assert measured["read_gb_per_s"] == pytest.approx(traffic / seconds / 1e9)
        assert measured["flops_per_s"] == pytest.approx(5 * report.flops["decode"] / seconds)
        assert measured["fraction_of_limit"] == pytest.approx(traffic / PEAKS.bandwidth.rate / seconds)
        assert measured["bound"] == "memory"


def test_no_share_of_the_limit_is_above_one() -> None:
    """A job that is faster than what was measured is the new peak, and the record says so."""
    llama = archetype.load_spec("llama-tiny")
    above = "the job itself, faster than "
    for job in jobs_of(llama):
        workload = Workload.of(job, llama, 4, 16, None)
        for seconds in 10.0 ** np.arange(-9, 3):
            for flops in (1e6, 1e9, 1e11):
                peaks = PEAKS._replace(flops=Peak(flops, "torch.mm"))
                measured = against_limit(llama, workload, "float32", None, peaks, seconds)
                reading, computing = measured["peak_bandwidth_path"], measured["peak_flops_path"]
                assert measured["fraction_of_limit"] <= 1
                assert measured["read_gb_per_s"] <= measured["peak_bandwidth_gb_per_s"]
                assert measured["flops_per_s"] <= measured["peak_flops_per_s"]
                assert (reading == "torch.sum") == (measured["peak_bandwidth_gb_per_s"] == 1.0)
                assert (computing == "torch.mm") == (measured["peak_flops_per_s"] == flops)
                if seconds == 1e-9:  # faster than any machine
                    assert measured["fraction_of_limit"] == pytest.approx(1)
                    assert (reading, computing) == (f"{above}torch.sum", f"{above}torch.mm")


def test_the_peak_is_the_best_of_all_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path is timed by the work that it does, and every path that this machine has is among them."""
    tried: list[str] = []

    def seconds(call: Callable[[], object], device: torch.device, tries: int) -> float:
        assert call() is not None
        tried.append("")
        return 1.0 if len(tried) == 2 else 2.0

    monkeypatch.setattr(peaks, "_seconds", seconds)
    cpu = torch.device("cpu")
    reading, _ = peaks.read_peak(cpu)
    has_kernels = library() is not None
    assert reading == Peak(2**20, "torch.sum") and len(tried) == 3 + has_kernels
    tried.clear()
    assert peaks.product_peak(cpu, torch.float32, "int8").rate >= 2 * 64**3 / 2
    assert len(tried) == 1 + torch.backends.mkldnn.is_available() + 2 * has_kernels


def test_an_encoder_rests_while_its_decoder_writes() -> None:
    pair = t5(num_layers=2, d_model=32, num_heads=2, head_dim=16, d_ff=64, vocab_size=50, context_length=32)
    report = cost_report(pair, 1, 8, "float32")
    encoder = sum(row.parameters for row in report.rows if row.module.startswith("encoder.") and row.forward)
    cross = sum(row.parameters for row in report.rows if row.module.endswith(("cross.k", "cross.v")))
    assert encoder > 0 < cross
    assert weights_read(report, 1) - weights_read(report, 1, "decode") == 4 * (encoder + cross)
    workload = Workload.of("decode", pair, 1, 8, 6)
    measured = against_limit(pair, workload, "float32", None, PEAKS, 1.0)
    state = build(pair).new_state(torch.tensor(workload.prompts), capacity=3)  # type: ignore[union-attr, operator]
    lengths = 8 * len(pair.stacks[1].layers)  # integers that say how long the source is
    least = 5 * (weights_read(report, 1, "decode") + state.nbytes - lengths)
    assert measured["read_gb_per_s"] == pytest.approx(least / 1e9)


def test_a_target_is_written_as_the_model_writes_it() -> None:
    pair = randomize(build(ALL["encoder-decoder"])).eval()
    workload = Workload.of("decode", pair.spec, 2, 5, 6)
    written = runner(pair, workload, "float32")().tokens
    source, target = torch.tensor(workload.prompts[:1]), [0]
    for _ in range(6):
        output = pair(torch.tensor([target]), source=source)  # type: ignore[operator]
        target.append(int(output.logits[0, -1].argmax()))
    assert list(written) == target[1:]


def test_lengths_fit_into_the_context_unless_they_are_given() -> None:
    tiny = archetype.load_spec("llama-tiny")  # a context of 128
    for arguments, sizes in {
        ("decode", None, None, None): (1, 85, 43),
        ("decode", 3, 10, None): (3, 10, 64),
        ("decode", None, 100, None): (1, 100, 28),
        ("decode", None, None, 100): (1, 28, 100),
        ("prefill", None, None, None): (1, 127, 1),
        ("train", None, None, None): (8, 128, 0),
        ("embed", 2, None, None): (2, 32, 0),
        ("batch", 5, 64, 32): (5, 64, 32),
    }.items():
        with case(*arguments):
            assert Workload.of(arguments[0], tiny, *arguments[1:]).sizes == sizes  # type: ignore[arg-type]
    mixed = Workload.of("batch", tiny, 5, 64, 32)
    assert sorted(map(len, mixed.prompts)) == [16, 28, 40, 52, 64] and sorted(mixed.new) == [8, 14, 20, 26, 32]
    assert mixed.mean == (5, 40, 20) == mixed.equal(tiny).sizes
    assert all(Workload.of(job, archetype.load_spec("llama-3-8b"), None, None, None).sizes == SIZES[job]
               for job in ("decode", "prefill", "train", "embed"))  # fmt: skip


def test_every_kind_of_model_has_its_jobs() -> None:
    one_of_each = {model_spec.kind: model_spec for model_spec in ALL.values()}
    assert len(one_of_each) == 6
    for kind, model_spec in one_of_each.items():
        for job in jobs_of(model_spec):
            with case(kind, job):
                run = runner(build(model_spec).eval(), Workload.of(job, model_spec, 2, 4, None), "float32")
                timing = run()
                assert timing.seconds >= (timing.first or 0.0) and timing.tokens == run().tokens
        assert (jobs_of(model_spec) == ()) == isinstance(model_spec, spec.VisionEncoder)


def test_rows_of_mixed_lengths_are_all_counted() -> None:
    workload = Workload("batch", [[1, 2], [3, 4, 5, 6]], [3, 5])
    timings = [Timing(2.0, 0.5, (7, 8, 9)), Timing(4.0, 0.5, (7, 8, 9)), Timing(3.0, 1.0, (7, 8, 9))]
    measured = rates(workload, timings)
    assert measured["prefill_ms"] == 500.0 and measured["seconds"] == 3.0 and measured["tokens"] == [7, 8, 9]
    assert measured["decode_tokens_per_s"] is None and measured["tokens_per_s"] == 8 / 3.0
    assert measured["tokens_per_s_range"] == [2.0, 4.0]


def test_sides_take_turns_after_a_round_that_is_not_counted() -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], Timing]:
        return lambda: (order.append(name), Timing(float(len(order))))[1]

    timings = take_turns({name: side(name) for name in "ab"}, 2)
    assert order == list("ababab")
    assert [timing.seconds for timing in timings["a"]] == [3.0, 5.0]


REFUSED = {
    ("decode", "bert-tiny"): "bench decode: does not support a model of kind encoder; use embed",
    ("embed", "t5-tiny"): "bench embed: does not support a model of kind encoder_decoder; use decode or prefill",
    ("train", "vit-tiny"): "bench train: does not support a model of kind vision_encoder; use a text model",
    ("decode", "llama-tiny", "--weights", "int3"): "weights: 'int3' is not a type of packed weights",
    ("decode", "llama-tiny", "--dtype", "float8"): "dtype: unknown dtype 'float8'; use one of float32, bfloat16",
    ("train", "llama-tiny", "--dtype", "float16"): "dtype: ",
    ("decode", "llama-tiny", "--prompt", "100", "--new", "29"):
        "--prompt, --new: 100 prompt tokens and 29 new tokens do not fit into the context of 128; use at least 1",
    ("train", "llama-tiny", "--deterministic"):
        "--deterministic: has no effect on train, which generates no text; remove it",
    ("decode", "lstm-tiny", "--deterministic"): "deterministic: a step of this model contains aten.mkldnn_rnn_layer",
    ("prefill", "llama-tiny", "--new", "4"): "--new: prefill generates no more than the first token; remove it",
    ("decode", "llama-tiny", "--peer-python", "python"):
        "--peer-python: has no effect without --peer; add --peer, or remove --peer-python",
}  # fmt: skip


def test_what_cannot_be_timed_is_refused_in_one_line() -> None:
    for arguments, message in REFUSED.items():
        with case(*arguments):
            said = refusal(*arguments)
            assert said.startswith(message) and "\n" not in said, said


def test_pages_and_reading_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    bandwidth, pages = peaks.read_peak(torch.device("cpu"))
    assert bandwidth.rate > 0 and bandwidth.path and pages in (2**12, 2**14, 2**16, 2**21, 2**25)
    monkeypatch.setattr(environment, "cpu_features", lambda: {"fpu", "avx2", "avx512f", "avx512_bf16", "nonsense"})
    monkeypatch.setattr(environment, "cpu_name", lambda: "A processor")
    about = environment.description(torch.device("cpu"))
    assert about["processor"] == "A processor" and about["flags"] == ["avx2", "avx512f", "avx512_bf16"]


# Peers. A stand-in for an interpreter answers without any library.

STAND_IN = """#!{python} -I
import json, sys
def answer(**fields):
    print(json.dumps(fields), flush=True)
name = sys.argv[-1]
if name == "llama.cpp":
    answer(missing="llama_cpp")
    sys.exit()
answer(version="1.0")
request = json.loads(sys.stdin.readline())
answer(ready=True)
for number, line in enumerate(sys.stdin):
    if number == {dies_at}:
        sys.exit("out of patience")
    answer(seconds=3.0, first=1.0, tokens=[request["threads"], len(request["prompts"])])
"""


def stand_in(folder: Path, dies_at: int = 99) -> str:
    file = folder / "python"
    file.write_text(STAND_IN.format(python=sys.executable, dies_at=dies_at))
    file.chmod(0o755)
    return str(file)


def test_a_peer_stands_beside_ours_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    python = stand_in(tmp_path)
    sizes = ("--batch", "2", "--prompt", "4", "--new", "5", "--threads", "1")
    result = bench("decode", "llama-tiny", *sizes, "--peer", "--peer-python", python)
    (peer,) = result["peers"]
    assert (peer["name"], peer["version"], peer["dtype"]) == ("transformers", "1.0", "float32")
    assert peer["prefill_ms"] == 1000.0 and peer["decode_tokens_per_s"] == 8 / 2.0 and peer["tokens"] == [1, 2]
    assert peer["ratios"]["decode_tokens_per_s"] == pytest.approx(result["decode_tokens_per_s"] / 4.0)
    assert peer["ratios"]["prefill"] == pytest.approx(1000.0 / result["prefill_ms"])
    assert peer["same_tokens"] is False
    missing = f"llama_cpp: is not installed in {python}; install it, or pass --peer-python"
    assert result["peers_left_out"] == {"llama.cpp": missing}


def test_a_peer_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    sizes = ("--prompt", "4", "--new", "5", "--peer", "--peer-python")
    message = "transformers: ended with status 1: out of patience"
    assert refusal("decode", "llama-tiny", *sizes, stand_in(tmp_path, dies_at=2)) == message
    result = bench("decode", "llama-tiny", *sizes, stand_in(tmp_path, dies_at=0))  # at once: it is left out
    assert result["peers_left_out"]["transformers"] == message and "peers" not in result
    with pytest.raises(DataError, match=r"--peer-python: .*no-python is not a program; pass the path"):
        peers.Peer("transformers", str(tmp_path / "no-python"), 1, tmp_path)


def test_a_model_without_a_format_of_a_peer_is_left_to_the_others(tmp_path: Path) -> None:
    lm = timed_job.open_model("lstm-tiny", "decode", None, None, "cpu")
    workload = Workload.of("decode", lm.spec, 1, 4, 5)
    with peers.opened(lm, workload, "float32", None, 1, stand_in(tmp_path)) as (opened, left_out):
        assert opened == [] and left_out["transformers"] and left_out["llama.cpp"]


def test_transformers_writes_the_same_tokens() -> None:
    result = bench("batch", "llama-tiny", "--batch", "3", "--prompt", "9", "--new", "12", "--peer")
    (peer,) = result["peers"]
    assert peer["name"] == "transformers" and peer["same_tokens"], (peer["tokens"], result["tokens"])
    assert len(peer["tokens"]) == len(result["tokens"]) and peer["prefill_ms"] > 0
