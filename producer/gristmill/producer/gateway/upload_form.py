"""The form of an upload (multipart/form-data), parsed while it arrives.

The file goes straight to the storage. The gateway never has the whole file in memory or in a
temporary file.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from streaming_form_data import ParseFailedException, StreamingFormDataParser
from streaming_form_data.targets import BaseTarget, ValueTarget
from streaming_form_data.validators import MaxSizeValidator, ValidationError

from gristmill.producer.batches.stored_files import PURPOSES
from gristmill.producer.gateway.http_errors import ApiError

FORM_BYTES = 2**16
"""Most bytes of a form without its file. The parser keeps the head of a part in memory until it ends."""

MAX_FIELD_BYTES, MAX_NAME_CHARS = 1024, 255
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
"""OpenAI's bounds of `expires_after`."""


class FileFacts(NamedTuple):
    """The fields of a form that describe its file.

    Attributes:
        filename: Name of the file.
        expires_after_s: Seconds until the file is deleted; None for the gateway's default.
    """

    filename: str
    expires_after_s: int | None


class UploadForm:
    """Parses the bytes of a form and writes the bytes of its file.

    Args:
        content_type: Content-Type of the form, with its boundary.
        write: Callback for the bytes of the file; may block on the storage.

    Raises:
        ApiError: The content type is not that of a form.
    """

    def __init__(self, content_type: str, write: Callable[[bytes], None]) -> None:
        self._filename: str | None = None
        self._purpose = _field()
        self._anchor, self._seconds = _field(), _field()
        try:
            self._parser = StreamingFormDataParser({"Content-Type": content_type})
        except (ParseFailedException, ValueError, KeyError):
            raise _bad_form("the body is not multipart/form-data with a boundary") from None
        self._num_received = 0
        self._file = _FileTarget(self._start, write)
        self._parser.register("file", self._file)
        self._parser.register("purpose", self._purpose)
        self._parser.register("expires_after[anchor]", self._anchor)
        self._parser.register("expires_after[seconds]", self._seconds)

    def receive(self, data: bytes) -> None:
        """Parse the next bytes; blocks on the storage.

        Raises:
            ApiError: The form is malformed.
            InvalidRequest: The file is too large.
        """
        try:
            self._parser.data_received(data)
        except ParseFailedException as error:
            raise _bad_form(f"the form cannot be read: {error}") from None
        except UnicodeDecodeError:
            raise _bad_form("the name of a part is not UTF-8") from None
        except ValidationError:
            raise _bad_form(f"a field has more than {MAX_FIELD_BYTES:,} bytes") from None
        self._num_received += len(data)
        if self._num_received - self._file.num_bytes > FORM_BYTES:
            message = f"the form has more than {FORM_BYTES:,} bytes beside its file; leave out other parts"
            raise _bad_form(message)

    def finished(self) -> FileFacts:
        """Return the fields that describe the file, after the last bytes.

        Raises:
            ApiError: The file or its purpose is missing, or a field is invalid.
        """
        if self._filename is None:
            raise _bad_form("the form has no file; send a part named file with a filename", "file")
        if not self._file.is_complete:
            raise _bad_form("the form ends within its file; send it again", "file")
        if not _text(self._purpose):
            raise _bad_form(f"purpose is needed; use {', '.join(PURPOSES)}", "purpose")
        self._check_purpose()
        return FileFacts(self._filename, self._expires_after_s())

    def _start(self, filename: str | None) -> None:
        if self._filename is not None:
            raise _bad_form("the form has two files; send one file per call", "file")
        self._filename = filename or "upload.jsonl"
        if len(self._filename) > MAX_NAME_CHARS:
            raise _bad_form(f"the filename has more than {MAX_NAME_CHARS} characters", "file")
        self._check_purpose()  # refuse a wrong field that came first before taking the file
        if _text(self._anchor) and _text(self._seconds):
            self._expires_after_s()

    def _check_purpose(self) -> None:
        purpose = _text(self._purpose)
        if purpose and purpose not in PURPOSES:
            raise _bad_form(
                f"purpose {purpose!r} is not supported; use {', '.join(PURPOSES)}", "purpose"
            )

    def _expires_after_s(self) -> int | None:
        anchor, seconds = _text(self._anchor), _text(self._seconds)
        if not anchor and not seconds:
            return None
        if anchor != "created_at" or not seconds.isascii() or not seconds.isdigit():
            message = "expires_after needs the anchor created_at and whole seconds"
            raise _bad_form(message, "expires_after")
        if not MIN_EXPIRY_S <= int(seconds) <= MAX_EXPIRY_S:
            message = (
                f"expires_after[seconds] is {seconds}; use {MIN_EXPIRY_S:,} to {MAX_EXPIRY_S:,}"
            )
            raise _bad_form(message, "expires_after")
        return int(seconds)


class _FileTarget(BaseTarget):  # type: ignore[misc]  # the library has no types
    def __init__(self, start: Callable[[str | None], None], write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_start, self._on_data = start, write
        self.is_complete, self.num_bytes = False, 0

    def on_start(self) -> None:
        self._on_start(self.multipart_filename)

    def on_data_received(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        self._on_data(chunk)

    def on_finish(self) -> None:
        self.is_complete = True


def _field() -> ValueTarget:
    return ValueTarget(MaxSizeValidator(MAX_FIELD_BYTES))


def _text(target: ValueTarget) -> str:
    value: bytes = target.value
    return value.decode(errors="replace").strip()


def _bad_form(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


FORM_SCHEMA: Mapping[str, object] = {
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
"""The form's schema for the OpenAPI page. FastAPI does not know it, because `UploadForm` parses the
body."""
