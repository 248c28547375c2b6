"""Examples of properties are the same in every run, whatever was tested before."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import examples


def drawn() -> list[tuple[list[int], str]]:
    seen = []

    @examples(200, derandomize=True, database=None)
    @given(st.lists(st.integers(0, 100_000), max_size=4), st.text(max_size=9))
    def collect(numbers: list[int], text: str) -> None:
        seen.append((numbers, text))

    collect()
    return seen


def test_modules_that_are_loaded_change_no_example(tmp_path: Path) -> None:
    before = drawn()
    file = tmp_path / "constants.py"
    file.write_text(f"NUMBERS, NAMES = {[*range(200, 700)]}, {[f'name {n}' for n in range(99)]}\n")
    located = spec_from_file_location("constants_of_an_example", file)
    assert located is not None and located.loader is not None
    sys.modules[located.name] = module = module_from_spec(located)
    try:
        located.loader.exec_module(module)
        assert drawn() == before and len(before) == 200
    finally:
        del sys.modules[located.name]
