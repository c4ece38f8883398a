"""`map_table`: a table of the caller in, the same table with the answers out. It needs the extra `tables`.

`frames/` does the work. It is imported by the first call, so that programs without tables need none of its packages.
"""

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.producer.loop_thread import LoopThread
from gristmill.shared.errors import GristmillError
from gristmill.shared.install import missing_module

if TYPE_CHECKING:
    from gristmill.producer.frames.frame_run import FrameRun

T = TypeVar("T")

_THREAD = "gristmill-table"


def map_table(table: Any, prompt: str | None = None, **options: Any) -> Any:
    """Ask a prompt for each row of a table, and return the table with the answers as new columns.

    Args:
        table: A DataFrame of pandas or Polars, a Table or RecordBatchReader of pyarrow, a Dataset of `datasets`, or
            another object with `__arrow_c_stream__`.
        prompt: User's message for each row, with `{column}` for the value of a column.
        **options: Keywords; None stands for the default.
            system: Text of the system message.
            template: Text of a Jinja template that renders the messages, or the Path of its file; instead of prompt.
            request: Function that takes a row as a dict and returns a body, a `Request`, or None to leave the row
                unanswered; instead of prompt. It is called once for each row before anything is submitted.
            image: Column of image URLs or of the bytes of images.
            params: Dict of the other fields of each body, such as `{"max_tokens": 64}`.
            model: Model of each body.
            endpoint: `/v1/chat/completions`, the default, or `/v1/completions`.
            schema: JSON Schema as a dict, or a Pydantic model; its properties become columns.
            parse: "json" checks the answers against the schema and does not constrain the engine.
            skip_null: True leaves rows unanswered that have a null in a used column; False gives them an error.
            dedupe: True runs identical requests once, False runs each; None does so at temperature 0.
            rename: Dict from an added column to its new name.
            priority, tenant, deadline_s, max_attempts, batch: Fields of `Request` for each row.
            settings: Redis, the queue and its bounds; None reads the environment.
            engine: Engine of `gristmill.local.own_engine`, instead of settings.
            window: Most unfinished requests at a time; by default 4,096, and as many for each engine of `engine`.
            progress: True shows the progress on stderr.

    Returns:
        A table of the same kind with the same rows and columns in order. The added columns are those of the schema,
        then `answer`, `prompt_tokens`, `output_tokens`, `finish_reason` and `error`. A RecordBatchReader, or a kind
        that is not named above, gives a Table of pyarrow.

    Raises:
        InvalidRequest: A keyword is wrong, a column is missing, or an added column is there already. Nothing was
            submitted.
        NotServed: The queue has workers, and none serves the model or the endpoint.
        RedisUnreachable, SettingsError: See `Client`.
        GristmillError: A package of the extra `tables` is missing, or the disk of the temporary folder is full.

    A row that cannot be asked, or whose request failed, has its cause in `error`. An error or
    Ctrl-C that ends the call cancels its requests. A second call runs all rows again.
    """
    run = _opened(table, prompt, options)
    with LoopThread(_THREAD) as thread:
        try:
            thread.start(run.connect()).result()
            run.check()
            thread.start(run.collect()).result()
            return run.result()
        finally:
            thread.start(run.aclose()).result()


async def map_table_async(table: Any, prompt: str | None = None, **options: Any) -> Any:
    """Ask a prompt for each row of a table; see `map_table`.

    Other tasks of the event loop run while it waits. A function given as `request` is called in another thread. A call
    that is cancelled meanwhile ends once the function was called for all rows.
    """
    run = await asyncio.to_thread(_opened, table, prompt, options)
    with LoopThread(_THREAD) as thread:
        try:
            await asyncio.wrap_future(thread.start(run.connect()))
            await _in_thread(run.check)
            await asyncio.wrap_future(thread.start(run.collect()))
            return await _in_thread(run.result)
        finally:
            await asyncio.wrap_future(thread.start(run.aclose()))


async def _in_thread(work: Callable[[], T]) -> T:
    """Call a function in another thread, and wait for its end even if the caller is cancelled.

    Nothing stops a thread, and this one uses files that `FrameRun.aclose` deletes.
    """
    context = contextvars.copy_context()  # as asyncio.to_thread does
    # A future of the executor and no task: asyncio.run cancels all tasks at its end.
    working = asyncio.get_running_loop().run_in_executor(None, context.run, work)
    try:
        await asyncio.wait([working])
    finally:
        await asyncio.wait([working])
        working.exception()  # otherwise asyncio logs it if the caller is cancelled
    return working.result()


def _opened(table: Any, prompt: str | None, options: dict[str, Any]) -> "FrameRun":
    try:
        from gristmill.producer.frames.frame_options import FrameOptions
        from gristmill.producer.frames.frame_run import FrameRun
        from gristmill.producer.frames.python_words import python_words
    except ModuleNotFoundError as error:
        raise GristmillError(f"map_table {missing_module(error)}") from None
    with python_words():
        return FrameRun(table, FrameOptions.read({"prompt": prompt} | options))
