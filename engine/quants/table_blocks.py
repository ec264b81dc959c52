"""The block formats whose 4-bit values are indices into a table of levels."""

from __future__ import annotations

import numpy as np

from engine.kernels.layout import Layout
from engine.quants.blocks import Blocks, Parts, QuantizedFormat, half, nibbles

# levels that lie closer together around zero, where most weights are
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# the values of E2M1, the 4-bit float of the OCP Microscaling Formats (MX) 1.0, times 2
E2M1_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class IQ4_NL(QuantizedFormat):  # noqa: D101 - the name says it, as in the classes below
    layout = Layout("iq4_nl", value_bits=4, run=32, scale="f16", table=IQ4_LEVELS)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        return Parts(nibbles(blocks[:, 2:]), half(blocks, 0))


class IQ4_XS(QuantizedFormat):  # noqa: D101
    layout = Layout("iq4_xs", value_bits=4, run=32, scale="i8", has_head=True, table=IQ4_LEVELS)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        # eight 6-bit scales: two top bits each in bytes 2-3, the low halves, in order, in bytes 4-7
        top = (blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)  # (n_blocks, 2, 4)
        low = np.stack([blocks[:, 4:8] & 0x0F, blocks[:, 4:8] >> 4], axis=-1)  # (n_blocks, 4, 2)
        scales = (low.reshape(-1, 8) | (top.reshape(-1, 8) << np.uint8(4))).view(np.int8) - np.int8(32)
        return Parts(nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256), scales, head=half(blocks, 0))


class MXFP4(QuantizedFormat):  # noqa: D101
    layout = Layout("mxfp4", value_bits=4, run=32, scale="e8m0", table=E2M1_LEVELS)

    @staticmethod
    def split(blocks: Blocks) -> Parts:
        return Parts(nibbles(blocks[:, 1:]), blocks[:, :1])
