"""Rotary positions (Su et al. 2021): what a config says of them, and their cos and sin tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arch.json_file import JsonFile
from drivers.protocol import Driver
from drivers.types import Rope, T

KNOWN_KEYS = ("rope_theta", "rope_type", "type", "factor", "partial_rotary_factor")


@dataclass(frozen=True)
class RopeSettings:
    """theta: the base. rotary_dim: R. ntk_factor: that of dynamic NTK scaling, None without it.

    trained_tokens: the length beyond which dynamic NTK raises a row's base.
    """

    theta: float
    rotary_dim: int
    ntk_factor: float | None = None
    trained_tokens: int = 0

    def scales(self, tokens: int) -> bool:
        """Whether a row of this length has a base of its own."""
        return self.ntk_factor is not None and tokens > self.trained_tokens

    def base(self, tokens: int) -> float:
        """The base for a row of this length; dynamic NTK as `transformers` and the model card
        of nomic-embed-text-v1 define it, of the row's own length."""
        if self.ntk_factor is None or tokens <= self.trained_tokens:
            return self.theta
        growth = self.ntk_factor * tokens / self.trained_tokens - (self.ntk_factor - 1)
        return float(self.theta * growth ** (self.rotary_dim / (self.rotary_dim - 2)))


def read_rope(
    config: JsonFile,
    head_dim: int,
    *,
    default_theta: float,
    dynamic_from: int | None = None,
) -> RopeSettings:
    """The rotary settings in the old spelling (`rope_theta`, `rope_scaling`) or the new one
    (`rope_parameters`).

    dynamic_from: trained tokens, for a family that has dynamic NTK scaling. Raises CheckpointError
    for a kind of scaling that is not done here.
    """
    old, new = config.object("rope_scaling"), config.object("rope_parameters")
    if old is not None and new is not None:
        raise config.error("rope_scaling", "null beside 'rope_parameters'")
    said = old or new or JsonFile(config.path, {})
    theta = said.number("rope_theta", default=config.number("rope_theta", default=default_theta))
    factor = read_scaling(said, dynamic=dynamic_from is not None)
    return RopeSettings(theta, head_dim, factor, dynamic_from or 0)


def read_scaling(said: JsonFile, *, dynamic: bool) -> float | None:
    """The factor of dynamic NTK scaling, None where nothing is scaled.

    Raises CheckpointError for an unknown kind, and for a head that is rotated in part.
    """
    kinds = {"default": False} | ({"dynamic": True} if dynamic else {})
    key = "rope_type" if said.data.get("rope_type") is not None else "type"
    scaled = said.choice(key, kinds, default="default")  # first: other kinds have keys of their own
    said.known_keys(KNOWN_KEYS)
    if said.number("partial_rotary_factor", default=1.0) != 1.0:
        raise said.error("partial_rotary_factor", "1.0")
    return said.number("factor") if scaled else None


def pack_rope(driver: Driver[T], settings: RopeSettings, rows: int) -> Rope[T]:
    """Tables for the unscaled base and positions 0 to rows - 1: (rows, R / 2)."""
    cos, sin = rope_tables(settings.theta, settings.rotary_dim, rows)
    return Rope(driver.from_host(cos), driver.from_host(sin))


def pack_row_ropes(driver: Driver[T], settings: RopeSettings, lengths: Sequence[int]) -> Rope[T]:
    """Tables of each row's own base: (B, S, R / 2), S the longest of the lengths."""
    tables = [
        rope_tables(settings.base(tokens), settings.rotary_dim, max(lengths)) for tokens in lengths
    ]
    cos, sin = (np.stack(table) for table in zip(*tables))
    return Rope(driver.from_host(cos), driver.from_host(sin))


def rope_tables(
    theta: float, rotary_dim: int, rows: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin of position times frequency: (rows, R / 2) each.

    The base, its powers, their reciprocals and the angles are each rounded to float32, as in the
    code that the models were trained with: a frequency one bit off turns position 2,000 by 1e-4,
    far above float32 noise.
    """
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    base = np.float64(np.float32(theta))
    powers = (base ** exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1.0) / powers  # (R / 2,)
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies  # (rows, R / 2)
    wide = angles.astype(np.float64)
    return np.cos(wide).astype(np.float32), np.sin(wide).astype(np.float32)
