"""`gristmill run` from a CSV to a Parquet on the true engine, killed in the middle and resumed."""

import csv
from pathlib import Path

import pandas as pd
import pytest
from command_line import ended
from own_runs import OwnRuns, all_gone, family_of

NUM_ROWS = 24


@pytest.mark.long
async def test_a_csv_becomes_a_parquet_although_the_run_is_killed(
    argv: list[str], tmp_path: Path
) -> None:
    shell = OwnRuns("", "", tmp_path, has_stub=False)
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *((n, f"hello {n}") for n in range(NUM_ROWS))])
    (tmp_path / "params.json").write_text('{"max_tokens": 60, "ignore_eos": true}')
    command = (
        *("run", "in.csv", "-o", "out.parquet", "--prompt", "{text}", "--params", "params.json"),
        *("--json", "--", *argv),
    )
    counted = shell.run(command[0], "--dry-run", *command[1:])
    assert (counted.code, counted.rows[0]["has_tokenizer"]) == (0, True), counted.err
    process = await shell.start(*command)
    await shell.until_written(process, 4)
    family = family_of(process)
    process.kill()
    await ended(process)
    num_written = shell.num_written()
    assert num_written < NUM_ROWS
    assert await all_gone(family)
    done = await shell.finish(*command)
    assert done.code == 0, done.err
    assert 0 < done.rows[0]["finished_earlier"] <= num_written
    frame = pd.read_parquet(tmp_path / "out.parquet")
    assert list(frame["id"]) == [str(number) for number in range(NUM_ROWS)]
    assert frame["answer"].str.len().min() > 0
    assert frame["prompt_tokens"].sum() == counted.rows[0]["prompt_tokens"]["value"]
    assert set(frame["output_tokens"]) == {60}
    assert set(frame["finish_reason"]) == {"length"}
