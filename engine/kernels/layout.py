"""How quantized weight matrices lie in memory for the compiled kernels.

The rows of a matrix are taken in groups of 16, its columns in blocks of 32. A *brick* is a block of a group: the
values, then the scales, then the minima. Four consecutive inputs of each of the 16 rows lie side by side, 64 bytes,
so that one instruction multiplies them with the same four activations and leaves 16 separate sums. Values of 4 bits
share a byte with those of the next four inputs, values of 2 bits with those of the next twelve. Values of 3, 5 and 6
bits lie in two *planes*, first their lower 2 or 4 bits, then the others, each packed in this way.

    group 0                                            group 1
    [head] brick 0  brick 1 ... brick 7  [head] ...
    brick: 16 rows x 32 values, scales of 16 rows (one or two runs), minima likewise
    head:   scales of scales, one per 16 rows and 256 inputs, where the type has them

Nothing is requantized: a weight is (value - zero point) * scale + minimum, as in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GROUP = 16  # rows
BLOCK = 32  # inputs
SUPERBLOCK = 8  # blocks that share a head

ScaleType = Literal["f16", "i8", "u4", "e8m0"]


@dataclass(frozen=True)
class Layout:
    """What the values of a quantized tensor type mean, and how its bricks lie in memory."""

    name: str
    value_bits: Literal[2, 3, 4, 5, 6, 8]
    run: Literal[16, 32]  # inputs that share a scale
    scale: ScaleType  # `u4`: scale and minimum are the low and the high half of a byte; `e8m0`: a bare exponent
    has_minimum: bool = False
    has_head: bool = False  # float16 factors of the scales, and of the minima, which are subtracted then
    zero_point: int = 0  # subtracted from the values
    table: tuple[int, ...] | None = None  # what the values stand for

    @property
    def n_runs(self) -> int:
        """Runs in a block."""
        return BLOCK // self.run

    @property
    def low_bits(self) -> Literal[2, 4, 8]:
        """Bits of a value that lie in the first plane."""
        return 2 if self.value_bits <= 3 else 4 if self.value_bits <= 6 else 8

    @property
    def high_bits(self) -> int:
        """Bits that lie in the second plane: 0, 1 or 2."""
        return self.value_bits - self.low_bits

    @property
    def low_bytes(self) -> int:
        """Bytes of the first plane of a brick; the second follows."""
        return GROUP * BLOCK * self.low_bits // 8

    @property
    def is_signed(self) -> bool:
        """Whether weights have a sign before anything is added to them."""
        return self.table is not None or self.value_bits == 8

    @property
    def value_bytes(self) -> int:
        """Bytes of the values of a brick."""
        return GROUP * BLOCK * self.value_bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of a brick; as many follow for minima that have bytes of their own."""
        return GROUP * self.n_runs * (2 if self.scale == "f16" else 1)

    @property
    def brick_bytes(self) -> int:
        """Bytes of a brick."""
        has_minimum_bytes = self.has_minimum and self.scale != "u4"
        return self.value_bytes + self.scale_bytes * (2 if has_minimum_bytes else 1)

    @property
    def head_bytes(self) -> int:
        """Bytes of a head."""
        return 2 * GROUP * (2 if self.has_minimum else 1) if self.has_head else 0

    def group_bytes(self, n_in: int) -> int:
        """Bytes of a group of rows."""
        n_blocks = n_in // BLOCK
        return n_blocks * self.brick_bytes + n_blocks // SUPERBLOCK * self.head_bytes
