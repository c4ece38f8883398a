"""Start the items of a call: submit what is a request, and note what is an id, up to the first bad item."""

from typing import Any

from gristmill.producer.arguments import numbered
from gristmill.producer.items import ItemReader
from gristmill.producer.stream import Expected, Group
from gristmill.producer.submit_lease import Hold
from gristmill.producer.submitter import Submitter
from gristmill.producer.waiter import Waiter
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.operations import SubmitCode
from gristmill.shared.request import Request


class ItemStarter:
    """Starts items in the name of one client.

    Args:
        submitter: Submits the requests.
        waiter: Waits for the results.
    """

    def __init__(self, submitter: Submitter, waiter: Waiter) -> None:
        self._submitter = submitter
        self._waiter = waiter

    async def submit(
        self, reader: ItemReader, hold: Hold, group: Group[Any]
    ) -> tuple[list[tuple[Request, SubmitCode]], InvalidRequest | None]:
        """Submit the next items of a call up to the first bad one.

        Args:
            reader: Reader of the call's items.
            hold: Hold of the call on the client's lease, which it takes unless these items are the last.
            group: The items.

        Returns:
            The submitted requests with their codes, and the error of the bad item, or None. The error has the
            index of the item.
        """
        if not group.is_last:
            await hold.take()
        first = reader.num_read
        requests, error = reader.read_requests(group.items)
        codes, refused = await self._submitter.submit(requests)
        if refused:
            error = numbered(first + len(codes), refused)
        return list(zip(requests, codes, strict=False)), error

    async def start(
        self, reader: ItemReader, hold: Hold, group: Group[Any]
    ) -> tuple[list[Expected], InvalidRequest | None]:
        """Submit the next items of a stream, or note their ids; see `stream.Start`."""
        if reader.are_ids(group.items):
            ids, error = reader.read_ids(group.items)
            return [Expected(i, self._waiter.expect(i, is_own=False)) for i in ids], error
        submitted, error = await self.submit(reader, hold, group)
        expected = [
            Expected(request.id, self._waiter.expect(request.id, is_own=code == "accepted"))
            for request, code in submitted
        ]
        return expected, error
