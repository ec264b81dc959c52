"""Options that several commands have, and the kinds of numbers that options take."""

from __future__ import annotations

import argparse


def add_compute(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what computes."""
    parser.add_argument("--threads", type=positive, metavar="N", help="threads that compute (all cores)")
    parser.add_argument("--kernels", metavar="NAME", help="which kernels compute (the fastest that run here)")


def positive(text: str) -> int:
    """Return a number that must be 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def not_negative(text: str) -> int:
    """Return a number that must be 0 or more."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is not 0 or more")
    return value
