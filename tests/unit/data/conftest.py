"""Fixtures that tests of data share: a small recipe on a small text."""

from tests.unit.training.conftest import recipe, text_file

__all__ = ["recipe", "text_file"]
