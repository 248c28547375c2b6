"""The front door: what `import archetype` offers to people, editors, type checkers and notebooks."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import archetype
from archetype.api.kinds import KINDS
from archetype.errors import ArchetypeError
from archetype.spec import fingerprint
from archetype.tokenizers import train_tokenizer

CLASSES = {"ArchetypeError", "Engine", "LanguageModel", *(kind.__name__ for kind in KINDS)}
FUNCTIONS = sorted(set(archetype.__all__) - CLASSES - {"__version__"})


def test_every_name_is_listed_and_importable() -> None:
    assert set(archetype.__all__) <= set(dir(archetype))
    assert {"build", "cost_report", "export", "load", "load_spec"} <= set(FUNCTIONS)
    assert all(inspect.isclass(getattr(archetype, name)) for name in CLASSES)
    assert archetype.ArchetypeError is ArchetypeError
    with pytest.raises(AttributeError, match="module 'archetype' has no attribute 'laod'"):
        getattr(archetype, "laod")  # noqa: B009


ALIASES = {"from_pretrained": "load"}  # names that users bring along


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_typed_and_documented(name: str) -> None:
    function = getattr(archetype, name)
    assert inspect.isfunction(function) and function.__name__ == ALIASES.get(name, name)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    text = inspect.getdoc(function) or ""
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert f"    {parameter.name}: " in text or f"    *{parameter.name}: " in text
    assert "Raises:" in text or not signature.parameters


def test_packages_stay_packages() -> None:
    from archetype import cost, spec

    assert isinstance(archetype.spec, ModuleType) and isinstance(archetype.cost, ModuleType)
    assert not callable(spec) and not callable(cost)
    assert type(archetype) is ModuleType


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, archetype; print(*sorted({'torch', 'numpy', 'pydantic', 'typer', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_specification_costs_builds_loads_and_exports(tmp_path: Path) -> None:
    spec = archetype.load_spec("llama-tiny")
    assert archetype.load_spec(spec.dump()) == spec
    model = archetype.build(spec, seed=3)
    report = archetype.cost_report(spec, batch=2, length=16)
    assert report.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    lm = archetype.LanguageModel(spec, model)
    archetype.export(lm, tmp_path / "hf")
    loaded = archetype.load(tmp_path / "hf", dtype="bfloat16")
    assert fingerprint(loaded.spec) == fingerprint(spec) and "bfloat16" in repr(loaded)
    with pytest.raises(ArchetypeError, match="did you mean llama-tiny"):
        archetype.load_spec("llama-tny")


def test_models_are_listed_compared_saved_and_evaluated(tmp_path: Path) -> None:
    assert {"gpt2", "llama-tiny"} <= set(archetype.presets())
    assert archetype.diff("llama-tiny", "llama-tiny") == []
    assert ("vocab_size", 256, 300) in archetype.diff(
        "llama-tiny", archetype.load_spec("llama-tiny").replace(vocab_size=300)
    )
    spec = archetype.load_spec("llama-tiny")
    lm = archetype.LanguageModel(spec, archetype.build(spec, dtype="float64"), train_tokenizer("bytes", [], None))
    lm.save(tmp_path / "run")
    assert archetype.tokenizer(tmp_path / "run" / "tokenizer").encode("ab") == [97, 98]
    score = archetype.evaluate(lm, "a text to be read")
    assert archetype.evaluate(tmp_path / "run", "a text to be read") == score
    assert lm.score("a text to be read", length=8) != score
    with pytest.raises(ArchetypeError, match="already exists"):
        lm.save(tmp_path / "run")


def test_a_language_model_is_summarized() -> None:
    spec = archetype.load_spec("llama-tiny").replace(name="<b>&")
    lm = archetype.LanguageModel(spec, archetype.build(spec), train_tokenizer("bytes", "a", None))
    assert repr(lm) == ("<DecoderLM <b>&, decoder, 123,712 parameters, float32, cpu, bytes tokenizer of 256 ids>")
    html = lm._repr_html_()
    assert html.startswith("<table>") and "&lt;b&gt;&amp;" in html and "<b>" not in html
    assert "123,712 parameters" in html


def test_a_specification_is_its_file_in_a_notebook() -> None:
    spec = archetype.load_spec("llama-tiny").replace(name="<script>")
    html = spec._repr_html_()
    assert html.startswith("<pre>") and "&lt;script&gt;" in html and "<script>" not in html
    assert "num_kv_heads: 2" in html and "kind: attention" in spec.layers[0].mixer._repr_html_()  # type: ignore[union-attr]
