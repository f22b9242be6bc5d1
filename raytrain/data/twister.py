"""The random numbers of torch's CPU generator, for many seeds at once.

`torch.manual_seed(s)`, then `torch.rand`, `torch.randint` and torch's distributions, give for each seed what `Streams`
gives for all of them: the same bits without a call of torch for each sample. The generator is MT19937 (Matsumoto and
Nishimura, 1998).
"""

from __future__ import annotations

import numpy as np

_SIZE, _MIDDLE = 624, 397
_FIRST = 64
"""Words of each seed that are computed at first; a seed seldom needs more."""
_THIRD = float(np.float32(1) / np.float32(3))
_SQUEEZE = float(np.float32(0.0331))


def words(seeds: np.ndarray, count: int) -> np.ndarray:
    """Return the first words of the generator.

    Args:
        seeds: uint64 [n]; their lower 32 bits count.

    Returns:
        uint32 [count, n].
    """
    state = np.empty((_SIZE + count, len(seeds)), np.uint32)
    state[0] = seeds & np.uint64(0xFFFFFFFF)
    for row in range(1, min(_SIZE, _MIDDLE + count)):
        last, new = state[row - 1], state[row]
        np.right_shift(last, 30, out=new)
        np.bitwise_xor(new, last, out=new)
        np.multiply(new, np.uint32(1812433253), out=new)
        np.add(new, np.uint32(row), out=new)
    for start in range(0, count, _SIZE - _MIDDLE):
        stop = min(start + _SIZE - _MIDDLE, count)
        mixed = (state[start:stop] & np.uint32(1 << 31)) | (state[start + 1 : stop + 1] & np.uint32((1 << 31) - 1))
        state[_SIZE + start : _SIZE + stop] = (
            state[_MIDDLE + start : _MIDDLE + stop] ^ (mixed >> 1) ^ (mixed & 1) * np.uint32(0x9908B0DF)
        )
    found = state[_SIZE:]
    found ^= found >> 11
    found ^= (found << 7) & np.uint32(0x9D2C5680)
    found ^= (found << 15) & np.uint32(0xEFC60000)
    found ^= found >> 18
    return found


class Streams:
    """A generator for each seed, each at a place of its own.

    Args:
        seeds: uint64 [n].

    All methods draw from some generators (`rows`, int64 [k]; None is all) and return an array [k].
    """

    def __init__(self, seeds: np.ndarray):
        self.seeds, self.all, self.at = seeds, np.arange(len(seeds)), np.zeros(len(seeds), np.int64)
        self.words = words(seeds, _FIRST)
        self.spare = np.full(len(seeds), np.nan)  # torch makes normal numbers in pairs

    def integers(self, limit: int | np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return what `torch.randint(limit, ())` does, int64 below 2**28."""
        return self._next(rows).astype(np.int64) % limit

    def floats(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return what `torch.rand(())` does, as float64."""
        return (self._next(rows) & np.uint32((1 << 24) - 1)) * 2.0**-24

    def doubles(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return what `torch.rand((), dtype=torch.float64)` does."""
        high, low = self._next(rows).astype(np.uint64), self._next(rows)
        return ((high << np.uint64(32) | low) & np.uint64((1 << 53) - 1)) * 2.0**-53

    def firsts(self) -> np.ndarray:
        """Return whether `torch.multinomial(torch.tensor([0.5, 0.5]), 1)` is 0."""
        first, second = (np.float32(0.5) / -np.log1p(-self.doubles()).astype(np.float32) for _ in range(2))
        return first >= second

    def betas(self, alpha: float, rows: np.ndarray | None = None) -> np.ndarray:
        """Return what `torch.distributions.Beta(alpha, alpha).sample(())` does, float32, for torch.tensor([alpha])."""
        rows = self.all if rows is None else rows
        first, second = (np.maximum(self._gammas(float(np.float32(alpha)), rows), 2.0**-1022) for _ in range(2))
        share = (first / (first + second)).astype(np.float32)
        return np.clip(share, np.finfo(np.float32).tiny, np.nextafter(np.float32(1), np.float32(0)))

    def _gammas(self, alpha: float, rows: np.ndarray) -> np.ndarray:
        """Return gamma variates as torch draws them (Marsaglia and Tsang, 2000)."""
        scale = np.ones(len(rows))
        if alpha < 1:
            scale = (1 - self.doubles(rows)) ** (1 / alpha)
            alpha += 1
        d = alpha - _THIRD
        c, found, open_ = 1 / np.sqrt(9 * d), np.empty(len(rows)), np.arange(len(rows))
        while len(open_):
            x, low = np.empty(len(open_)), np.arange(len(open_))
            while len(low):
                x[low] = self._normals(rows[open_[low]])
                low = low[1 + c * x[low] <= 0]
            y, u = 1 + c * x, 1 - self.doubles(rows[open_])
            v, square = y * y * y, x * x
            taken = (u < 1 - _SQUEEZE * square * square) | (np.log(u) < 0.5 * square + d * (1 - v + np.log(v)))
            found[open_[taken]] = scale[open_[taken]] * d * v[taken]
            open_ = open_[~taken]
        return found

    def _normals(self, rows: np.ndarray) -> np.ndarray:
        found = self.spare[rows]
        self.spare[rows] = np.nan
        new = np.flatnonzero(np.isnan(found))
        if len(new):
            angle, length = 2 * np.pi * self.doubles(rows[new]), np.sqrt(-2 * np.log1p(-self.doubles(rows[new])))
            found[new], self.spare[rows[new]] = length * np.cos(angle), length * np.sin(angle)
        return found

    def _next(self, rows: np.ndarray | None) -> np.ndarray:
        rows = self.all if rows is None else rows
        if len(rows) and self.at[rows].max() >= len(self.words):
            self.words = words(self.seeds, 2 * len(self.words))
        found = self.words[self.at[rows], rows]
        self.at[rows] += 1
        return found
