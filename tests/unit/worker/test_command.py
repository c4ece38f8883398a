"""`gristmill worker`: what is said when vLLM's flags stand where the worker's own belong."""

from click.testing import CliRunner

from gristmill.worker.commands import worker


def test_flags_of_vllm_before_the_dashes_are_shown_in_their_place() -> None:
    arguments = ["--queue", "q", "--model", "some/model", "--api-key=secret"]
    ended = CliRunner().invoke(worker, arguments)
    assert ended.exit_code == 2
    assert "--model is no option of the worker" in ended.output
    assert "gristmill worker -- --model some/model '--api-key=***'" in ended.output
