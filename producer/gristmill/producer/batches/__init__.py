"""Files of requests, in OpenAI's batch format.

Two ways lead through here. `gristmill submit` is one process from file to file: `BatchInput`, `Output`,
`Run`. Batches are run by stewards: `service.py` says what can be asked for, `lifecycle.py` what is done.
Both read lines (`input.py`) and write rows (`rows.py`) alike.
"""

from gristmill.producer.batches.input import BadLine, BatchInput, LineReader, Report
from gristmill.producer.batches.output import Output, Written, check_apart
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
    "check_apart",
    "fingerprint",
    "result_row",
]
