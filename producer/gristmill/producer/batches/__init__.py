"""OpenAI batch files: reading requests, writing results, resuming a run.

`gristmill submit` is the first caller; nothing here knows Redis or the terminal.
"""

from gristmill.producer.batches.input import BadLine, BatchInput, LineReader, Report
from gristmill.producer.batches.output import Output, Written
from gristmill.producer.batches.rows import bad_line_row, result_row
from gristmill.producer.batches.run import Run, fingerprint

__all__ = [
    "BadLine",
    "BatchInput",
    "LineReader",
    "Output",
    "Report",
    "Run",
    "Written",
    "bad_line_row",
    "fingerprint",
    "result_row",
]
