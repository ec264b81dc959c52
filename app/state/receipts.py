"""Receipts as they come from files: only those that can be meant."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import get_args

from engine.slot.records import Reason, Receipt, Source

_MOST_TOKENS = 1 << 53
_MOST_MS = 1e12


def by_reply(receipts: Iterable[Receipt]) -> dict[int, Receipt]:
    """Return receipts by the ids of their replies, without those that make no sense.

    Everything that counts, adds up or paints them may rely on their numbers and words.
    """
    return {receipt.message: receipt for receipt in receipts if makes_sense(receipt)}


def makes_sense(receipt: Receipt) -> bool:
    """Tell whether a receipt's words are known, its counts whole and its times finite."""
    counts = (receipt.cache_n, receipt.prompt_n, receipt.predicted_n)
    times = (receipt.prompt_ms, receipt.predicted_ms)
    return (
        receipt.source in get_args(Source)
        and receipt.reason in get_args(Reason)
        and all(type(count) is int and 0 <= count <= _MOST_TOKENS for count in counts)
        and all(isinstance(ms, int | float) and math.isfinite(ms) and 0 <= ms <= _MOST_MS for ms in times)
        and isinstance(receipt.kernels, str)
        and (receipt.donor is None or isinstance(receipt.donor, str))
    )
