"""Say what made an answer: `made_by` of a result.

The runner calls `made_by` for each answer. The part that is the same for all answers is encoded once a start of the
engine. A name whose value is not known is left out.
"""

from http import HTTPStatus
from importlib.metadata import version

import orjson

from gristmill.shared.records import Record
from gristmill.worker.engine.bodies import seed_of
from gristmill.worker.engine.interface import EngineInfo, Response


class Provenance:
    """What makes the answers of one worker.

    Args:
        info: Description of the started engine.
    """

    def __init__(self, info: EngineInfo) -> None:
        self._models: tuple[str, ...] = ()
        self._same = b""
        self.note_start(info)

    def note_start(self, info: EngineInfo) -> None:
        """Describe the engine anew, because a server may have other weights after its restart."""
        self._models = info.models
        facts = {"weights": info.weights, "engine": info.engine}
        known = {name: value for name, value in facts.items() if value}
        self._same = orjson.dumps(known | {"worker": f"gristmill {version('gristmill')}"})[1:-1]

    def made_by(self, record: Record, response: Response) -> bytes:
        """Return the JSON object for one answer: model, weights, engine, worker and seed.

        Args:
            record: The request. Its seed counts if the engine did not refuse the request.
            response: The answer. If it names no model, the request's model counts, if it is served.
        """
        model = self.model_of(record, response)
        seed = seed_of(record.body) if response.status < HTTPStatus.BAD_REQUEST else None
        named = b'"model":%s,' % orjson.dumps(model) if model else b""
        seeded = b"" if seed is None else b',"seed":%d' % seed
        return b"{%s%s%s}" % (named, self._same, seeded)

    def model_of(self, record: Record, response: Response) -> str:
        """Return the served model that answered; "" if it is not known. The arguments are those of `made_by`."""
        return response.model or self._asked_for(record)

    def _asked_for(self, record: Record) -> str:
        """Return the served model that the request names; the base model if it names none."""
        model = record.model or next(iter(self._models), "")
        return model if model in self._models else ""
