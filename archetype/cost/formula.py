"""Counts that know their formula: sums of products of named sizes, with whole coefficients.

Every count of this room is made of these, so a formula and its number come from one path. A size is a symbol with a
value, such as d = 768; what is counted is built from sizes with + and *, and says both `12 d^2 + 13 d` and 7,087,872.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from math import ceil, prod
from typing import NamedTuple

# What each symbol stands for, in the order in which a product is written.
MEANINGS = {
    "L": "layers",
    "b": "rows of the batch",
    "n": "tokens of a row",
    "m": "patches of a row",
    "p": "tokens of a patch",
    "A": "pairs of positions that are computed or allowed",
    "W": "positions that a new token looks at, where that is not all",
    "g": "global tokens, or the tokens that an n-gram model reads",
    "E": "experts",
    "k": "experts of each token",
    "h": "query heads",
    "K": "key and value heads",
    "P": "features of a head",
    "v": "features of a head's value",
    "C": "features of the latent of keys and values",
    "R": "rotated features of a head",
    "r": "low rank of queries or of Mamba's delta",
    "Z": "numbers of state for each channel",
    "c": "taps of the convolution",
    "d_h": "features of one direction",
    "d_ff": "width of the feed-forward part",
    "N": "positions of the table",
    "V": "vocabulary",
    "V_s": "vocabulary of the source",
    "Y": "classes",
    "t": "kinds of token, or buckets of distance",
    "x": "numbers of a picture's patch",
    "w": "width of a hidden layer",
    "d": "width of the model",
    "d_g": "width of the global model",
    "d_l": "width of the local model",
}
_ORDER = {name: place for place, name in enumerate(MEANINGS)}


class Symbol(NamedTuple):
    """A named size."""

    name: str
    value: int


Product = tuple[tuple[Symbol, int], ...]  # each symbol with its power, in the order of MEANINGS


class Formula:
    """A sum of products of symbols. Symbols of one name may have several values: then they are written numbered."""

    def __init__(self, terms: dict[Product, int]) -> None:
        self.terms = {product: times for product, times in terms.items() if times}

    def __add__(self, other: "Formula | int") -> "Formula":
        terms = dict(self.terms)
        for product, times in formula(other).terms.items():
            terms[product] = terms.get(product, 0) + times
        return Formula(terms)

    def __mul__(self, other: "Formula | int") -> "Formula":
        if isinstance(other, int):
            return Formula({product: times * other for product, times in self.terms.items()})
        terms: dict[Product, int] = {}
        for one, times in self.terms.items():
            for another, again in other.terms.items():
                both = _multiplied(one, another)
                terms[both] = terms.get(both, 0) + times * again
        return Formula(terms)

    __radd__, __rmul__ = __add__, __mul__

    def over(self, divisor: "Formula") -> "Formula":
        """The quotient by one symbol."""
        (((symbol, _),),) = divisor.terms
        return self * Formula({((symbol, -1),): 1})

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @cached_property
    def value(self) -> int:
        """The number; where an average is no whole one, the next."""
        total: Fraction | int = 0
        for product, times in self.terms.items():
            over = prod(symbol.value**-power for symbol, power in product if power < 0)
            count = times * prod(symbol.value**power for symbol, power in product if power > 0)
            total += count if over == 1 else Fraction(count, over)
        return ceil(total)

    @property
    def symbols(self) -> set[Symbol]:
        """Every symbol in it."""
        return {symbol for product in self.terms for symbol, _ in product}

    def text(self, names: Mapping[Symbol, str]) -> str:
        """What stands in no layers, then what stands in each group of L layers: `V d + L (12 d^2 + 13 d)`."""
        by_layers: dict[Product, dict[Product, int]] = {}
        for product, times in self.terms.items():
            layers = tuple(factor for factor in product if factor[0].name == "L")
            inner = tuple(factor for factor in product if factor[0].name != "L")
            by_layers.setdefault(layers, {})[inner] = times
        parts = []
        for layers in sorted(by_layers, key=lambda factors: [_place(symbol) for symbol, _ in factors]):
            inside = by_layers[layers]
            if layers and len(inside) > 1:
                parts.append(f"{_written(1, layers, names)} ({_sum(inside, names)})")
            else:
                parts.append(_sum({(*layers, *product): times for product, times in inside.items()}, names))
        return _joined(parts)

    def __str__(self) -> str:
        return self.text(names([self]))

    def __repr__(self) -> str:
        return f"Formula({self})"


def names(formulas: Iterable[Formula]) -> dict[Symbol, str]:
    """How to write each symbol of some formulas: by its name, with a number where the name has several values."""
    found = sorted({symbol for one in formulas for symbol in one.symbols}, key=_place)
    values: dict[str, list[Symbol]] = {}
    for symbol in found:
        values.setdefault(symbol.name, []).append(symbol)
    return {
        symbol: name if len(alike) == 1 else f"{name}{number}"
        for name, alike in values.items()
        for number, symbol in enumerate(alike, 1)
    }


def formula(number: "Formula | int") -> Formula:
    """A number as a formula without symbols."""
    return number if isinstance(number, Formula) else Formula({(): number})


def symbol(name: str, value: int) -> Formula:
    """A named size; the name is one of `MEANINGS`."""
    return Formula({((Symbol(name, value), 1),): 1})


def multiple(name: str, value: int, unit: Formula) -> Formula:
    """A size as a multiple of another where it is one, such as 4 d; else as a symbol of its own."""
    return unit * (value // unit.value) if value % unit.value == 0 else symbol(name, value)


def total(counts: Iterable[Formula]) -> Formula:
    """The sum."""
    terms: dict[Product, int] = {}
    for count in counts:
        for product, times in count.terms.items():
            terms[product] = terms.get(product, 0) + times
    return Formula(terms)


def _place(symbol: Symbol) -> tuple[int, int]:
    return _ORDER[symbol.name], symbol.value


def _multiplied(one: Product, another: Product) -> Product:
    if not one or not another:
        return one or another
    powers = dict(one)
    for symbol, power in another:
        powers[symbol] = powers.get(symbol, 0) + power
    return tuple(sorted(((s, power) for s, power in powers.items() if power), key=lambda factor: _place(factor[0])))


def _sum(terms: dict[Product, int], names: Mapping[Symbol, str]) -> str:
    """Highest degree first, and among equal degrees the model's width first."""

    def rank(product: Product) -> tuple[int, list[tuple[int, int, int]]]:
        factors = [(-_ORDER[symbol.name], symbol.value, -power) for symbol, power in product[::-1]]
        return -sum(power for _, power in product), factors

    return _joined([_written(terms[product], product, names) for product in sorted(terms, key=rank)])


def _joined(parts: list[str]) -> str:
    return " + ".join(parts).replace("+ -", "- ") or "0"


def _written(times: int, product: Product, names: Mapping[Symbol, str]) -> str:
    above = [names[s] + (f"^{power}" if power > 1 else "") for s, power in product if power > 0]
    below = [names[s] for s, power in product if power < 0]
    number = [] if times == 1 and above else [str(times)]
    return " ".join(number + above) + "".join(f" / {name}" for name in below)
