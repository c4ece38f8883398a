"""Each object of the API has every field that the type of OpenAI's client requires, with a value of its type."""

from typing import Any

import pytest
from openai.pagination import SyncCursorPage
from openai.types import Batch, FileDeleted, FileObject, Model
from pydantic import BaseModel

from gristmill.producer.batches.objects import (
    FINAL_STATUSES,
    BatchError,
    BatchErrors,
    BatchRecord,
    FileRecord,
    page,
    public_fields,
)
from gristmill.producer.gateway.routes_files import DeletedFile
from gristmill.producer.gateway.routes_models import Model as ServedModel

BATCH = BatchRecord(
    id="batch_1", tenant="t", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
    created_at=1, expires_at=2,
)  # fmt: skip
ERRORS = BatchErrors(data=(BatchError(code="empty_file", message="the file has no requests"),))
FAILED = BATCH.model_copy(update={"status": "failed", "failed_at": 2, "errors": ERRORS})
FILE = FileRecord(
    id="file-1", bytes=1, created_at=1, filename="in.jsonl", purpose="batch", tenant="t", path="p"
)


@pytest.mark.parametrize(
    ("of_client", "fields"),
    [
        (Batch, public_fields(BATCH)),
        (Batch, public_fields(FAILED)),
        *((Batch, public_fields(BATCH) | {"status": status}) for status in FINAL_STATUSES),
        (FileObject, public_fields(FILE)),
        (FileDeleted, DeletedFile(id="file-1").model_dump()),
        (Model, ServedModel(id="m", created=1).model_dump()),
        (SyncCursorPage[Batch], page([BATCH], 1).model_dump()),
        (SyncCursorPage[FileObject], page([FILE], 1).model_dump()),
    ],
)
def test_an_object_is_whole_for_openais_client(
    of_client: type[BaseModel], fields: dict[str, Any]
) -> None:
    read = of_client.model_validate(fields)
    assert of_client.model_validate(read.model_dump()) == read


def test_the_usage_of_a_new_batch_has_its_details() -> None:
    usage = Batch.model_validate(public_fields(BATCH)).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == 0
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_a_record_of_an_earlier_version_has_usage_without_details() -> None:
    fields = BATCH.model_dump()
    fields["usage"] = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    usage = BatchRecord.model_validate(fields).usage
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (5, 0)
