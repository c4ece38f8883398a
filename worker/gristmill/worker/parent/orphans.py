"""Reap the processes that a parent inherits as process 1 of its container.

The engine's processes of a killed worker end by themselves. Somebody must take their exit codes, or
they stay in the table of processes. Outside a container the system does it.
"""

import os
from collections.abc import Collection
from contextlib import suppress

import psutil


def reap_orphans(own: Collection[int | None]) -> None:
    """Take the exit codes of all ended children that this process did not start.

    Args:
        own: Ids of the processes that this process started, whose exit codes others wait for.
    """
    for child in psutil.Process().children():
        if child.pid not in own:
            with suppress(ChildProcessError):  # it was taken in the meantime
                os.waitpid(child.pid, os.WNOHANG)
