"""Test that a failure's kind names its status and its error type, and never text of a message."""

import orjson
import pytest

from gristmill.worker.engine.interface import Response
from gristmill.worker.engine.refusals import bounded, refusal, too_long
from gristmill.worker.failures import Failure, failure_of_answer, failure_of_error


def answer(status: int, error: object) -> Response:
    return Response(status, orjson.dumps(error))


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, {"error": {"type": "InternalServerError", "code": 500}}, "500 InternalServerError"),
        (503, {"error": {"type": "overloaded", "code": "busy"}}, "503 overloaded busy"),
        (400, {"object": "error", "type": "BadRequestError"}, "400 BadRequestError"),
        (400, {"error": {"type": "request 17 is too long", "code": "e-17"}}, "400"),
        (500, {"error": "no object"}, "500"),
        (500, ["no object"], "500"),
        (422, {"detail": "x"}, "422"),
    ],
)
def test_kind_is_status_type_and_code(status: int, body: object, kind: str) -> None:
    failure = failure_of_answer(answer(status, body))
    assert failure is not None
    assert failure.kind == kind


@pytest.mark.parametrize(
    ("status", "may_be_own"), [(400, True), (404, True), (401, False), (500, False), (501, True)]
)
def test_which_answers_may_be_the_requests_own(status: int, may_be_own: bool) -> None:
    failure = failure_of_answer(answer(status, {"error": {"message": "no  space\nleft"}}))
    assert failure is not None
    assert failure.may_be_own is may_be_own
    assert failure.message == ("" if may_be_own else "no space left")


def test_body_that_cannot_be_read_still_fails() -> None:
    failure = failure_of_answer(Response(500, b"<html>"))
    assert failure == Failure("500", may_be_own=False, message="")


def test_success_is_no_failure() -> None:
    assert failure_of_answer(Response(200, b"{}")) is None


@pytest.mark.parametrize(
    "refused",
    [
        refusal("/v1/none", b"{}", ["/v1/completions"], 256),
        refusal("/v1/completions", b'{"stream":true}', ["/v1/completions"], 256),
        too_long(1.0),
        bounded(Response(200, b"12345"), 4),
    ],
)
def test_refusals_of_the_worker_tell_nothing_of_the_engine(refused: Response) -> None:
    assert refused.status >= 400
    assert failure_of_answer(refused) is None


def test_error_of_the_worker_is_named_by_its_class() -> None:
    failure = failure_of_error("worker_error", OSError(28, "No space left on device"))
    assert failure.kind == "worker_error OSError"
    assert failure.message == "[Errno 28] No space left on device"
    assert not failure.may_be_own
