"""Test whose requests a braked worker tries."""

from types import SimpleNamespace
from typing import Any

from gristmill.worker.failures import Failure
from gristmill.worker.liveness import Liveness
from gristmill.worker.worker_brake import WorkerBrake

BROKEN = Failure("500 NotImplementedError", may_be_own=False, message="")


def a_run(tenant: str) -> Any:
    record = SimpleNamespace(tenant=tenant, batch="", endpoint="/v1/completions", model="m")
    return SimpleNamespace(
        id=f"{tenant}-1", queue="q", record=record, claimed_at=1e9, is_held=False
    )


def test_each_tenant_has_a_try_before_one_has_a_second() -> None:
    liveness = Liveness(15.0, 15.0, 15.0)
    brake = WorkerBrake(1.0, 60.0, liveness)
    for _ in range(20):
        brake.spares(a_run("bad"), BROKEN)
    assert brake.is_braked
    tried = []
    for tenant in ("bad", "ill", "bad", "ill"):
        tried.append(list(brake.tried_tenants))
        request = a_run(tenant)
        brake.begin_try(request)
        brake.spares(request, BROKEN)
    assert tried == [[], ["bad"], ["bad", "ill"], ["bad"]]
    request = a_run("good")
    brake.begin_try(request)
    brake.spares(request, None)
    assert (liveness.brake, list(brake.tried_tenants)) == (None, [])
