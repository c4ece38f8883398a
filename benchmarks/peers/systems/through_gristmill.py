"""Run a batch with Gristmill: a Redis server, a worker process, and this process as the client."""

import asyncio
import subprocess
import sys
from importlib.metadata import version

from peers.systems.report import Report, arguments, openai_answers, rows

from gristmill.local.processes import die_with_parent
from gristmill.local.redis_server import running_server
from gristmill.producer import Client
from gristmill.shared.connection import connect
from gristmill.shared.queue import Queue
from gristmill.shared.request import CHAT, Request

POLL_S = 0.05


async def main(url: str) -> None:
    source, target, argv = arguments()
    report = Report()
    command = [sys.executable, "-m", "gristmill.shared.cli", "worker", "--redis-url", url, "--"]
    worker = subprocess.Popen([*command, *argv], preexec_fn=die_with_parent)  # noqa: PLW1509, S603, ASYNC220  # one C call, our own flags
    queue = Queue(connect(url))
    async with Client(queue=queue) as client:
        while not await queue.redis.zcard(queue.keys.workers):
            if worker.poll() is not None:
                raise SystemExit(f"the worker ended with exit code {worker.returncode}")
            await asyncio.sleep(POLL_S)
        report.is_ready()
        names = {}
        requests = []
        for name, body in rows(source).items():
            requests.append(Request.from_body(body, endpoint=CHAT))
            names[requests[-1].id] = name
        results = [result async for result in client.as_completed(requests)]
        bodies = {names[result.id]: result.body or {} for result in results}
        report.write(target, openai_answers(bodies), f"gristmill {version('gristmill')}")
    worker.terminate()
    worker.wait()


if __name__ == "__main__":
    with running_server() as served_at:
        asyncio.run(main(served_at))
