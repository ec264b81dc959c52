"""Tensors, block by block as in the file, rearranged into the bricks that the compiled kernels read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.kernels.layout import BLOCK, GROUP, SUPERBLOCK, Layout
from engine.kernels.team import ThreadTeam
from engine.quants.blocks import Parts, QuantizedFormat

_PIECE_BYTES = 1 << 25
_CACHE_LINE = 64
_CHUNK_WEIGHTS = 1 << 17  # what one task rearranges: its intermediate arrays stay in the second-level cache


class WeightMemory:
    """Memory for weights in pieces of many megabytes.

    NumPy asks for huge pages for such arrays. Reading all weights for every token, a processor otherwise spends a good
    part of the time on looking up where pages of 4 KiB are.
    """

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def take(self, n_rows: int, group_bytes: int) -> NDArray[np.uint8]:
        """Return an array (n_groups, group_bytes) for the groups of so many rows, whose content is not set."""
        n_groups = -(-n_rows // GROUP)
        nbytes = n_groups * group_bytes
        if nbytes > _PIECE_BYTES // 4:
            return np.empty((n_groups, group_bytes), np.uint8)
        if nbytes > len(self._free):
            self._free = np.empty(_PIECE_BYTES, np.uint8)
        taken, self._free = self._free[:nbytes], self._free[-(-nbytes // _CACHE_LINE) * _CACHE_LINE :]
        return taken.reshape(n_groups, group_bytes)


def pack(
    rows: NDArray[np.uint8],
    block_format: type[QuantizedFormat],
    out: NDArray[np.uint8],
    *,
    n_in: int,
    team: ThreadTeam,
) -> None:
    """Write rows of a tensor, (n_rows, row_bytes) as in the file, as groups of bricks (n_groups, group_bytes).

    See `kernels.layout`. Rows that fill up the last group are zero.
    """
    step = max(1, _CHUNK_WEIGHTS // (GROUP * n_in))

    def rearrange(chunk: int) -> None:
        groups = slice(chunk * step, (chunk + 1) * step)
        part = rows[groups.start * GROUP : groups.stop * GROUP]
        target = out[groups]
        if len(part) < len(target) * GROUP:
            part = np.concatenate([part, np.zeros((len(target) * GROUP - len(part), part.shape[1]), np.uint8)])
        parts = block_format.split(part.reshape(-1, block_format.block_bytes))
        target[...] = _records(block_format.layout, parts, len(target), n_in)

    team.run(-(-len(out) // step), rearrange)


def pack_floats(rows: NDArray[np.uint8], out: NDArray[np.uint8], *, n_in: int, team: ThreadTeam) -> None:
    """Write rows of floats, (n_rows, row_bytes) as in the file, as groups with the values of an input side by side.

    `out` is (n_groups, group_bytes); rows that fill up the last group are zero.
    """
    elements = rows.view(np.dtype(f"u{rows.shape[1] // n_in}"))
    target = out.view(elements.dtype).reshape(len(out), n_in, GROUP)

    def rearrange(group: int) -> None:
        part = elements[group * GROUP : (group + 1) * GROUP]
        target[group, :, : len(part)] = part.T
        target[group, :, len(part) :] = 0

    team.run(len(out), rearrange)


def _records(layout: Layout, parts: Parts, n_groups: int, n_in: int) -> NDArray[np.uint8]:
    """Return the bricks of whole groups, (n_groups, group_bytes)."""
    n_blocks = n_in // BLOCK
    values = parts.values.view(np.uint8).reshape(n_groups, GROUP, n_blocks, BLOCK)
    if layout.high_bits:
        low_bits, mask = np.uint8(layout.low_bits), np.uint8((1 << layout.low_bits) - 1)
        bricks = [_plane(values & mask, layout.low_bits), _plane(values >> low_bits, layout.high_bits)]
    else:
        bricks = [_plane(values, layout.low_bits)]
    bricks.append(_by_row(parts.scales, n_groups, n_blocks))
    if parts.minima is not None:
        bricks.append(_by_row(parts.minima, n_groups, n_blocks))
    blocks = np.concatenate(bricks, axis=-1)  # (n_groups, n_blocks, brick_bytes)
    if parts.head is None:
        return blocks.reshape(n_groups, -1)
    heads = _by_row(parts.head, n_groups, n_blocks // SUPERBLOCK)
    superblocks = blocks.reshape(n_groups, n_blocks // SUPERBLOCK, -1)
    return np.concatenate([heads, superblocks], axis=-1).reshape(n_groups, -1)


def _plane(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Lay values (n_groups, 16, n_blocks, 32) of so many bits out by fours of inputs: (n_groups, n_blocks, bytes)."""
    per_byte = 8 // bits
    fours = values.reshape(*values.shape[:3], -1, per_byte, 4)
    packed = fours[..., 0, :].copy()
    for i in range(1, per_byte):
        packed |= fours[..., i, :] << np.uint8(bits * i)
    # (group, row, block, unit, 4) -> (group, block, unit, row, 4), four bytes moved as one
    moved = packed.view(np.uint32)[..., 0].transpose(0, 2, 3, 1)
    return np.ascontiguousarray(moved).view(np.uint8).reshape(values.shape[0], values.shape[2], -1)


def _by_row(numbers: NDArray[Any], n_groups: int, n_blocks: int) -> NDArray[np.uint8]:
    """Lay numbers (…, n) of each block out as (n_groups, n_blocks, bytes): all rows of the first, of the second …"""
    by_block = numbers.reshape(n_groups, GROUP, n_blocks, -1).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(by_block).view(np.uint8).reshape(n_groups, n_blocks, -1)
