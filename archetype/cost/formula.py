"""Counts as formulas: sums of products of named sizes, with integer coefficients.

A size is a symbol with a value, such as D = 768. Expressions of sizes with + and * yield both the formula
`12 D^2 + 13 D` and its value 7,087,872, so that the two always agree.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, prod
from typing import TYPE_CHECKING, NamedTuple

from archetype.errors import SpecError
from archetype.legend import LEGEND

if TYPE_CHECKING:
    from archetype.spec.base import Spec

_ORDER = {name: index for index, name in enumerate(LEGEND)}


class Symbol(NamedTuple):
    """A named size. Symbols with the same letter and value but different meanings are not equal."""

    name: str
    value: int
    meaning: str


Product = tuple[tuple[Symbol, int], ...]  # each symbol with its power, in the order of the legend


class Formula:
    """A sum of products of symbols. Its text numbers symbols that share a name."""

    def __init__(self, terms: dict[Product, int]) -> None:
        self.terms = {product: coefficient for product, coefficient in terms.items() if coefficient}

    def __add__(self, other: "Formula | int") -> "Formula":
        return total([self, other if isinstance(other, Formula) else constant(other)])

    def __mul__(self, other: "Formula | int") -> "Formula":
        if isinstance(other, int):
            return Formula({product: coefficient * other for product, coefficient in self.terms.items()})
        terms: dict[Product, int] = {}
        for left, left_coefficient in self.terms.items():
            for right, right_coefficient in other.terms.items():
                product = _multiply(left, right)
                terms[product] = terms.get(product, 0) + left_coefficient * right_coefficient
        return Formula(terms)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, divisor: "Formula") -> "Formula":
        (((symbol, _),),) = divisor.terms  # a single symbol
        return self * Formula({((symbol, -1),): 1})

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @cached_property
    def value(self) -> int:
        total: Fraction | int = 0
        for product, coefficient in self.terms.items():
            divisor = prod(symbol.value**-power for symbol, power in product if power < 0)
            dividend = coefficient * prod(symbol.value**power for symbol, power in product if power > 0)
            total += dividend if divisor == 1 else Fraction(dividend, divisor)
        return ceil(total)  # division by a symbol may leave a fraction

    @property
    def symbols(self) -> set[Symbol]:
        return {symbol for product in self.terms for symbol, _ in product}

    def text(self, names: Mapping[Symbol, str]) -> str:
        """Return the formula with names from `symbol_names`, terms without layers first: `V D + L (12 D^2 + 13 D)`."""
        by_layers: dict[Product, dict[Product, int]] = {}
        for product, coefficient in self.terms.items():
            rest = int(bool(product) and product[0][0].name == "L")  # L comes first
            by_layers.setdefault(product[:rest], {})[product[rest:]] = coefficient
        parts = []
        for layers in sorted(by_layers, key=lambda factors: [_order(symbol) for symbol, _ in factors]):
            terms = by_layers[layers]
            if layers and len(terms) > 1:
                parts.append(f"{_write_product(1, layers, names)} ({_write_sum(terms, names)})")
            else:
                parts.append(
                    _write_sum({layers + product: coefficient for product, coefficient in terms.items()}, names)
                )
        return _join(parts)

    def __str__(self) -> str:
        return self.text(symbol_names([self]))

    __repr__ = __str__


Counts = dict[str, Formula]  # {module: count}


def symbol_names(formulas: Iterable[Formula], further: Iterable[Symbol] = ()) -> dict[Symbol, str]:
    """Return the name of each symbol of `formulas` and `further`, numbered if several symbols share a name."""
    by_name: dict[str, list[Symbol]] = {}
    for symbol in sorted({symbol for formula in formulas for symbol in formula.symbols}.union(further), key=_order):
        by_name.setdefault(symbol.name, []).append(symbol)
    return {
        symbol: name if len(symbols) == 1 else f"{name}{index}"
        for name, symbols in by_name.items()
        for index, symbol in enumerate(symbols, 1)
    }


def constant(number: int) -> Formula:
    return Formula({(): number})  # the empty product is 1


ZERO = constant(0)


def symbol(name: str, value: int, part: "Spec | None" = None) -> Formula:
    """Return a named size as a formula.

    Args:
        name: a letter of the legend, or of the part's `letters`.
        part: the part that has this size; its `letters` take precedence over the legend.

    Raises:
        SpecError: neither the part nor the legend has this letter.
    """
    meaning = (part.letters if part else {}).get(name) or LEGEND.get(name)
    if meaning is None:
        where = f"{type(part).__name__}.letters" if part else "symbol"
        raise SpecError(where, f"the letter {name} has no meaning", f"describe it: letters = {{{name!r}: ...}}")
    return Formula({((Symbol(name, value, meaning), 1),): 1})


def multiple(name: str, value: int, unit: Formula) -> Formula:
    """Return a size as a multiple of another size, such as 4 D, if possible; otherwise as a separate symbol."""
    return unit * (value // unit.value) if value % unit.value == 0 else symbol(name, value)


def total(formulas: Iterable[Formula]) -> Formula:
    terms: dict[Product, int] = {}
    for formula in formulas:
        for product, coefficient in formula.terms.items():
            terms[product] = terms.get(product, 0) + coefficient
    return Formula(terms)


def prefixed(prefix: str, counts: Counts) -> Counts:
    return {prefix + name: count for name, count in counts.items()}


def _order(symbol: Symbol) -> tuple[int, str, int, str]:
    return _rank(symbol), *symbol


def _rank(symbol: Symbol) -> int:
    # letters that only a part defines come last
    return _ORDER.get(symbol.name, len(_ORDER))


@lru_cache(maxsize=2**14)  # most of thousands of layers have equal sizes
def _multiply(left: Product, right: Product) -> Product:
    powers = dict(left)
    for size, power in right:
        powers[size] = powers.get(size, 0) + power
    return tuple(sorted(((s, power) for s, power in powers.items() if power), key=lambda factor: _order(factor[0])))


def _write_sum(terms: dict[Product, int], names: Mapping[Symbol, str]) -> str:
    # by descending degree; among equal degrees, by the order of the legend
    def rank(product: Product) -> tuple[int, list[tuple[int, int, int]]]:
        factors = [(-_rank(symbol), symbol.value, -power) for symbol, power in product[::-1]]
        return -sum(power for _, power in product), factors

    return _join([_write_product(terms[product], product, names) for product in sorted(terms, key=rank)])


def _write_product(coefficient: int, product: Product, names: Mapping[Symbol, str]) -> str:
    above = [names[s] + (f"^{power}" if power > 1 else "") for s, power in product if power > 0]
    below = [names[s] for s, power in product if power < 0]
    factors = [] if coefficient == 1 and above else [str(coefficient)]
    return " ".join(factors + above) + "".join(f" / {name}" for name in below)


def _join(parts: list[str]) -> str:
    return " + ".join(parts).replace("+ -", "- ") or "0"
