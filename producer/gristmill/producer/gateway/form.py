"""The form of an upload (multipart/form-data), parsed as it comes: a file never lies in memory or twice on disk."""

from collections.abc import Callable, Mapping
from typing import Protocol

from streaming_form_data import ParseFailedException, StreamingFormDataParser
from streaming_form_data.targets import BaseTarget, ValueTarget
from streaming_form_data.validators import MaxSizeValidator, ValidationError

from gristmill.producer.batches.upload import Upload
from gristmill.producer.gateway.errors import ApiError

MAX_FIELD_BYTES = 1024
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
"""OpenAI's bounds of `expires_after`."""


class Begin(Protocol):
    """Opens the upload once its name is known."""

    def __call__(self, filename: str, purpose: str, expires_after_s: int | None) -> Upload:
        """Return where the file's bytes go."""


class UploadForm:
    """Takes the bytes of a form and writes its file into an `Upload`.

    Args:
        content_type: Of the form; carries its boundary.
        begin: Called when the file's part begins.

    Raises:
        ApiError: It is no form.
    """

    def __init__(self, content_type: str, begin: Begin) -> None:
        self._begin = begin
        self._upload: Upload | None = None
        self._used_expiry_s: int | None = None
        self._purpose = _field()
        self._anchor, self._seconds = _field(), _field()
        try:
            self._parser = StreamingFormDataParser({"Content-Type": content_type})
        except (ParseFailedException, ValueError, KeyError):
            raise _bad_form("the body is no multipart/form-data with a boundary") from None
        self._file = _FileTarget(self._start, self._write)
        self._parser.register("file", self._file)
        self._parser.register("purpose", self._purpose)
        self._parser.register("expires_after[anchor]", self._anchor)
        self._parser.register("expires_after[seconds]", self._seconds)

    def feed(self, data: bytes) -> None:
        """Take the next bytes; blocks on the storage.

        Raises:
            ApiError: The form is wrong.
            InvalidRequest: The file is too large, or its purpose is not supported.
        """
        try:
            self._parser.data_received(data)
        except ParseFailedException as error:
            raise _bad_form(f"the form cannot be read: {error}") from None
        except UnicodeDecodeError:
            raise _bad_form("the name of a part is not UTF-8") from None
        except ValidationError:
            raise _bad_form(f"a field has more than {MAX_FIELD_BYTES:,} bytes") from None

    def finished(self) -> Upload:
        """Return the upload when all bytes are taken.

        Raises:
            ApiError: The file or its purpose is missing.
        """
        if self._upload is None:
            raise _bad_form("it has no file; send a part named file with a filename", "file")
        if not self._file.is_whole:
            raise _bad_form("it ends within its file", "file")
        if self._expires_after_s() != self._used_expiry_s:
            raise _bad_form("expires_after follows the file; send it before", "expires_after")
        if _text(self._purpose) != "batch":
            raise _bad_form("purpose is needed, and it is batch", "purpose")
        return self._upload

    def abort(self) -> None:
        """Throw away what was written; blocks on the storage."""
        if self._upload is not None:
            self._upload.abort()

    def _start(self, filename: str | None) -> None:
        if self._upload is not None:
            raise _bad_form("it has two files; send one a call", "file")
        purpose = _text(self._purpose) or "batch"  # it may follow; see `finished`
        self._used_expiry_s = self._expires_after_s()
        self._upload = self._begin(filename or "upload.jsonl", purpose, self._used_expiry_s)

    def _write(self, data: bytes) -> None:
        if self._upload is not None:
            self._upload.write(data)

    def _expires_after_s(self) -> int | None:
        anchor, seconds = _text(self._anchor), _text(self._seconds)
        if not anchor and not seconds:
            return None
        if anchor != "created_at" or not seconds.isascii() or not seconds.isdigit():
            message = (
                "expires_after has the anchor created_at and whole seconds, both before the file"
            )
            raise _bad_form(message, "expires_after")
        if not MIN_EXPIRY_S <= int(seconds) <= MAX_EXPIRY_S:
            message = (
                f"expires_after[seconds] is {seconds}; use {MIN_EXPIRY_S:,} to {MAX_EXPIRY_S:,}"
            )
            raise _bad_form(message, "expires_after")
        return int(seconds)


class _FileTarget(BaseTarget):  # type: ignore[misc]  # it has no types
    def __init__(self, start: Callable[[str | None], None], write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_start, self._on_data = start, write
        self.is_whole = False

    def on_start(self) -> None:
        self._on_start(self.multipart_filename)

    def on_data_received(self, chunk: bytes) -> None:
        self._on_data(chunk)

    def on_finish(self) -> None:
        self.is_whole = True


def _field() -> ValueTarget:
    return ValueTarget(MaxSizeValidator(MAX_FIELD_BYTES))


def _text(target: ValueTarget) -> str:
    value: bytes = target.value
    return value.decode(errors="replace").strip()


def _bad_form(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


SCHEMA: Mapping[str, object] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                    "expires_after[seconds]": {
                        "type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S,
                    },
                    "purpose": {"type": "string", "enum": ["batch"]},
                    "file": {"type": "string", "format": "binary"},
                },
            }
        }
    },
}  # fmt: skip
"""The form, for the OpenAPI page: it is read by hand."""
