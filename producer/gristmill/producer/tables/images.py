"""`--image`: the image of a row, as a URL or as bytes."""

import base64
from collections.abc import Mapping
from typing import Any

from gristmill.producer.tables.column_prompt import Message
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.media import host_of
from gristmill.shared.one_line import shown

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
"""First bytes of an image -> its type."""


def image_url(column: str, value: Any) -> str:
    """Return the URL of an image: the value itself, or its bytes as a `data:` URL.

    Args:
        column: Column of the value.
        value: A URL, the bytes of an image, or a record of `datasets` with `bytes` or a URL in `path`.

    Raises:
        InvalidRequest: It is neither, or a URL that no media may have.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return f"data:{_media_type(column, value)};base64,{base64.b64encode(value).decode()}"
    if not isinstance(value, str):
        raise InvalidRequest(
            f"column {column!r} is {type(value).__name__}; an image is a URL, or the bytes of a file"
        )
    try:
        host_of(value, "")
    except InvalidRequest as error:
        raise InvalidRequest(f"column {column!r}: {error.reason}") from None
    return value


def with_image(messages: list[Message], url: str) -> list[Message]:
    """Return messages with an image before the text of the last one of the user.

    Raises:
        InvalidRequest: There is no message of the user.
    """
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message["role"] == "user":
            parts = [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": message["content"]},
            ]
            return [*messages[:index], message | {"content": parts}, *messages[index + 1 :]]
    raise InvalidRequest("the template has no message of the user for the image; add one")


def _media_type(column: str, data: bytes) -> str:
    for signature, kind in _SIGNATURES:
        if data.startswith(signature):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise InvalidRequest(
        f"column {column!r} has {len(data):,} bytes that begin with {shown(data[:8])}, no known image;"
        " use PNG, JPEG, GIF, WebP, BMP or TIFF"
    )
