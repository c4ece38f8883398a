"""Start one engine in a process and talk to it; `engine_child.py` is that process.

A failure in the process becomes the reason of a failed point here.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.shared.errors import EngineDied, InvalidRequest
from gristmill.worker.engine.vllm.exits import describe_exit

GRACE_S = 30.0
"""Seconds beyond a point's longest time after which the process counts as hung."""

CLOSE_S, GIVE_UP_S = 30.0, 3.0
"""Seconds before the kill for a running engine to end, and for an engine that is still starting."""

TAIL_LINES = 3
"""Last lines of the log that an error quotes."""


class EngineProcess:
    """One engine in a separate process; `async with` ends it in any case."""

    def __init__(self, argv: Sequence[str], sample: LoadSample, log: Path) -> None:
        """Keep the arguments of the process.

        Args:
            argv: vLLM's flags.
            sample: Load to run.
            log: File for the output of the process.
        """
        self._argv, self._sample, self._log = argv, sample, log
        self._is_started = False

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await _spawned(log)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._input.close()
        with contextlib.suppress(TimeoutError):
            timeout_s = CLOSE_S if self._is_started else GIVE_UP_S
            await asyncio.wait_for(self._process.wait(), timeout_s)
        if self._process.returncode is None:
            self._process.kill()  # its engine follows: EngineCore watches its parent
            await self._process.wait()

    async def start(self, timeout_s: float) -> dict[str, Any]:
        """Start the engine, and return its `EngineInfo` as a dictionary.

        Raises:
            EngineDied: The engine did not start; the message says why.
            InvalidRequest: The process cannot read the sample.
        """
        order = {"argv": list(self._argv), "sample": asdict(self._sample)}
        info: dict[str, Any] = (await self._told(order, timeout_s))["started"]
        self._is_started = True
        return info

    async def measure(self, candidate: Candidate, max_s: float) -> MeasuredPoint:
        """Measure a point. If the engine fails, return a point with the reason and no figures.

        Args:
            candidate: Candidate with this engine's setting.
            max_s: Longest time in seconds.

        Raises:
            InvalidRequest: The engine refused all of the first requests.
        """
        started_at = time.monotonic()
        order = {"in_flight": candidate.in_flight, "max_s": max_s}
        try:
            answer = await self._told(order, max_s + GRACE_S)
        except EngineDied as error:
            return MeasuredPoint(candidate, str(error), seconds=time.monotonic() - started_at)
        return MeasuredPoint.from_json(answer["point"])

    @property
    def _input(self) -> asyncio.StreamWriter:
        if self._process.stdin is None:
            raise EngineDied("the engine's process has no input")
        return self._process.stdin

    async def _told(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        line = b""
        with contextlib.suppress(ConnectionError):
            self._input.write(orjson.dumps(order) + b"\n")
            await self._input.drain()
        try:
            async with asyncio.timeout(timeout_s):
                if self._process.stdout is not None:
                    line = await self._process.stdout.readline()
                if not line:
                    await self._process.wait()
        except TimeoutError:
            raise EngineDied(f"no answer within {timeout_s:.0f} s; log: {self._log}") from None
        answer: dict[str, Any] = orjson.loads(line) if line else {"failed": self._end()}
        if "refused" in answer:
            raise InvalidRequest(str(answer["refused"]))
        if "failed" in answer:
            raise EngineDied(str(answer["failed"]))
        return answer

    def _end(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        ended = describe_exit("its process", self._process.returncode)
        return f"{ended}; {' / '.join(lines)}; log: {self._log}"


async def _spawned(log: BinaryIO) -> asyncio.subprocess.Process:
    """Start the process in a new session: the end of its stdin ends it, but Ctrl-C does not."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gristmill.bench.tune.engine_child"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        limit=2**24,
    )
