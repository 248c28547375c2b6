"""Every skip in the tests has a reason and stands in this list."""

import ast
from pathlib import Path

from tests.unit.test_imports import dotted

TESTS = Path(__file__).parent.parent

CALLS = {f"pytest.{name}" for name in ("skip", "importorskip", "xfail", "mark.skip", "mark.skipif", "mark.xfail")}
SKIPS = {
    ("claims/test_reading.py", "the documents are not here"),
    ("clients/test_clients.py", "llguidance"),
    ("clients/test_clients.py", "needs Node and npm"),
    ("helpers/kernels.py", "no C++ compiler"),
    ("helpers/kernels.py", "this processor cannot run "),
    ("unit/native/test_compiler.py", "no g++ for such a processor"),
    ("unit/native/test_library.py", "no C++ compiler"),
    ("unit/native/test_library.py", "needs /proc/self/maps, which says what is loaded"),
    ("unit/native/test_sanitized.py", "needs g++ with libasan and libubsan"),
    ("unit/native/test_fused.py", "needs AVX512_BF16 without matrix tiles"),
    ("unit/native/test_fused.py", "needs matrix tiles"),
    ("unit/machine/test_allocation.py", "needs glibc, the C library that can be told so"),
    ("conftest.py", "needs ../shared/data (real weights and texts, kept beside the checkout)"),
    ("parity/conftest.py", "needs llama-cpp-python (make llama-cpp, which compiles for minutes)"),
    ("parity/test_fla.py", "needs flash-linear-attention (make fla)"),
    ("parity/test_fla_models.py", "needs flash-linear-attention (make fla)"),
    ("helpers/packages.py", "needs a package index, for pip install: "),
    (
        "unit/cost/test_activations.py",
        "needs bfloat16 instructions: what oneDNN's LSTM saves is counted",
    ),
    ("page/conftest.py", "needs a built page (make page), playwright, and a chromium"),
    ("page/test_gallery.py", "needs playwright, and a chromium"),
    ("unit/generate/test_grammar.py", "llguidance"),
    ("integration/test_serve.py", "llguidance"),
    ("integration/test_serve_responses.py", "llguidance"),
    ("integration/test_serve.py", "tenacity"),
    ("unit/training/test_optimizers.py", "torchao"),
    ("integration/test_text_files.py", "needs pyarrow"),
    ("parity/test_tokenizer_classes.py", "the table is of transformers "),
    ("parity/test_inspection.py", "transformer_lens"),
    (
        "unit/models/test_module.py",
        "torch.compile does not trace PyTorch's recurrent networks, and n-gram models have no gradients",
    ),
    ("unit/machine/test_huge_pages.py", "needs /proc/self/smaps, which says what is in memory"),
    ("unit/data/test_tokenization.py", "needs /proc/self/smaps, which says what is in memory"),
    ("unit/confined/test_process.py", "this system copies no processes"),
    ("unit/training/test_parallel.py", "needs /proc, which says what the children of a process are"),
    ("unit/studies/test_sweep.py", "ray"),
    ("unit/studies/test_sweep.py", "submitit"),
    ("unit/convert/test_apply.py", "needs /proc/self/maps, which says where a file is mapped"),
    ("unit/test_site.py", "each version of matplotlib writes another SVG, and the picture is that of constraints.txt"),
}


def test_all_skips_are_listed() -> None:
    skips = set()
    for file in TESTS.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "skip" in text or "xfail" in text else ():
            if isinstance(node, ast.Call) and dotted(node.func) in CALLS:
                words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                reason = next((word for word in words if isinstance(word, str)), "(no reason)")
                skips.add((str(file.relative_to(TESTS)), reason))
    assert skips == SKIPS
