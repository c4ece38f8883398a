"""The gateway answers the calls that schemathesis makes from its OpenAPI page as the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gateways import RunningGateway

SCRIPT = "from schemathesis.cli import schemathesis; schemathesis()"
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance,status_code_conformance"


@pytest.mark.usefixtures("worker")
async def test_no_call_that_the_schema_allows_or_forbids_breaks_the_gateway(
    gateway: RunningGateway, key: str, tmp_path: Path
) -> None:
    import asyncio

    arguments = [
        "run", f"{gateway.url}/openapi.json", "--header", f"Authorization: Bearer {key}", "--checks", CHECKS,
        "--max-examples", "8", "--phases", "examples,coverage,fuzzing", "--request-timeout", "5",
        "--seed", "1", "--generation-database", "none", "--no-color", "--max-time", "20", "--no-shrink",
    ]  # fmt: skip
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True,
        cwd=tmp_path, env=os.environ, check=False, timeout=50,
    )  # fmt: skip
    (tmp_path / "report").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"[1-9][0-9]+ (?:generated|test cases)", done.stdout), done.stdout[-3000:]
