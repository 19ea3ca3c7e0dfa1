"""Random numbers as a pure function of their purpose: any row, in any order, on any device, the same."""

import math
import zlib
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15  # the golden ratio in 64 bits: neighbouring counters land far apart


def _signed(value: int) -> int:
    """The same 64 bits as a number that fits a torch int64."""
    return value - 2**64 if value >= 2**63 else value


def _scramble(bits: Int[Tensor, "*S"]) -> Int[Tensor, "*S"]:
    """The finaliser of SplitMix64 (Steele et al., OOPSLA 2014): each input bit changes half of the output."""
    # torch shifts a negative number arithmetically: the mask makes it the logical shift of unsigned 64 bits.
    bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * _signed(0x94D049BB133111EB)
    return bits ^ ((bits >> 31) & (2**33 - 1))


@cache
def _key(*parts: int | str) -> int:
    """One number for a list of numbers and words."""
    key = torch.zeros((), dtype=torch.int64)
    for part in parts:
        number = zlib.crc32(part.encode()) + 2**40 if isinstance(part, str) else part
        key = _scramble(key + _signed((number * _STEP) % 2**64))
    return int(key)


class Draws:
    """A family of random numbers; `Draws(0, "train").uniform("x", rows, 6)` gives six for every row.

    Only whole-number arithmetic decides, so the numbers are the same on every platform and device.
    """

    def __init__(self, *parts: int | str):
        self.parts = parts

    def uniform(self, purpose: str, rows: Int[Tensor, " B"], *shape: int) -> Float[Tensor, "B *S"]:
        """In [0, 1), in steps of 2^-24."""
        return (self._bits(purpose, rows, shape) & (2**24 - 1)).float() / 2**24

    def integers(self, purpose: str, rows: Int[Tensor, " B"], *shape: int, below: int) -> Int[Tensor, "B *S"]:
        """In 0 .. below - 1."""
        return (self._bits(purpose, rows, shape) & (2**32 - 1)) % below

    def noise(self, purpose: str, rows: Int[Tensor, " B"], *shape: int) -> Float[Tensor, "B *S"]:
        """Mean 0, variance 1, uniform in 2^16 steps: cheap, for noise that is summed up afterwards."""
        size = math.prod(shape)
        quarters = self._bits(purpose, rows, (-(-size // 4),)).view(torch.int16)  # four from 64 bits
        return ((quarters[:, :size].float() + 0.5) * (12**0.5 / 2**16)).reshape(len(rows), *shape)

    def normal(self, purpose: str, rows: Int[Tensor, " B"], *shape: int) -> Float[Tensor, "B *S"]:
        """Mean 0, variance 1, nearly Gaussian: four uniform numbers summed, with no logarithm to round."""
        return self.noise(purpose, rows, *shape, 4).sum(dim=-1) / 2

    def _bits(self, purpose: str, rows: Int[Tensor, " B"], shape: tuple[int, ...]) -> Int[Tensor, "B *S"]:
        size = math.prod(shape)
        places = torch.arange(size, device=rows.device)
        bits = _scramble((rows[:, None].long() * size + places) * _signed(_STEP) + _key(*self.parts, purpose))
        return bits.reshape(len(rows), *shape)
