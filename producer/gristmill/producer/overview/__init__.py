"""Read what operators watch: queues with their workers, batches, dead letters, tenants, one request.

The gateway's page, `gristmill top` and `gristmill queue stats` show it. Nothing here writes to Redis or knows HTTP.
Each function takes few calls of Redis, and each call is bounded.

    queue_overview    the work of a queue, and its workers
    dead_overview     dead letters, newest first, without the bytes of large ones
    batch_overview    batches of all tenants, newest first, a page at a time
    tenant_overview   tenants with their load and what they used today
    request_trail     one request, from its submit to its end
    figures           numbers, durations and moments as text
"""

from gristmill.producer.overview.batch_overview import (
    BatchPage,
    BatchView,
    read_batch,
    read_batches,
)
from gristmill.producer.overview.dead_overview import DeadPage, DeadView, read_dead
from gristmill.producer.overview.queue_overview import QueueView, WorkerView, read_queue
from gristmill.producer.overview.request_trail import Trail, TrailStep, read_trail
from gristmill.producer.overview.tenant_overview import (
    TenantPage,
    TenantView,
    read_tenants,
    tenant_names,
)

__all__ = [
    "BatchPage",
    "BatchView",
    "DeadPage",
    "DeadView",
    "QueueView",
    "TenantPage",
    "TenantView",
    "Trail",
    "TrailStep",
    "WorkerView",
    "read_batch",
    "read_batches",
    "read_dead",
    "read_queue",
    "read_tenants",
    "read_trail",
    "tenant_names",
]
