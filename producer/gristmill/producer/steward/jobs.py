"""What the steward does, by the short names that stand in Redis: the allow-list."""

from collections.abc import Mapping

import structlog

from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.batches.service import Batches
from gristmill.producer.batches.sweep import sweep
from gristmill.producer.steward.allowed import Call
from gristmill.producer.steward.runner import Function, TryAgain
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.turn import Turn
from gristmill.producer.steward.webhooks import Event, NotDelivered, NotWanted, Webhooks
from gristmill.producer.tenants import Tenants
from gristmill.shared.errors import NotFound

log = structlog.get_logger()


class Jobs:
    """The functions of the steward's jobs.

    Args:
        settings: Of this steward.
        turn: How long each may run.
    """

    def __init__(self, settings: StewardSettings, turn: Turn) -> None:
        self._settings = settings
        self._turn = turn
        self._webhooks = Webhooks(settings.webhook_timeout_s, settings.allowed_hosts)

    @property
    def functions(self) -> Mapping[str, Function]:
        """The allow-list; validate, feed and finalize differ only in what `rq info` shows."""
        return {
            "validate": self.advance,
            "feed": self.advance,
            "finalize": self.advance,
            "announce": self.announce,
            "sweep": self.sweep,
        }

    async def advance(self, call: Call) -> None:
        """Work on a batch for a slice."""
        async with Batches.from_settings(self._settings) as batches:
            await advance(batches, call.batch, self._turn.may_go_on)

    async def sweep(self, call: Call) -> None:
        """Delete what has expired."""
        async with Batches.from_settings(self._settings) as batches:
            await sweep(batches)

    async def announce(self, call: Call) -> None:
        """Tell a batch's end to its tenant's webhook, if there is one and it was not told.

        Raises:
            TryAgain: The receiver did not take it.
        """
        async with Batches.from_settings(self._settings) as batches:
            try:
                state = await batches.registry.state(call.batch)
            except NotFound:
                return
            if state.phase == "announce":
                await self._tell(batches, state.record, call)
                await batches.registry.mark_announced(call.batch)

    async def _tell(self, batches: Batches, record: BatchRecord, call: Call) -> None:
        tenant = await Tenants(batches.queue).get(record.tenant)
        if tenant is None or not tenant.webhook_url or not tenant.webhook_secret:
            return
        event = Event.of(record)
        told = log.bind(batch=record.id, tenant=record.tenant, event_id=event.id)
        try:
            await self._webhooks.send(tenant.webhook_url, tenant.webhook_secret, event)
        except (NotDelivered, NotWanted) as error:
            if isinstance(error, NotDelivered) and not call.is_last_try:
                raise TryAgain(str(error)) from None
            told.error("webhook.given_up", reason=str(error))
        else:
            told.info("webhook.delivered")
