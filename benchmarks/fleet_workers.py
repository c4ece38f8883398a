"""Run many worker loops with stub engines in this process; `fleet.py` starts it.

Each loop is a true worker: it has a lease, a heartbeat thread and connections of its own. The process
answers each line on stdin with one line of JSON on stdout: what its workers did since the line before.
"""

import argparse
import asyncio
import functools
import json
import signal
import sys
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

import structlog
import uvloop

from gristmill.shared.operations import Claim
from gristmill.shared.queue import Queue
from gristmill.worker.drain import Drain
from gristmill.worker.engine import StubEngine
from gristmill.worker.liveness import Liveness
from gristmill.worker.settings import WorkerSettings
from gristmill.worker.supervisor import Supervisor
from gristmill.worker.wiring import work


class Tally:
    """What the workers of this process did since the last report."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self.ended: Counter[str] = Counter()

    def note_event(self, _: object, __: str, event: MutableMapping[str, Any]) -> Any:
        """Count a log event and drop it; structlog calls this instead of writing lines."""
        if event["event"] == "request.completed":
            self.ended[event["worker"]] += 1
        else:
            self.counts[event["event"]] += 1
        raise structlog.DropEvent

    def count_claims(self) -> None:
        """Count each claim from now on, and those that found nothing."""
        claim = Queue.claim

        @functools.wraps(claim)
        async def counted(queue: Queue, *args: Any) -> Claim:
            found = await claim(queue, *args)
            self.counts["claims"] += 1
            self.counts["empty_claims"] += not found.claimed and not found.inbox
            self.counts["claimed"] += len(found.claimed)
            self.waits_s += [
                (found.now_ms - each.record.enqueued_ms) / 1000 for each in found.claimed
            ]
            return found

        Queue.claim = counted  # type: ignore[method-assign, assignment]  # only in this benchmark

    def report(self) -> str:
        """Return all of it as JSON, and begin anew."""
        line = json.dumps({"counts": self.counts, "waits_s": self.waits_s, "ended": self.ended})
        self.counts.clear()
        self.waits_s.clear()
        self.ended.clear()
        return line


async def run_worker(
    settings: WorkerSettings, step_s: float, drain: Drain, liveness: Liveness
) -> None:
    """Run one worker until the drain starts."""
    engine = StubEngine(token_delay_s=step_s, max_num_seqs=settings.max_in_flight or 1)
    supervisor = Supervisor(engine, settings, drain, liveness)
    await work(settings, supervisor, await supervisor.start(), drain, liveness)


async def keep_alive(livenesses: list[Liveness]) -> None:
    """Note once a second that the event loop runs."""
    while True:
        for liveness in livenesses:
            liveness.loop_ran()
        await asyncio.sleep(1)


async def serve(options: argparse.Namespace, tally: Tally) -> None:
    """Run the workers until SIGTERM or the end of stdin."""
    settings = WorkerSettings(
        redis_url=options.url, max_in_flight=options.in_flight, lease_s=options.lease, health_port=0
    )
    loop = asyncio.get_running_loop()
    drains = [Drain(0) for _ in range(options.workers)]
    livenesses = [Liveness(settings.stall_timeout_s, 60, 60) for _ in drains]

    def stop() -> None:
        for drain in drains:
            drain.start("SIGTERM")

    def answer() -> None:
        if sys.stdin.readline():
            print(tally.report(), flush=True)
        else:
            loop.remove_reader(sys.stdin)
            stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_reader(sys.stdin, answer)
    ticking = asyncio.create_task(keep_alive(livenesses))
    step_s = options.step_ms / 1000
    pairs = zip(drains, livenesses, strict=True)
    await asyncio.gather(*(run_worker(settings, step_s, *pair) for pair in pairs))
    ticking.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description="Run many worker loops; fleet.py starts this.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--lease", type=float, default=15.0)
    tally = Tally()
    tally.count_claims()
    structlog.configure(processors=[tally.note_event])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser.parse_args(), tally))


if __name__ == "__main__":
    main()
