"""Build the images, run docker-compose.yml, and kill its worker in the middle of a batch.

`make images-check` runs it. It needs Docker with Compose, the free ports 6379 and 8000, and about
10 GB of disk. It uses a Compose project of its own, so the volumes of another stack stay as they
are. `CPU_MODEL` and `MODEL_FOLDER` choose the model, as docker-compose.yml says.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI
from openai.types import Batch

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ("docker", "compose", "--project-name", "gristmill-images-check")
GATEWAY = "http://127.0.0.1:8000/v1"
NUM_ROWS = 200
START_LIMIT_S = 1800
"""A first start downloads the model."""
BATCH_LIMIT_S = 1800
ENDED = {"completed", "failed", "expired", "cancelled"}


def compose(*arguments: str) -> str:
    """Run `docker compose` in the repository's root and return its standard output.

    Its progress goes to standard error.

    Raises:
        subprocess.CalledProcessError: It exits with another status than 0.
    """
    command = [*COMPOSE, *arguments]
    print("==>", *command, flush=True)  # noqa: T201
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return done.stdout


def start(*services: str) -> None:
    """Start services and wait until their health checks pass."""
    compose("up", "--detach", "--wait", f"--wait-timeout={START_LIMIT_S}", *services)


@contextmanager
def stack() -> Iterator[OpenAI]:
    """Run the whole stack; remove its containers, networks and volumes at the end."""
    try:
        start("redis", "worker", "gateway", "steward")
        yield OpenAI(base_url=GATEWAY, api_key="anonymous")
    except BaseException:
        print(compose("ps", "--all"), compose("logs", "--tail=40"))  # noqa: T201
        raise
    finally:
        compose("down", "--volumes", "--remove-orphans")


def lines(model: str, num_lines: int) -> str:
    """Return an input file; each request is longer than the last, so their answers end apart."""
    rows = (
        {
            "custom_id": f"row-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": f"Tell me about the number {number}."}],
                "max_tokens": 8 + number // 2,
                "ignore_eos": True,
            },
        }
        for number in range(num_lines)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def create_batch(client: OpenAI, model: str) -> Batch:
    """Upload an input file and create its batch."""
    data = lines(model, NUM_ROWS).encode()
    file = client.files.create(file=("rows.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def poll(client: OpenAI, batch_id: str, num_completed: int) -> Batch:
    """Wait until a batch has ended or has that many answers.

    Raises:
        TimeoutError: Neither happened within `BATCH_LIMIT_S`.
    """
    deadline = time.monotonic() + BATCH_LIMIT_S
    while True:
        batch = client.batches.retrieve(batch_id)
        completed = batch.request_counts.completed if batch.request_counts else 0
        if batch.status in ENDED or num_completed <= completed < NUM_ROWS:
            return batch
        if time.monotonic() > deadline:
            raise TimeoutError(f"{batch_id} is {batch.status} with {completed} of {NUM_ROWS} rows after {BATCH_LIMIT_S} s")  # fmt: skip
        time.sleep(0.5)


def kill_worker() -> int:
    """Kill the worker without a drain and return how many requests it held."""
    compose("kill", "--signal=KILL", "worker")
    stats = json.loads(compose("exec", "-T", "gateway", "gristmill", "queue", "stats", "--json"))
    return int(stats["counters"]["in_flight"])


def check_rows(client: OpenAI, batch: Batch) -> None:
    """Raise unless each line has exactly one answer."""
    if batch.status != "completed" or not batch.output_file_id:
        raise SystemExit(f"the batch ended as {batch.status}: {batch.to_json()}")
    rows = [json.loads(row) for row in client.files.content(batch.output_file_id).iter_lines()]
    answered = sorted(row["custom_id"] for row in rows if row["response"]["status_code"] == 200)
    if answered != sorted(f"row-{number}" for number in range(NUM_ROWS)):
        raise SystemExit(f"{len(answered)} answers in {len(rows)} rows, not {NUM_ROWS}: {answered}")


def check_submit(model: str) -> None:
    """Run `submit` in the producer's image as the calling user; it writes into a folder of that user."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in.jsonl").write_text(lines(model, 3))
        service = ("--user", str(os.getuid()), "--volume", f"{folder}:/files", "producer")
        compose("run", "--rm", *service, "submit", "in.jsonl", "--wait", "-o", "out.jsonl")
        num_results = len((Path(folder) / "out.jsonl").read_text().splitlines())
    if num_results != 3:
        raise SystemExit(f"`submit` wrote {num_results} results instead of 3")


def main() -> None:
    """Build, run, kill, read, take down."""
    compose("build", "producer", "worker")
    with stack() as client:
        (model,) = {model.id for model in client.models.list()}
        batch = create_batch(client, model)
        before = poll(client, batch.id, 1)
        num_held = kill_worker()
        if before.status in ENDED or num_held == 0:
            raise SystemExit("the worker held no request when it was killed; raise NUM_ROWS")
        start("worker")
        check_rows(client, poll(client, batch.id, NUM_ROWS))
        check_submit(model)
    print(f"{NUM_ROWS} rows read; the killed worker held {num_held} requests")  # noqa: T201


if __name__ == "__main__":
    main()
