"""Call a gateway by unmodified clients, each in a few ways; print the answers as JSON.

`test_openai_clients.py` runs it in an environment that has the clients. Its arguments are the gateway's base URL and
the model.
"""

import json
import sys
from typing import Any, Literal

import instructor
import litellm
from instructor.dsl.partial import PartialLiteralMixin
from langchain_openai import ChatOpenAI
from openai import APIStatusError, OpenAI
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
MESSAGES: Any = [{"role": "user", "content": "hello"}]
IMAGE: Any = [
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}],
    }
]


class Place(BaseModel):
    """A town."""

    city: Literal["Oslo", "Rome"]
    ok: bool


class GrowingPlace(Place, PartialLiteralMixin):  # type: ignore[misc]  # the checks have no instructor
    """A town whose parts come one by one; the mixin leaves out a literal that is not whole yet."""


TOOL: Any = {
    "type": "function",
    "function": {"name": "look_up", "parameters": Place.model_json_schema()},
}
NAMED: Any = {"type": "function", "function": {"name": "look_up"}}
"""One call only: told that it must call some tool, a random model goes on calling."""

openai = OpenAI(base_url=URL, api_key="any", max_retries=0)
langchain = ChatOpenAI(
    base_url=URL, api_key="any", model=MODEL, max_tokens=1000, temperature=0, max_retries=0
)
structured = instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA)
called = instructor.from_openai(openai, mode=instructor.Mode.TOOLS)


def chat(**fields: Any) -> Any:
    fields = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1000, "temperature": 0} | fields
    return openai.chat.completions.create(**fields).choices[0].message


def lite(**fields: Any) -> Any:
    common = {
        "model": f"openai/{MODEL}",
        "api_base": URL,
        "api_key": "any",
        "messages": MESSAGES,
        "max_tokens": 1000,
        "temperature": 0,
    }
    return litellm.completion(**common | fields)


def streams() -> dict[str, list[str]]:
    """Return texts that came as a stream, each after the same text in one piece."""
    fields: Any = {"max_tokens": 8}
    chunks = lite(stream=True, **fields)
    return {
        "langchain": [
            str(langchain.invoke("hello", **fields).content),
            "".join(str(chunk.content) for chunk in langchain.stream("hello", **fields)),
        ],
        "litellm": [
            lite(**fields).choices[0].message.content,
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        ],
    }


def partial_places() -> list[Any]:
    """Return the objects of instructor that grow while the answer comes."""
    fields: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1000, "temperature": 0}
    return list(structured.create_partial(response_model=GrowingPlace, max_retries=0, **fields))


def refused(**fields: Any) -> int:
    try:
        chat(**fields)
    except APIStatusError as error:
        return error.status_code
    return 200


growing = partial_places()
answers: dict[str, Any] = {
    "streams": streams(),
    "num_partial": len(growing),
    "models": [model.id for model in openai.models.list()],
    "texts": [
        isinstance(text, str) and text != "" for text in (
            chat().content,
            openai.completions.create(model=MODEL, prompt="hello", max_tokens=5, temperature=0).choices[0].text,
            openai.responses.create(model=MODEL, input="hello", max_output_tokens=5, temperature=0).output_text,
            langchain.invoke("hello").content,
            lite().choices[0].message.content,
        )
    ],
    "structured": [
        Place.model_validate(place).model_dump() for place in (
            openai.chat.completions.parse(model=MODEL, messages=MESSAGES, max_tokens=1000, temperature=0, response_format=Place).choices[0].message.parsed,
            openai.responses.parse(model=MODEL, input="hello", max_output_tokens=1000, temperature=0, text_format=Place).output_parsed,
            langchain.with_structured_output(Place, method="json_schema").invoke("hello"),
            Place.model_validate_json(lite(response_format=Place).choices[0].message.content),
            structured.create(model=MODEL, messages=MESSAGES, max_tokens=1000, temperature=0, response_model=Place, max_retries=0),
            growing[-1].model_dump(),
        )
    ],
    "tools": [
        Place.model_validate(arguments).model_dump() for arguments in (
            json.loads(chat(tools=[TOOL], tool_choice=NAMED).tool_calls[0].function.arguments),
            langchain.bind_tools([Place], tool_choice="Place").invoke("hello").tool_calls[0]["args"],
            json.loads(lite(tools=[TOOL], tool_choice=NAMED).choices[0].message.tool_calls[0].function.arguments),
            called.create(model=MODEL, messages=MESSAGES, max_tokens=1000, temperature=0, response_model=Place, max_retries=0),
        )
    ],
    "refused": [refused(messages=IMAGE), refused(model="nobody"), refused(temperature=-1)],
}  # fmt: skip
sys.stdout.write(json.dumps(answers))
