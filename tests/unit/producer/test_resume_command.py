import pytest

from gristmill.producer.commands.resume import resume_command


@pytest.mark.parametrize(
    ("arguments", "options", "command"),
    [
        (
            ["submit", "my file", "--wait", "-o", "out", "--force"],
            {"has_output": True},
            "gristmill submit 'my file' --wait -o out",
        ),
        (
            ["submit", "f", "--wait"],
            {"has_output": False},
            "gristmill submit f --wait --run-name R",
        ),
        (
            ["submit", "f", "--run-name=R", "--json"],
            {"has_output": False, "is_collecting": True},
            "gristmill submit f --run-name=R --wait -o OUT.jsonl",
        ),
        (
            ["submit", "f", "--redis-url=redis://me:secret@host:1/0", "--run-name", "R"],
            {"has_output": False},
            'gristmill submit f --redis-url="$REDIS_URL" --run-name R',
        ),
    ],
)
def test_the_command_goes_on_with_the_run_and_repeats_no_password(
    arguments: list[str], options: dict[str, bool], command: str
) -> None:
    assert resume_command(arguments, "R", **options) == command
