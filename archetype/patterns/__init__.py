"""Patterns of sparse attention, without torch: rules, tiles, pair counts and cache lengths."""

from archetype.patterns import block, window
from archetype.patterns.rule import MaskContext, PatternRule, Piece, Shape, Tile, pattern_rule, rule_for

__all__ = ["MaskContext", "PatternRule", "Piece", "Shape", "Tile", "block", "pattern_rule", "rule_for", "window"]
