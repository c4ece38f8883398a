"""The settings that say which queue has which model; the gateway and `gristmill batch` read them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from gristmill.producer.batches.settings import BatchSettings


def _names(value: Any) -> Any:
    """Read `queue,queue`."""
    if not isinstance(value, str):
        return value
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _models(value: Any) -> Any:
    """Read `model=queue,model=queue`; the name of a model may have a `=`, that of a queue has none."""
    if not isinstance(value, str):
        return value
    pairs = [each.strip().rpartition("=") for each in value.split(",") if each.strip()]
    if not all(model and queue for model, _, queue in pairs):
        raise ValueError("write model=queue,model=queue")
    return {model: queue for model, _, queue in pairs}


class ModelSettings(BatchSettings):
    """The queues of a gateway, and the models that may have no worker."""

    gateway_queues: Annotated[
        tuple[str, ...],
        NoDecode,
        BeforeValidator(_names),
        Field(
            description="further queues that the gateway serves, separated by commas. Files and batches lie in `GRISTMILL_QUEUE`, and requests without a model go there. `gristmill batch` reads it too"
        ),
    ] = ()
    gateway_models: Annotated[
        Mapping[str, str],
        NoDecode,
        BeforeValidator(_models),
        Field(
            description="models that may have no worker, and their queues: `model=queue,model=queue`. They are listed, and their requests wait. `gristmill batch` reads it too"
        ),
    ] = {}

    @property
    def queues(self) -> Sequence[str]:
        """Names of all queues that the gateway serves; the first has the files and batches."""
        return list(dict.fromkeys((self.queue, *self.gateway_queues)))

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        for model, queue in self.gateway_models.items():
            if queue not in self.queues:
                raise ValueError(
                    f"GRISTMILL_GATEWAY_MODELS has {model}={queue}, and the gateway serves no queue {queue!r}; add it to"
                    " GRISTMILL_GATEWAY_QUEUES"
                )
        return self
