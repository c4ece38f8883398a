"""`--template`: a Jinja file that renders the messages of a row, in Jinja's sandbox."""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gristmill.producer.tables.column_prompt import Message
from gristmill.producer.tables.row_chunks import json_value
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import one_line, shown

ROLES = ("system", "developer", "user", "assistant")
"""Roles that a message may have."""

ROW, MESSAGE = "row", "message"
"""Names in a template that are no columns: the whole row, and the block of a message."""

EXAMPLE = '{% call message("user") %}Classify: {{ text }}{% endcall %}'


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which `row.items` is the column of this name, not the method of a mapping."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return the value of a key before an attribute."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


_ENVIRONMENT = _Environment(undefined=StrictUndefined, autoescape=False)  # no HTML
_WITHOUT_FUNCTIONS = _Environment()  # so that Jinja tells also the names of its functions
_WITHOUT_FUNCTIONS.globals.clear()
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"default": json_value, "ensure_ascii": False}


class TemplatePrompt:
    """A template whose names are columns.

    Without a message block, its text is the user's message.

    Args:
        text: The template.

    Attributes:
        used: Columns that it names; a row with a null in one of them is not asked.
        functions: Names of Jinja's functions that it calls; a column of such a name would be hidden.
        has_whole_row: True if it reads `row`, which has all columns, also nulls.

    Raises:
        InvalidRequest: The template breaks a rule of Jinja, or of message blocks.
    """

    def __init__(self, text: str) -> None:
        try:
            tree = _ENVIRONMENT.parse(text)
            self._template = _ENVIRONMENT.from_string(text)
        except TemplateSyntaxError as error:
            raise InvalidRequest(
                f"--template line {error.lineno}: {error.message}; correct the template"
            ) from None
        found = meta.find_undeclared_variables(_WITHOUT_FUNCTIONS.parse(text))
        self.functions = found & set(_ENVIRONMENT.globals)
        names = found - self.functions
        self._has_blocks = MESSAGE in names
        if self._has_blocks:
            _check_blocks(tree)
        self.has_whole_row = ROW in names
        self.used = tuple(sorted(names - {ROW, MESSAGE}))

    def messages(self, row: Mapping[str, Any]) -> list[Message]:
        """Return the messages for a row.

        Raises:
            InvalidRequest: The template fails on the row, or leaves text outside of its blocks.
        """
        said: list[Message] = []
        rest = self._render(row, _message_block(said)).strip()
        if not self._has_blocks:
            return [{"role": "user", "content": rest}]
        if rest or not said:
            what = f"has the text {shown(rest)} outside of messages" if rest else "has no message"
            raise InvalidRequest(f"the template {what} for this row; write {EXAMPLE}")
        return said

    def text(self, row: Mapping[str, Any]) -> str:
        """Return the prompt for a row, for an endpoint without messages.

        Raises:
            InvalidRequest: The template has message blocks, or fails on the row.
        """
        if self._has_blocks:
            raise InvalidRequest(
                "the template has messages, and this endpoint takes one text; remove the message blocks"
            )
        return self._render(row, None).strip()

    def _render(self, row: Mapping[str, Any], message: Callable[..., str] | None) -> str:
        try:
            return self._template.render({**row, ROW: row, MESSAGE: message})
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise InvalidRequest(
                f"the template fails: {one_line(str(error), 300)}; correct the template or the row"
            ) from None


def _message_block(said: list[Message]) -> Callable[..., str]:
    """Return the function `message` of a template, which appends to a list."""

    def message(role: str, caller: Callable[[], str]) -> str:
        if role not in ROLES:
            raise TypeError(f"the role {role!r} is not known; use {', '.join(ROLES)}")
        said.append({"role": role, "content": str(caller()).strip()})
        return ""

    return message


def _check_blocks(tree: nodes.Template) -> None:
    """Refuse a use of the name `message` other than as a block; a column may have this name."""
    blocks = [block.call.node for block in tree.find_all(nodes.CallBlock)]
    names = [name for name in tree.find_all(nodes.Name) if name.name == MESSAGE]
    if len(names) != sum(isinstance(node, nodes.Name) and node.name == MESSAGE for node in blocks):
        raise InvalidRequest(
            f"--template uses 'message' other than as a block; write {EXAMPLE} for a message, and row.message"
            " for a column of this name"
        )
