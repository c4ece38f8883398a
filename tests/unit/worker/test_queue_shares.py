"""Test that queues get shares by weight, and the others the share of an empty queue."""

import random

import pytest

from gristmill.worker.queue_shares import QueueShares


def served(weights: list[int], costs: list[int], rounds: int) -> list[int]:
    """Claim from the first queue in order, again and again; return the tokens of each queue."""
    shares, tokens, chance = QueueShares(weights), [0] * len(weights), random.Random(7)
    for _ in range(rounds):
        first = shares.order()[0]
        cost = chance.randint(1, costs[first])
        shares.charge(first, cost)
        tokens[first] += cost
    return tokens


@pytest.mark.parametrize("costs", [[64, 64, 64], [1000, 10, 100]])
def test_backlogged_queues_differ_from_their_shares_by_one_claim(costs: list[int]) -> None:
    weights = [5, 3, 1]
    tokens = served(weights, costs, 5000)
    paid = [spent / weight for spent, weight in zip(tokens, weights, strict=True)]
    largest_claim = max(cost / weight for cost, weight in zip(costs, weights, strict=True))
    assert max(paid) - min(paid) <= largest_claim


def test_of_equals_the_heavier_is_first() -> None:
    assert QueueShares([1, 3, 2]).order() == [1, 2, 0]


def test_time_without_work_saves_nothing_up() -> None:
    shares = QueueShares([1, 1])
    for _ in range(100):
        shares.charge(0, 50)  # the other queue is empty
    assert shares.order() == [1, 0]
    shares.charge(1, 50)
    shares.charge(1, 50)
    assert shares.order() == [0, 1]  # not a hundred claims in a row


def test_an_empty_answer_costs_nothing() -> None:
    shares = QueueShares([1, 1])
    shares.charge(0, 0)
    assert shares.order() == [0, 1]
