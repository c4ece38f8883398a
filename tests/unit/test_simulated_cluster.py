"""The rules of HPA, KEDA and ReplicaSet in the simulated cluster, which docs/autoscaling.md relies on."""

from simulated_cluster import COOLDOWN_S, HPA_S, KEDA_S, STABLE_S, START_S, Autoscaler, Deployment


def looks(scaler: Autoscaler, value: float, first_s: float, last_s: float) -> list[int]:
    """Replicas after each look, every 15 s."""
    moments = range(int(first_s), int(last_s) + 1, int(HPA_S))
    return [scaler.replicas(value, float(moment)) for moment in moments]


def test_work_wakes_one_pod_and_then_as_many_as_it_needs() -> None:
    scaler = Autoscaler(target=100, max_pods=8)
    assert looks(scaler, 0, 0, 60) == [0] * 5
    assert looks(scaler, 1000, 90, 135) == [5, 8, 8, 8], (
        "4 pods a look at first, then twice as many"
    )


def test_pods_leave_only_after_the_largest_wish_of_five_minutes() -> None:
    scaler = Autoscaler(target=100, max_pods=8)
    looks(scaler, 400, 0, 60)
    assert set(looks(scaler, 100, 75, 60 + STABLE_S)) == {4}
    assert scaler.replicas(100, 60 + STABLE_S + 2 * HPA_S) == 1


def test_the_last_pod_leaves_after_the_cooldown_without_work() -> None:
    scaler = Autoscaler(target=100, max_pods=8)
    looks(scaler, 50, 0, 60)
    assert looks(scaler, 0, 75, 60 + COOLDOWN_S)[-1] == 1
    assert scaler.replicas(0, 60 + COOLDOWN_S + KEDA_S) == 0


def test_a_small_deviation_changes_nothing() -> None:
    scaler = Autoscaler(target=100, max_pods=8)
    looks(scaler, 400, 0, 60)
    assert scaler.replicas(439, 75) == 4
    assert scaler.replicas(441, 90) == 5


def test_the_idle_pod_leaves_first_and_a_draining_pod_keeps_its_card() -> None:
    deployment = Deployment(num_cards=2, drain_s=600, has_cost=True)
    deployment.scale(2, 0)
    deployment.advance(0)
    deployment.advance(START_S)
    busy, idle = deployment.ready
    busy.num_running = 3
    deployment.scale(1, START_S)
    assert idle.is_stopping
    assert deployment.advance(START_S) == [idle]
    deployment.scale(0, START_S)
    deployment.scale(2, START_S)
    assert deployment.advance(START_S + 5) == []
    waiting = [pod for pod in deployment.pods if pod.card_s is None]
    assert len(waiting) == 1, "one card is free, the other drains"
    assert deployment.advance(START_S + 600) == [busy]
