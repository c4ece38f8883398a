"""The tokenizer and the chat template of a model: they count the prompt tokens of a request.

`transformers` would import torch, which takes seconds and much memory. So this module reads the same files:
`tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`. Chat templates are Jinja, as `transformers` runs
them (https://huggingface.co/docs/transformers/chat_templating_writing).
"""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import orjson
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from gristmill.shared.answers import list_in, mapping
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import one_line
from gristmill.shared.request import CHAT, COMPLETIONS, EMBEDDINGS, Request

_TEXT_FIELDS = {COMPLETIONS: "prompt", EMBEDDINGS: "input"}
"""Endpoint -> the field of its body that has the text."""

_GENERATION = re.compile(r"(\{%-?\s*)(end)?generation(\s*-?%\})")

_FAILURES = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class ModelTokenizer:
    """Counts the tokens of prompts as the engine does, without images.

    Args:
        source: Folder of a model, or its name on the Hugging Face hub.
        revision: Commit, tag or branch; None for the default.

    Raises:
        InvalidRequest: There is no `tokenizer.json`, or it cannot be read.
    """

    def __init__(self, source: str, revision: str | None = None) -> None:
        self.source = source
        path = _file(source, "tokenizer.json", revision)
        if path is None:
            raise InvalidRequest(
                f"{source} has no tokenizer.json that can be read; name a model folder, or a model of the hub, with"
                " --tokenizer"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001  # tokenizers raises no class of its own
            raise InvalidRequest(
                f"{path} is no tokenizer: {one_line(str(error), 200)}; name another one with --tokenizer"
            ) from None
        self._tokenizer.no_truncation()
        config = mapping(_json(_file(source, "tokenizer_config.json", revision)))
        self._special = _special_tokens(config)
        self._template = _chat_template(_file(source, "chat_template.jinja", revision), config)

    def prompt_tokens(self, request: Request, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of a request's prompt; None for an endpoint that it does not know.

        Args:
            request: The request.
            body: Its body, parsed.

        Raises:
            InvalidRequest: The model has no chat template, or it refuses the messages.
        """
        if request.endpoint == CHAT:
            text = self._chat(body)
            return len(
                self._tokenizer.encode(
                    text, add_special_tokens=bool(body.get("add_special_tokens"))
                )
            )
        if request.endpoint not in _TEXT_FIELDS:
            return None
        prompt = body.get(_TEXT_FIELDS[request.endpoint])
        has_special = body.get("add_special_tokens", True)
        return sum(self._length(part, bool(has_special)) for part in _parts(prompt))

    def _length(self, part: str | list[int], has_special: bool) -> int:
        if isinstance(part, list):
            return len(part)
        return len(self._tokenizer.encode(part, add_special_tokens=has_special))

    def _chat(self, body: Mapping[str, Any]) -> str:
        """Return the text of messages."""
        if self._template is None:
            raise InvalidRequest(f"{self.source} has no chat template, which messages need")
        given = {
            "add_generation_prompt": body.get("add_generation_prompt", True),
            "tools": body.get("tools"),
            "documents": body.get("documents"),
        }
        messages = [_with_text(message) for message in list_in(body.get("messages"))]
        names = self._special | given | dict(mapping(body.get("chat_template_kwargs")))
        try:
            return str(self._template.render(names | {"messages": messages}))
        except _FAILURES as error:
            raise InvalidRequest(
                f"the chat template of {self.source} refuses the messages: {one_line(str(error), 200)}"
            ) from None


def config_of(source: str, revision: str | None = None) -> Any:
    """Return the `config.json` of a model; None if it cannot be had."""
    return _json(_file(source, "config.json", revision))


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """Return the path of a file of a model; None if it cannot be had."""
    if Path(source).is_dir():
        path = Path(source, name)
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download  # half a second, for names alone

    try:
        return Path(hf_hub_download(source, name, revision=revision))
    except Exception:  # noqa: BLE001  # no such file, no such model, no network, a bad name: classes of many packages
        return None


def _json(path: Path | None) -> Any:
    try:
        return None if path is None else orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special tokens by the names that templates use, such as `bos_token`."""
    texts = {name: mapping(value).get("content", value) for name, value in config.items()}
    return {
        name: text
        for name, text in texts.items()
        if name.endswith("_token") and isinstance(text, str)
    }


def _chat_template(path: Path | None, config: Mapping[str, Any]) -> Any:
    """Return the compiled template, or None."""
    text = path.read_text() if path else config.get("chat_template")
    if isinstance(text, list):  # several templates, each with a name
        named = {mapping(each).get("name"): mapping(each).get("template") for each in text}
        text = named.get("default")
    if not isinstance(text, str):
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    try:
        return environment.from_string(_GENERATION.sub(_as_condition, text))
    except TemplateError as error:
        raise InvalidRequest(
            f"a chat template has an error: {one_line(str(error), 200)}; name another model with --tokenizer"
        ) from None


def _as_condition(found: re.Match[str]) -> str:
    """Return what does as much for the text as a tag of transformers that marks what a model has said."""
    return found[1] + ("endif" if found[2] else "if true") + found[3]


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Return JSON without the escapes of HTML that Jinja's own filter has."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005  # the local date, as transformers gives it


def _with_text(message: Any) -> Any:
    """Return a message whose parts are one text; parts that are no text are left out."""
    content = mapping(message).get("content")
    if not isinstance(content, list):
        return message
    texts = [mapping(part).get("text") for part in content]
    return {**message, "content": "\n".join(text for text in texts if isinstance(text, str))}


def _parts(prompt: Any) -> Iterable[str | list[int]]:
    """Return the prompts of a body: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt, list) and isinstance(prompt[0], int):
        return [prompt]
    return [part for part in list_in(prompt) if isinstance(part, str | list)]
