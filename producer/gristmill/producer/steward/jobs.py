"""The steward's jobs, and the short names by which RQ may call them."""

import structlog

from gristmill.producer.batches.batch_store import BatchStore
from gristmill.producer.batches.lifecycle import advance
from gristmill.producer.batches.objects import BatchRecord
from gristmill.producer.steward.job_registry import JobCall, JobRegistry, TryAgain
from gristmill.producer.steward.settings import StewardSettings
from gristmill.producer.steward.time_slice import TimeSlice
from gristmill.producer.steward.webhooks import Event, NotDelivered, NotWanted, Webhooks
from gristmill.producer.tenants import Tenants
from gristmill.shared.errors import NotFound

log = structlog.get_logger()


def steward_jobs(settings: StewardSettings) -> JobRegistry:
    """Return the registry of all jobs.

    A new job needs a name here and a method in `rq_queue.py` that enqueues it.
    """
    time_slice = TimeSlice()
    jobs = Jobs(settings, time_slice)
    functions = {
        # one function under three names, which `rq info` shows
        "validate": jobs.advance,
        "execute": jobs.advance,
        "finalize": jobs.advance,
        "announce": jobs.announce,
        "sweep": jobs.sweep,
    }
    return JobRegistry(time_slice, functions)


class Jobs:
    """The functions of the jobs.

    Args:
        settings: The steward's settings.
        time_slice: Limits the time of each job.
    """

    def __init__(self, settings: StewardSettings, time_slice: TimeSlice) -> None:
        self._settings = settings
        self._time_slice = time_slice
        self._webhooks = Webhooks(settings.webhook_timeout_s, settings.allowed_hosts)

    async def advance(self, call: JobCall) -> None:
        """Work on a batch for one time slice."""
        async with BatchStore.from_settings(self._settings) as store:
            await advance(store, call.batch, self._time_slice.may_go_on)

    async def sweep(self, call: JobCall) -> None:
        """Delete expired files."""
        async with BatchStore.from_settings(self._settings) as store:
            await store.files.delete_expired()

    async def announce(self, call: JobCall) -> None:
        """Call the tenant's webhook for a batch that has ended, unless it has been delivered.

        Raises:
            TryAgain: The receiver did not accept the event.
        """
        async with BatchStore.from_settings(self._settings) as store:
            try:
                state = await store.records.state(call.batch)
            except NotFound:
                return
            if state.phase == "announce":
                await self._deliver(store, state.record, call)
                await store.records.mark_announced(call.batch)

    async def _deliver(self, store: BatchStore, record: BatchRecord, call: JobCall) -> None:
        tenant = await Tenants(store.queue).get(record.tenant)
        if tenant is None or not tenant.webhook_url or not tenant.webhook_secret:
            return
        event = Event.of(record)
        event_log = log.bind(batch=record.id, tenant=record.tenant, event_id=event.id)
        try:
            await self._webhooks.send(tenant.webhook_url, tenant.webhook_secret, event)
        except (NotDelivered, NotWanted) as error:
            if isinstance(error, NotDelivered) and not call.is_last_try:
                raise TryAgain(str(error)) from None
            event_log.error("webhook.given_up", reason=str(error))
        else:
            event_log.info("webhook.delivered")
