"""The delivery of webhooks: one try for a batch that has ended, and the time of the next try."""

import structlog

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle import LeasedBatch, with_lease
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.webhooks import Event, NotDelivered, NotWanted, Webhooks
from gristmill.producer.tenants import Tenants

log = structlog.get_logger()

RETRY_INTERVALS_S = (30, 120, 600, 1800, 3600, 2 * 3600, 6 * 3600)
"""Seconds between the 8 tries of a webhook: 10 hours in all."""


class Deliveries:
    """Calls the tenants' webhooks.

    Args:
        settings: The steward's settings.
    """

    def __init__(self, settings: StewardSettings) -> None:
        self._webhooks = Webhooks(settings.webhook_timeout_s, settings.allowed_hosts)

    async def deliver(self, store: BatchStore, batch: str) -> None:
        """Call the tenant's webhook for a batch that has ended, unless it is done."""

        async def step(leased: LeasedBatch) -> None:
            if leased.state.phase != "announce":
                return
            if await leased.run(self._is_done(store, leased.record)):
                await store.due.announced(leased.id)

        await with_lease(store, batch, step)

    async def _is_done(self, store: BatchStore, record: BatchRecord) -> bool:
        """Deliver the event; return False if it is to be tried again, after a delay that this sets."""
        tenant = await Tenants(store.queue.redis).get(record.tenant)
        if tenant is None or not tenant.webhook_url or not tenant.webhook_secret:
            return True
        event = Event.of(record)
        event_log = log.bind(batch=record.id, tenant=record.tenant, event_id=event.id)
        try:
            await self._webhooks.send(tenant.webhook_url, tenant.webhook_secret, event)
        except NotDelivered as error:
            num_tries = await store.records.count_webhook_try(record.id)
            if num_tries <= len(RETRY_INTERVALS_S):
                delay_s = RETRY_INTERVALS_S[num_tries - 1]
                await store.due.wake("webhooks", record.tenant, record.id, delay_s)
                event_log.warning("webhook.postponed", reason=str(error), delay_s=delay_s)
                return False
            event_log.error("webhook.given_up", reason=str(error))
        except NotWanted as error:
            event_log.error("webhook.given_up", reason=str(error))
        else:
            event_log.info("webhook.delivered")
        return True
