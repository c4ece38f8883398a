"""Turn the rows of a table into the lines of a batch file, in OpenAI's format."""

from collections.abc import Iterator

from gristmill.producer.tables.request_maker import RequestMaker
from gristmill.producer.tables.spec import TableSpec
from gristmill.producer.tables.table import Table
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import json_line


def batch_lines(table: Table, spec: TableSpec) -> Iterator[bytes]:
    """Yield a line for each row; its custom_id is `row-` and the number of the row, from 1.

    Args:
        table: The rows.
        spec: The options. `skip_null` leaves out rows with a null in a used column.

    Raises:
        InvalidRequest: The prompt does not fit the columns, or a row cannot be asked.
    """
    maker = RequestMaker(spec)
    maker.check_columns(table)
    for chunk in table.chunks():
        for number, row in enumerate(chunk.dicts(maker.columns), chunk.first):
            null = maker.null_in(row)
            if null is None:
                try:
                    body = maker.body(row)
                except InvalidRequest as error:
                    raise InvalidRequest(f"{chunk.where(number)}: {error.reason}") from None
                yield json_line(
                    {
                        "custom_id": f"row-{number}",
                        "method": "POST",
                        "url": spec.endpoint,
                        "body": body,
                    }
                )
            elif not spec.skip_null:
                raise InvalidRequest(
                    f"{chunk.where(number)}: column {null!r} is null; fill it, or leave such rows out with --skip-null"
                )
