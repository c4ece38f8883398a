"""Start one engine in a process and talk to it; `engine_child.py` is that process.

A failure in the process becomes the reason of a failed point here.
"""

import asyncio
import contextlib
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from gristmill.bench.tune.candidates import Candidate
from gristmill.bench.tune.load_sample import LoadSample
from gristmill.bench.tune.measured_point import MeasuredPoint
from gristmill.bench.tune.time_plan import GIVE_UP_S
from gristmill.shared.errors import EngineDied, InvalidRequest
from gristmill.worker.engine.vllm.exits import describe_exit
from gristmill.worker.parent.child_plan import EngineShare

GRACE_S = 30.0
"""Seconds beyond a point's longest time after which the process counts as hung."""

CLOSE_S = 30.0
"""Seconds for a running engine to end before it is killed."""

TAIL_LINES = 3
"""Last lines of the log that an error quotes."""


class FlagsRefused(EngineDied):
    """vLLM refused the flags of an engine; more memory would not help."""


class EngineProcess:
    """One engine in a separate process; `close` ends it in any case."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        """Keep a process; see `spawned`."""
        self._process, self._log = process, log
        self._devices: dict[str, Any] | None = None
        self._is_started = False

    @classmethod
    async def spawned(cls, log: Path) -> "EngineProcess":
        """Start the process, which loads vLLM and then waits for `start`.

        Args:
            log: File for the output of the process.
        """
        with log.open("wb") as output:
            return cls(await _spawned(output), log)

    async def close(self) -> None:
        """End the engine and its process."""
        self._input.close()
        with contextlib.suppress(TimeoutError):
            timeout_s = CLOSE_S if self._is_started else GIVE_UP_S
            await asyncio.wait_for(self._process.wait(), timeout_s)
        if self._process.returncode is None:
            self._process.kill()  # its engine follows: EngineCore watches its parent
            await self._process.wait()

    async def devices(self, timeout_s: float) -> dict[str, Any]:
        """Return the machine's `Devices` as a dictionary, once vLLM is loaded.

        Raises:
            EngineDied: The process cannot load vLLM; the message says why.
        """
        if self._devices is None:
            self._devices = (await self._heard(timeout_s))["devices"]
        return self._devices

    async def start(
        self,
        share: EngineShare,
        sample: LoadSample,
        timeout_s: float,
    ) -> dict[str, Any]:
        """Start the engine, and return its `EngineInfo` as a dictionary.

        Args:
            share: vLLM's flags, environment variables beside those of this process, and cores.
            sample: Load to run.
            timeout_s: Longest start in seconds.

        Raises:
            FlagsRefused: vLLM refused the flags.
            EngineDied: The engine did not start; the message says why.
            InvalidRequest: The process cannot read the sample.
        """
        begun_at = time.monotonic()
        await self.devices(timeout_s)
        order = {**asdict(share), "sample": asdict(sample)}
        left_s = timeout_s - (time.monotonic() - begun_at)
        info: dict[str, Any] = (await self._told(order, left_s))["started"]
        self._is_started = True
        return info

    async def measure(
        self, candidate: Candidate, max_s: float, *, offset: float = 0.0, hold: bool = False
    ) -> MeasuredPoint:
        """Measure a point. If the engine fails, return a point with the reason and no figures.

        Args:
            candidate: Candidate with this engine's setting.
            max_s: Longest time in seconds.
            offset: Share of the sample to leave out at first, so that engines side by side run
                different requests.
            hold: True to keep the load running until `release`.

        Raises:
            InvalidRequest: The engine refused all of the first requests.
        """
        started_at = time.monotonic()
        feeding = {"in_flight": candidate.in_flight, "refill": candidate.refill, "offset": offset}
        try:
            answer = await self._told({**feeding, "max_s": max_s, "hold": hold}, max_s + GRACE_S)
        except EngineDied as error:
            return MeasuredPoint(candidate, str(error), seconds=time.monotonic() - started_at)
        return replace(MeasuredPoint.from_json(answer["point"]), candidate=candidate)

    async def release(self) -> None:
        """End the load of a point that was measured with `hold`; a dead engine has none."""
        with contextlib.suppress(EngineDied):
            await self._told({"release": True}, GRACE_S)

    @property
    def _input(self) -> asyncio.StreamWriter:
        if self._process.stdin is None:
            raise EngineDied("the engine's process has no input")
        return self._process.stdin

    async def _told(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with contextlib.suppress(ConnectionError):
            self._input.write(orjson.dumps(order) + b"\n")
            await self._input.drain()
        return await self._heard(timeout_s)

    async def _heard(self, timeout_s: float) -> dict[str, Any]:
        line = b""
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
            error = FlagsRefused if answer.get("is_setting") else EngineDied
            raise error(str(answer["failed"]))
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
