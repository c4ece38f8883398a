"""The ids that a client has submitted lately. Its reply list names their ends, so `Waiter` need not look for them."""

from collections.abc import Iterable

MAX_IDS = 10_000
"""Ids that are kept; a reply list keeps as many (`lua/includes/finish.lua`)."""


class OwnIds:
    """The newest ids that the queue accepted from one client."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, ids: Iterable[str]) -> None:
        """Note accepted ids; the oldest go when there are too many."""
        for request_id in ids:
            self._ids[request_id] = None
            if len(self._ids) > MAX_IDS:
                del self._ids[next(iter(self._ids))]
