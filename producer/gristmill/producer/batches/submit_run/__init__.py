"""The files of one `gristmill submit`: its input, its output, and what a resume has to know."""

from gristmill.producer.batches.submit_run.input_file import InputFile, InputReport
from gristmill.producer.batches.submit_run.output_file import (
    Appended,
    OutputFile,
    WrittenRows,
    check_apart,
    earlier_run,
    failure_of_line,
    lock_beside,
)
from gristmill.producer.batches.submit_run.run_queues import EMBEDDED, is_of_one_run, new_queue
from gristmill.producer.batches.submit_run.run_record import RunRecord, fingerprint

__all__ = [
    "EMBEDDED",
    "Appended",
    "InputFile",
    "InputReport",
    "OutputFile",
    "RunRecord",
    "WrittenRows",
    "check_apart",
    "earlier_run",
    "failure_of_line",
    "fingerprint",
    "is_of_one_run",
    "lock_beside",
    "new_queue",
]
