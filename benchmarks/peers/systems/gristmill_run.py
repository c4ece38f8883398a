"""Run a batch with `gristmill run`; its summary times the run, without the end of the worker."""

import json
import subprocess
import sys
from importlib.metadata import version

from peers.systems.report import Report, arguments, openai_answers

from gristmill.local.processes import die_with_parent

READY = "starting the worker and its engine: "
"""Beginning of the line with which the command ends the start. Earlier lines begin so too and end with `so far`."""


def main() -> None:
    source, target, argv = arguments()
    report, output = Report(), target.with_suffix(".jsonl")
    command = [sys.executable, "-m", "gristmill.shared.cli", "run", str(source), "-o", str(output)]
    process = subprocess.Popen(  # noqa: S603  # our own flags
        [*command, "--force", "--json", "--", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # one C call, no locks
    )
    for line in process.stderr or ():
        sys.stderr.write(line)
        if READY in line and "so far" not in line:
            report.is_ready()
    summary = json.loads(process.stdout.read()) if process.stdout else {}
    if process.wait():
        raise SystemExit(f"gristmill run ended with exit code {process.returncode}")
    lines = map(json.loads, output.read_text().splitlines())
    answers = openai_answers({line["custom_id"]: line["response"]["body"] for line in lines})
    report.write(target, answers, f"gristmill {version('gristmill')}", run_s=summary["elapsed_s"])


if __name__ == "__main__":
    main()
