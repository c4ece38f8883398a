"""The lines of an input and the rows of an output, in OpenAI's batch format. No Redis, no storage."""

from gristmill.producer.batches.rows.custom_ids import (
    CustomIds,
    Names,
    bad_request,
    custom_id_of,
    duplicate_line,
    names_of,
    unknown_fields_of,
)
from gristmill.producer.batches.rows.line_reader import LineReader
from gristmill.producer.batches.rows.lines import BadLine, Line, SkippedRow, lines_of, take_lines
from gristmill.producer.batches.rows.row_format import (
    ID_PREFIX,
    bad_line_row,
    failure_in_words,
    first_id,
    is_hopeless,
    is_success,
    line_number,
    line_of_row,
    result_row,
    second_id,
    skipped_row,
    unanswered_row,
)

__all__ = [
    "ID_PREFIX",
    "BadLine",
    "CustomIds",
    "Line",
    "LineReader",
    "Names",
    "SkippedRow",
    "bad_line_row",
    "bad_request",
    "custom_id_of",
    "duplicate_line",
    "failure_in_words",
    "first_id",
    "is_hopeless",
    "is_success",
    "line_number",
    "line_of_row",
    "lines_of",
    "names_of",
    "result_row",
    "second_id",
    "skipped_row",
    "take_lines",
    "unanswered_row",
    "unknown_fields_of",
]
