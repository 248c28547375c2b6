"""Factorization of the keys and values of attention heads into latents and rotated keys."""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from archetype.nn.heads import Heads
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.parts.position.frequencies import CLOSE, Rotation

ROUNDING = 1e-12  # share of all squares
EMPTY = 1e-26  # the same, of components that are only the rounding of others


@dataclass
class Factors:
    """Projections of latent attention. The last of D + 1 columns is the bias.

    Attributes:
        q: queries, with the rotated features last.
        kv_down: latents, then the rotated key.
        kv_up: keys and values of each head, from the latents.
        lost: differences from the factorized attention.
    """

    q: Float[Tensor, "H PR columns"]
    kv_down: Float[Tensor, "CR columns"]
    kv_up: Float[Tensor, "H PQ C"]
    lost: list[str] = field(default_factory=list)


class Factorization:
    """Low-rank factorization of attention heads into latent attention's projections.

    Each pair of rotated features is a complex number for every key head, and a unitary matrix over the heads commutes
    with the rotation. So the principal components of these numbers rotate as before, as many as the part has pairs
    that rotate by that angle, and the other components rotate no longer (Meng 2025, TransMLA: there the matrix is
    real; Ji 2025, MHA2MLA, keeps some pairs of every head instead). These, the features that never rotated, and the
    values are reduced together to their principal components, with keys scaled to the squares of the values (Meng
    2025). With as many pairs as all key heads have together, and as many latents as there are other rows, nothing is
    lost.

    Args:
        heads: queries, keys and values, with as many query heads as the part.
        old: rotation of the heads' features.
        new: rotation of the part's rotated features.
        drawn: initial projections of the part, which remain where the heads have nothing.
        root: root of the mean of x x^T over the part's inputs x, by which components are ranked; without it all
            features of the input count the same.
    """

    def __init__(
        self, heads: Heads, old: Rotation, part: LatentAttention, new: Rotation, drawn: Factors, root: Tensor | None
    ) -> None:
        self.old, self.new, self.root, self.result = old, new, root, drawn
        self.q, self.k, self.v = (x.double().clone() for x in (heads.q, heads.k, heads.v))
        self.plain, self.rank, self.values = part.qk_nope_head_dim, part.kv_lora_rank, part.v_head_dim
        self.groups = self._shared_by_queries(len(self.k))  # (H,), key head of each query head
        rotated = [feature for first, second, _ in old.pairs for feature in (first, second)]
        self.q[:, rotated] *= old.factor**2

    def run(self, balanced: bool) -> Factors:
        total = self._squares(self.k)
        self._rotate(total)
        self._compress(self._project(total), balanced)
        return self.result

    def _shared_by_queries(self, heads: int) -> Int[Tensor, "H"]:
        return torch.arange(len(self.q)) * heads // len(self.q)

    def _rotate(self, total: float) -> None:
        # moves components of the keys to pairs of the shared key that rotate by nearly the same angle
        heads, start = len(self.k), self.plain
        self.result.q[:, start:] = 0.0
        angles = {(first, second): angle for first, second, angle in self.old.pairs if angle}
        left = {pair: self._components(*pair) for pair in angles}
        for first, second, angle in self.new.pairs:
            usable = [pair for pair in left if left[pair] and angle and abs(angle - angles[pair]) < angles[pair]]
            if not usable:
                continue
            pair = min(usable, key=lambda pair: abs(math.log(angle / angles[pair])))
            weights = left[pair].pop(0)  # (K,), of one component
            keys = torch.complex(self.k[:, pair[0]], self.k[:, pair[1]])  # (K, D + 1)
            shared = weights.conj() @ keys
            if self._squares(torch.stack((shared.real, shared.imag))) <= ROUNDING * total:
                continue  # nothing is left of these keys
            queries = torch.complex(self.q[:, pair[0]], self.q[:, pair[1]]) * weights[self.groups, None].conj()
            keys = keys - weights[:, None] * shared
            self.k[:, pair[0]], self.k[:, pair[1]] = keys.real, keys.imag
            for row, of_key, of_queries in ((first, shared.real, queries.real), (second, shared.imag, queries.imag)):
                self.result.kv_down[self.rank + row] = of_key
                self.result.q[:, start + row] = of_queries / self.new.factor**2
            if not math.isclose(angle, angles[pair], rel_tol=CLOSE):
                self._lose("keys are rotated by different angles")
        unrotated = [pair for pair in angles if self._squares(self.k[:, pair]) > ROUNDING * total]
        if unrotated:
            held = sum(1 for *_, angle in self.new.pairs if angle)
            cause = f"the keys of {heads} heads have {heads * len(angles)} rotated pairs, but the shared key has {held}"
            self._lose(cause)

    def _components(self, first: int, second: int) -> list[Complex[Tensor, "K"]]:
        keys = torch.complex(measured(self.k[:, first], self.root), measured(self.k[:, second], self.root))
        _, vectors = torch.linalg.eigh(keys @ keys.mH)
        return list(vectors.flip(1).unbind(1))  # the largest first

    def _project(self, total: float) -> Float[Tensor, "K N columns"]:
        # the keys that do not rotate, in as many features as the part has
        features = [
            feature for feature in range(self.k.shape[1]) if self._squares(self.k[:, feature]) > ROUNDING * total
        ]
        keys, queries = self.k[:, features], self.q[:, features]
        if len(features) > self.plain:
            self._lose(f"{self.plain} of {len(features)} features of keys that do not rotate")
            sizes = measured(keys, self.root)
            _, vectors = torch.linalg.eigh(sizes @ sizes.mT)  # (K, N, N)
            weights = vectors.flip(2)[:, :, : self.plain].mT
            keys, queries = weights @ keys, weights[self.groups] @ queries
        self.result.q[:, : keys.shape[1]] = queries
        return keys

    def _compress(self, keys: Float[Tensor, "K N columns"], balanced: bool) -> None:
        squares = self._squares(keys), self._squares(self.v)
        scale = math.sqrt(squares[1] / squares[0]) if balanced and all(squares) else 1.0
        sizes = [len(part.flatten(0, 1)) for part in (keys, self.v)]
        rows = torch.cat((scale * keys.flatten(0, 1), self.v.flatten(0, 1)))
        up, down, share = principal(rows, self.rank, self.root)
        if share > ROUNDING:
            self._lose(f"{self.rank} latents hold {100 * (1 - share):.3g} % of the squares of keys and values")
        count = up.shape[1]
        self.result.kv_down[:count] = down
        of_keys, of_values = up.split(sizes)
        of_keys = (of_keys / scale).reshape(*keys.shape[:2], count)[self.groups]  # (H, N, count)
        of_values = of_values.reshape(*self.v.shape[:2], count)[self._shared_by_queries(len(self.v))]
        width = min(self.v.shape[1], self.values)
        if width < self.v.shape[1]:
            self._lose(f"{width} of {self.v.shape[1]} features of values")
        self.result.kv_up.zero_()
        self.result.kv_up[:, : keys.shape[1], :count] = of_keys
        self.result.kv_up[:, self.plain : self.plain + width, :count] = of_values[:, :width]

    def _squares(self, rows: Float[Tensor, "*dims columns"]) -> float:
        return float(measured(rows, self.root).square().sum())

    def _lose(self, cause: str) -> None:
        if cause not in self.result.lost:
            self.result.lost.append(cause)


def measured(rows: Float[Tensor, "*dims columns"], root: Tensor | None) -> Float[Tensor, "*dims columns"]:
    """Return rows whose Gram matrix equals that of their products with the inputs."""
    return rows if root is None else rows @ root


def principal(
    rows: Float[Tensor, "F columns"], rank: int, root: Tensor | None
) -> tuple[Float[Tensor, "F r"], Float[Tensor, "r columns"], float]:
    """Return two factors of the rows that lose the least of their products with the inputs, and the lost share."""
    left, sizes, _ = torch.linalg.svd(measured(rows, root), full_matrices=False)
    squares = sizes.square()
    total = float(squares.sum())
    count = min(rank, int((squares > EMPTY * total).sum()))
    return left[:, :count], left[:, :count].T @ rows, float(squares[count:].sum()) / (total or 1.0)
