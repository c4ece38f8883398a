"""`gristmill demo` with a wrong option: told at once, before anything is started."""

from pathlib import Path

import orjson
import pytest
from command_line import CommandLine
from rich.console import Console

from gristmill.local.demo.demo_answers import demo_answers
from gristmill.local.processes import free_port
from gristmill.producer.commands.answer_table import answer_table


@pytest.fixture
def shell(tmp_path: Path) -> CommandLine:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "file").write_text("precious")
    (folder / "in.csv").write_text("id,text\n1,a\n")
    (folder / "bad.jsonl").write_text('{"text": "a"}\n')
    return CommandLine("redis://nowhere", "q", folder)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--redis-url http://a", 2, "REDIS_URL has the scheme http"),
        ("--redis-url redis://127.0.0.1:PORT/0", 3, "Redis at redis://127.0.0.1:PORT/0 does not"),
        ("--cache file/cache", 2, "cannot write to file/cache: Not a directory; choose"),
        ("-o nowhere/out.jsonl", 2, "cannot write nowhere/out.jsonl: No such file"),
        ("--requests nothing.jsonl", 2, "'nothing.jsonl' does not exist"),
        ("--requests in.csv", 2, "the input is a CSV file; convert it"),
        ("--requests bad.jsonl", 2, "bad.jsonl: line 1: it has no prompt, messages or input"),
        ("--requests bad.jsonl -o bad.jsonl", 2, "bad.jsonl: line 1: it has no prompt"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_started(
    shell: CommandLine, arguments: str, code: int, message: str
) -> None:
    port = str(free_port())
    before = sorted(shell.folder.rglob("*"))
    options = ["--cache", "cache"] if "--cache" not in arguments else []
    done = shell.run("demo", *options, *arguments.replace("PORT", port).split())
    assert (done.code, done.out) == (code, ""), done.err
    assert message.replace("PORT", port) in done.err
    assert "Traceback" not in done.err
    assert "starting" not in done.err
    after = set(shell.folder.rglob("*")) - {shell.folder / "cache"}
    assert sorted(after) == before


def test_the_requests_are_not_overwritten_by_the_rows(shell: CommandLine) -> None:
    (shell.folder / "in.jsonl").write_text('{"prompt": "a"}\n')
    done = shell.run("demo", "--cache", "cache", "--requests", "in.jsonl", "-o", "in.jsonl")
    assert (done.code, "is the input itself" in done.err) == (2, True)
    assert (shell.folder / "in.jsonl").read_text() == '{"prompt": "a"}\n'


def test_answers_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    body = {"choices": [{"text": "[/INST] [red]"}], "usage": {"completion_tokens": 2}}
    row = {"custom_id": "1", "response": {"body": body}}
    for name, fields in (("in", {"prompt": "[/b]"}), ("out", row)):
        (tmp_path / name).write_bytes(orjson.dumps(fields))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(answer_table(demo_answers(tmp_path / "in", tmp_path / "out"), 8))
    assert "[/INST] [red]" in capture.get()
    assert "[/b]" in capture.get()
