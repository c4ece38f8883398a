"""Choose rows of an input, and read their requests."""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gristmill.producer.commands.submit_runs import RunInput
from gristmill.shared.request import Request

SEED = 0
"""Seed of the choice: the same input gives the same rows again."""


def random_rows(num_rows: int, num_wanted: int) -> list[int]:
    """Return the numbers of rows that were drawn at random, in their order; all if there are no more."""
    chance = random.Random(SEED)  # noqa: S311  # a sample, no secret
    return sorted(chance.sample(range(1, num_rows + 1), min(num_wanted, num_rows)))


def spread_rows(num_rows: int, num_wanted: int) -> list[int]:
    """Return one row at random of each of `num_wanted` equal stretches, in their order."""
    chance = random.Random(SEED)  # noqa: S311  # a sample, no secret
    num = min(num_wanted, num_rows)
    bounds = [num_rows * index // num for index in range(num + 1)]
    return [chance.randint(low + 1, high) for low, high in pairwise(bounds)]


def evenly(rows: Sequence[int], num: int) -> list[int]:
    """Return `num` elements at equal distances; all if there are no more."""
    total = len(rows)
    return [rows[total * index // num] for index in range(num)] if num < total else [*rows]


def requests_of_rows(
    batch_input: RunInput, num_rows: int, rows: Sequence[int]
) -> Iterator[tuple[int, Request]]:
    """Yield the requests of some rows, each with its number.

    Rows without a request and copies of earlier rows are left out.

    Args:
        batch_input: Input whose `check` was called.
        num_rows: Rows of the input.
        rows: Numbers of rows.
    """
    left_out = bytearray(b"\1") * (num_rows + 1)
    copies = batch_input.copies_among(rows)
    for row in rows:
        left_out[row] = row in copies
    for row, entry in batch_input.entries(left_out):
        if isinstance(entry, Request):
            yield row, entry
