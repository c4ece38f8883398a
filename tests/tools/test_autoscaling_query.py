"""The query of the ScaledObjects in k8s/examples/two-models, on series of every state of a queue. Needs promtool."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCALED = [
    item
    for item in yaml.safe_load_all((ROOT / "k8s/examples/two-models/autoscaling.yaml").read_text())
    if item
]
QUERIES = {
    item["metadata"]["name"].rpartition("-")[2]: item["spec"]["triggers"][0]["metadata"]["query"]
    for item in SCALED
}

pytestmark = [
    pytest.mark.tools,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on the PATH"),
]


def series(queue: str, **numbers: int) -> list[dict[str, str]]:
    """Series that two gateways export of a queue; other states and queues must not count."""
    numbers = {
        "queued": 0,
        "paused": 0,
        "in_flight": 0,
        "inbox": 0,
        "delayed": 7,
        "dead": 9,
    } | numbers
    tokens = {state: numbers.pop(f"{state}_tokens", 0) for state in ("queued", "in_flight")}
    named = [(queue, "requests", state, number) for state, number in numbers.items()]
    named += [(queue, "tokens", state, number) for state, number in tokens.items()]
    named += [("other", "tokens", "queued", 10**9)]
    return [
        {
            "series": f'gristmill_queue_{name}{{queue="{of}",state="{state}",instance="{gateway}"}}',
            "values": str(number),
        }
        for of, name, state, number in named
        for gateway in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("numbers", "seconds"),
    [
        ({}, 0),
        ({"queued": 10, "queued_tokens": 900_000}, 90),
        ({"in_flight": 5, "in_flight_tokens": 50_000}, 5),
        ({"queued": 1, "queued_tokens": 10_000, "in_flight": 1, "in_flight_tokens": 10_000}, 2),
        ({"paused": 10, "queued_tokens": 900_000}, 0),
        ({"queued": 5, "paused": 5, "queued_tokens": 900_000}, 45),
        ({"inbox": 3}, 3),
        (None, None),
    ],
    ids=["empty", "queued", "in flight", "both", "paused", "half paused", "inbox", "no series"],
)
def test_the_query_counts_the_work_that_a_worker_could_do(
    numbers: dict[str, int] | None, seconds: int | None, tmp_path: Path
) -> None:
    check = {
        "rule_files": [],
        "tests": [
            {
                "interval": "1m",
                "input_series": [] if numbers is None else series("small", **numbers),
                "promql_expr_test": [
                    {
                        "expr": QUERIES["small"],
                        "eval_time": "0m",
                        "exp_samples": []
                        if seconds is None
                        else [{"labels": "{}", "value": seconds}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "check.yaml").write_text(json.dumps(check))
    done = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "check.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_queues_have_the_same_query() -> None:
    """But for the name of the queue and the pace of a worker."""
    assert QUERIES["large"].replace('"large"', '"small"').replace("4000", "10000") == QUERIES["small"]  # fmt: skip
