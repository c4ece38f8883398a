"""An Arrow table in memory as the input of a run. It has what a run needs of `Table`."""

from collections.abc import Iterator
from typing import Any

from gristmill.producer.tables.readers import rows_of_chunk
from gristmill.producer.tables.row_chunks import ArrowRows
from gristmill.producer.tables.table import Chunk
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import shown


class MemoryTable:
    """The rows of an Arrow table.

    Args:
        arrow: A pyarrow Table.

    Attributes:
        schema: Columns with their types.

    Raises:
        InvalidRequest: Two columns have the same name.
    """

    has_types = True
    name = "the table"

    def __init__(self, arrow: Any) -> None:
        self._arrow = arrow
        self.schema = arrow.schema
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if twice:
            raise InvalidRequest(
                f"the table has several columns {shown(twice[0])}; give each its own name"
            )

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield the rows in their order, without a copy.

        Args:
            start: Rows at the beginning that are not needed.
        """
        first = start + 1
        size = rows_of_chunk(self._arrow.num_rows, self._arrow.nbytes)
        for batch in self._arrow.slice(start).to_batches(max_chunksize=size):
            yield Chunk("", first, first, ArrowRows(batch))
            first += batch.num_rows
