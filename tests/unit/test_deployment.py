"""What the manifests, the Compose file and the images must agree on, with each other and with the settings."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from servers import answers, own_address

from gristmill.local.processes import free_port
from gristmill.local.redis_server import running_server
from gristmill.producer.gateway.settings import GatewaySettings
from gristmill.producer.steward.settings import StewardSettings
from gristmill.shared.connection import connect
from gristmill.shared.request import CHAT
from gristmill.shared.request_json import request_from_json
from gristmill.worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted(
    path
    for folder in ("base", "base/worker", "batches", "batches/steward", "examples")
    for path in (ROOT / "k8s" / folder).glob("*.yaml")
)
DOCKERFILES = [ROOT / "worker" / "Dockerfile", ROOT / "producer" / "Dockerfile"]
WORKERS = ["worker", "worker-gpu"]


def objects(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects of a YAML stream by kind and name."""
    found = (item for item in yaml.safe_load_all(text) if item and "metadata" in item)
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


BASE = objects("\n---\n".join(path.read_text() for path in MANIFESTS))
CONFIG = BASE["ConfigMap", "gristmill"]["data"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def pod_specs() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{kind}/{name}", item["spec"]["template"]["spec"])
        for (kind, name), item in BASE.items()
        if "template" in item.get("spec", {})
    ]


def worker_pod(items: dict[tuple[str, str], dict[str, Any]] = BASE) -> dict[str, Any]:
    spec: dict[str, Any] = items["Deployment", "gristmill-worker"]["spec"]["template"]["spec"]
    return spec


def redis_options() -> dict[str, str]:
    lines = (ROOT / "k8s/base/redis.conf").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def num_bytes(size: str) -> int:
    """Bytes of a size as Redis (gb) or Kubernetes (Gi) writes it; both units are 2**30."""
    found = re.fullmatch(r"(\d+)(?:gb|Gi)", size)
    assert found, size
    return int(found[1]) * 2**30


def default(setting: str) -> Any:
    return WorkerSettings.model_fields[setting].default


def test_kubernetes_waits_longer_than_a_worker_drains() -> None:
    assert (
        worker_pod()["terminationGracePeriodSeconds"]
        >= float(CONFIG["GRISTMILL_DRAIN_TIMEOUT_S"]) + 20
    )
    assert float(CONFIG["GRISTMILL_DRAIN_TIMEOUT_S"]) == default("drain_timeout_s")


@pytest.mark.parametrize("name", WORKERS)
def test_compose_waits_longer_than_a_worker_drains(name: str) -> None:
    service = COMPOSE["services"][name]
    seconds = int(service["stop_grace_period"].removesuffix("s"))
    assert seconds >= float(service["environment"]["GRISTMILL_DRAIN_TIMEOUT_S"]) + 20


def test_probes_ask_where_the_worker_answers() -> None:
    (container,) = worker_pod()["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == int(CONFIG["GRISTMILL_HEALTH_PORT"]) == default("health_port")
    probes = {
        kind: container[kind]["httpGet"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert probes["livenessProbe"]["path"] == "/healthz"
    assert probes["readinessProbe"]["path"] == probes["startupProbe"]["path"] == "/readyz"


@pytest.mark.parametrize("name", WORKERS)
def test_compose_probes_ask_where_the_worker_answers(name: str) -> None:
    service = COMPOSE["services"][name]
    assert (
        f":{service['environment']['GRISTMILL_HEALTH_PORT']}/readyz"
        in service["healthcheck"]["test"][-1]
    )


def test_scrapes_go_where_the_worker_answers() -> None:
    annotations = BASE["Deployment", "gristmill-worker"]["spec"]["template"]["metadata"][
        "annotations"
    ]
    assert annotations["prometheus.io/port"] == CONFIG["GRISTMILL_HEALTH_PORT"]


def test_every_variable_of_ours_is_a_setting() -> None:
    given = set(CONFIG) | set(BASE["ConfigMap", "gristmill-batches"]["data"])
    for service in COMPOSE["services"].values():
        given |= set(service.get("environment", ()))
    for _, pod in pod_specs():
        given |= {entry["name"] for entry in pod["containers"][0].get("env", ())}
    known = {*WorkerSettings.model_fields, *GatewaySettings.model_fields, *StewardSettings.model_fields}  # fmt: skip
    ours = {name for name in given if name.startswith("GRISTMILL_")}
    assert ours <= {f"GRISTMILL_{name.upper()}" for name in known}


@pytest.mark.parametrize(("name", "pod"), pod_specs())
def test_what_a_pod_refers_to_exists(name: str, pod: dict[str, Any]) -> None:
    containers = pod["containers"] + pod.get("initContainers", [])
    for source in (source for container in containers for source in container.get("envFrom", [])):
        for kind, reference in source.items():
            assert (
                {"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind],
                reference["name"],
            ) in BASE
    claims = BASE["StatefulSet", "redis"]["spec"]["volumeClaimTemplates"]
    volumes = {
        volume["name"] for volume in pod["volumes"] + [claim["metadata"] for claim in claims]
    }
    assert {
        mount["name"] for container in containers for mount in container["volumeMounts"]
    } <= volumes


@pytest.mark.parametrize(("name", "pod"), pod_specs())
def test_pods_run_without_privileges(name: str, pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    for container in pod["containers"] + pod.get("initContainers", []):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Deployment", "gristmill-worker"),
        ("Deployment", "gristmill-gateway"),
        ("Deployment", "gristmill-steward"),
        ("Job", "gristmill-submit"),
    ],
)
def test_network_policy_lets_our_pods_reach_redis(kind: str, name: str) -> None:
    (rule,) = BASE["NetworkPolicy", "redis"]["spec"]["ingress"]
    wanted = rule["from"][0]["podSelector"]["matchLabels"].items()
    assert wanted <= BASE[kind, name]["spec"]["template"]["metadata"]["labels"].items()


def test_the_gateways_probes_and_service_go_where_it_listens() -> None:
    (container,) = BASE["Deployment", "gristmill-gateway"]["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == GatewaySettings.model_fields["gateway_port"].default
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    service = BASE["Service", "gristmill-gateway"]["spec"]
    assert service["ports"][0]["targetPort"] == port["name"]
    labels = BASE["Deployment", "gristmill-gateway"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()


@pytest.mark.parametrize("name", ["gateway", "steward"])
def test_gateway_and_steward_share_a_storage(name: str) -> None:
    pod = BASE["Deployment", f"gristmill-{name}"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    storage = BASE["ConfigMap", "gristmill-batches"]["data"]["GRISTMILL_STORAGE_URL"]
    assert {"name": "storage", "mountPath": storage} in container["volumeMounts"]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] == "storage"]  # fmt: skip
    assert [("PersistentVolumeClaim", claim) in BASE for claim in claims] == [True]
    service = COMPOSE["services"][name]
    url = service["environment"]["GRISTMILL_STORAGE_URL"]
    assert service["volumes"] == [f"storage:{url}"]


def test_example_requests_are_accepted() -> None:
    lines = BASE["ConfigMap", "gristmill-requests"]["data"]["requests.jsonl"].splitlines()
    requests = [
        request_from_json(line.encode(), max_request_bytes=default("max_request_bytes"))
        for line in lines
    ]
    assert [request.endpoint for request in requests] == [CHAT] * 3


def test_selectors_match_their_pods() -> None:
    redis = BASE["StatefulSet", "redis"]["spec"]["template"]["metadata"]["labels"].items()
    assert BASE["Service", "redis"]["spec"]["selector"].items() <= redis
    assert BASE["NetworkPolicy", "redis"]["spec"]["podSelector"]["matchLabels"].items() <= redis


def test_the_queue_is_full_before_redis_is() -> None:
    memory = num_bytes(redis_options()["maxmemory"])
    # 1,450 bytes of memory for a record of 1 KB, and room for results.
    assert int(CONFIG["GRISTMILL_MAX_BYTES"]) * 1450 / 1024 < 0.6 * memory
    (container,) = BASE["StatefulSet", "redis"]["spec"]["template"]["spec"]["containers"]
    assert num_bytes(container["resources"]["limits"]["memory"]) >= 2 * memory
    assert (
        COMPOSE["services"]["worker"]["environment"]["GRISTMILL_MAX_BYTES"]
        == CONFIG["GRISTMILL_MAX_BYTES"]
    )


@pytest.mark.parametrize(("mode", "is_ready"), [("no", True), ("yes", False)])
def test_probe_of_redis_notices_that_other_pods_are_refused(
    mode: str, is_ready: bool, redis_server: Path, tmp_path: Path
) -> None:
    assert redis_options()["protected-mode"] == "no"
    (container,) = BASE["StatefulSet", "redis"]["spec"]["template"]["spec"]["containers"]
    shell, option, script = container["readinessProbe"]["exec"]["command"]
    port = free_port()
    settings = (ROOT / "k8s/base/redis.conf").read_text().replace("/data", str(tmp_path))
    (tmp_path / "redis.conf").write_text(settings)
    options = ["--protected-mode", mode, "--port", str(port)]
    server = subprocess.Popen(
        [redis_server, tmp_path / "redis.conf", *options], stdout=subprocess.DEVNULL
    )
    try:
        while not answers(port):
            assert server.poll() is None
            time.sleep(0.01)
        script = script.replace("redis-cli", f"redis-cli -p {port}")
        probed = subprocess.run(
            [shell, option, script], env={**os.environ, "POD_IP": own_address()}, check=False
        )
    finally:
        server.terminate()
        server.wait()
    assert (probed.returncode == 0) is is_ready


async def test_redis_takes_our_configuration() -> None:
    options = redis_options()
    options.pop("dir")
    arguments = [
        word for name, value in options.items() for word in (f"--{name}", value.strip('"'))
    ]
    with running_server(options=arguments) as url:
        redis = connect(url)
        told = await redis.config_get("appendonly", "appendfsync", "save", "maxmemory-policy")
        await redis.aclose()
    assert told == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the PATH")
def test_cpu_overlay_asks_for_no_gpu() -> None:
    command = ["kubectl", "kustomize", str(ROOT / "k8s/overlays/cpu")]
    pod = worker_pod(
        objects(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    )
    (container,) = pod["containers"]
    assert "nvidia" not in str(pod)
    assert container["image"] == COMPOSE["services"]["worker"]["image"] == "gristmill-worker:cpu"
    assert "--enforce-eager" in container["args"]


def test_base_asks_for_one_gpu() -> None:
    (container,) = worker_pod()["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert (
        container["image"] == COMPOSE["services"]["worker-gpu"]["image"] == "gristmill-worker:cuda"
    )


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_pass_signals_on_and_are_not_root(path: Path) -> None:
    text = path.read_text()
    assert 'ENTRYPOINT ["gristmill"]' in text
    assert "STOPSIGNAL SIGTERM" in text
    final_stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[
        -2 if path.parent.name == "worker" else -1 :
    ]
    assert all("USER 10001:10001" in stage for stage in final_stages)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_copy_only_what_the_context_holds(path: Path) -> None:
    allowed = {
        line[1:].rstrip("/")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", path.read_text(), re.MULTILINE)
        for word in line.split()
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("name", WORKERS)
def test_compose_builds_a_stage_that_exists(name: str) -> None:
    build = COMPOSE["services"][name]["build"]
    assert f" AS {build['target']}\n" in (ROOT / build["dockerfile"]).read_text()


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("install-producer", " .; }"),
        ("install-desk", "'.[gateway,ui,steward,s3]'"),
        ("install-run-cpu", " .[cpu,run] "),
        ("install-run-gpu", "'.[gpu,run]'"),
        ("install-worker-cpu", " .[cpu] "),
        ("install-worker-gpu", "'.[gpu]'"),
    ],
)
def test_recipes_that_images_and_readers_run_are_whole(
    target: str, installed: str, tmp_path: Path
) -> None:
    make = ["make", "--no-print-directory", "-n", target, f"VENV={tmp_path / 'venv'}"]
    recipe = subprocess.run(
        make, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout  # our own
    subprocess.run(["sh", "-n"], input=recipe, check=True, text=True)
    assert installed in recipe


# -- k8s/examples/two-models -------------------------------------------------------------------------

NUM_CARDS = 8


@pytest.fixture(scope="module")
def two_models() -> dict[tuple[str, str], dict[str, Any]]:
    """The rendered objects of the example."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on the PATH")
    command = ["kubectl", "kustomize", str(ROOT / "k8s/examples/two-models")]
    return objects(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def variables(items: dict[tuple[str, str], dict[str, Any]], deployment: str) -> dict[str, str]:
    """Settings of a deployment's container: those of the ConfigMap, then its own."""
    (container,) = items["Deployment", deployment]["spec"]["template"]["spec"]["containers"]
    own = {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
    shared: dict[str, str] = items["ConfigMap", "gristmill"]["data"]
    return shared | own


def test_two_models_lets_every_request_end_before_its_pod(
    two_models: dict[tuple[str, str], dict[str, Any]],
) -> None:
    for queue in ("small", "large"):
        pod = two_models["Deployment", f"gristmill-worker-{queue}"]["spec"]["template"]["spec"]
        given = variables(two_models, f"gristmill-worker-{queue}")
        assert given["GRISTMILL_QUEUE"] == queue
        drain_s = float(given["GRISTMILL_DRAIN_TIMEOUT_S"])
        assert float(given["GRISTMILL_MAX_REQUEST_S"]) <= drain_s
        assert pod["terminationGracePeriodSeconds"] >= drain_s + 20


def test_two_models_fits_its_cards_at_full_scale(
    two_models: dict[tuple[str, str], dict[str, Any]],
) -> None:
    cards = 0
    for queue in ("small", "large"):
        deployment = two_models["Deployment", f"gristmill-worker-{queue}"]["spec"]
        scaling = two_models["ScaledObject", f"gristmill-worker-{queue}"]["spec"]
        assert scaling["scaleTargetRef"]["name"] == f"gristmill-worker-{queue}"
        assert "replicas" not in deployment, "an apply would set what KEDA sets"
        (container,) = deployment["template"]["spec"]["containers"]
        cards += scaling["maxReplicaCount"] * container["resources"]["limits"]["nvidia.com/gpu"]
    assert cards == NUM_CARDS


def test_two_models_declares_what_its_workers_serve(
    two_models: dict[tuple[str, str], dict[str, Any]],
) -> None:
    served = {}
    for queue in ("small", "large"):
        (container,) = two_models["Deployment", f"gristmill-worker-{queue}"]["spec"]["template"]["spec"]["containers"]  # fmt: skip
        (model,) = [word.removeprefix("--model=") for word in container["args"] if word.startswith("--model=")]  # fmt: skip
        served[model] = queue
    given = variables(two_models, "gristmill-gateway")
    declared = dict(pair.split("=") for pair in given["GRISTMILL_GATEWAY_MODELS"].split(","))
    assert declared == served
    queues = {given["GRISTMILL_QUEUE"], given["GRISTMILL_GATEWAY_QUEUES"]}
    stewards = [variables(two_models, f"gristmill-steward{suffix}") for suffix in ("", "-large")]
    assert queues == {"small", "large"}
    assert {each["GRISTMILL_QUEUE"] for each in stewards} == {"small", "large"}


def test_two_models_selects_each_pod_once(
    two_models: dict[tuple[str, str], dict[str, Any]],
) -> None:
    pods = [
        item["spec"]["template"]["metadata"]["labels"].items()
        for item in two_models.values()
        if "template" in item.get("spec", {})
    ]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors = [item["spec"]["selector"]["matchLabels"].items() for (of, _), item in two_models.items() if of == kind]  # fmt: skip
        assert selectors
        for pod in pods:
            assert sum(selector <= pod for selector in selectors) <= 1


def test_the_overlays_of_two_models_render(tmp_path: Path) -> None:
    """The page's overlays: each image comes from the registry, and each shared claim has a storage class."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on the PATH")
    shutil.copytree(ROOT / "k8s", tmp_path / "gristmill/k8s")
    page = (ROOT / "docs/two-models.md").read_text()
    overlays = re.findall(r"```yaml\n# (my-cluster/\S*kustomization\.yaml).*\n((?s:.*?))```", page)
    for name, text in overlays:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    rendered = ""
    for name, _ in overlays:
        command = ["kubectl", "kustomize", str((tmp_path / name).parent)]
        rendered += (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout + "---\n"
        )
    found = objects(rendered)
    assert {"gristmill-download", "gristmill-worker-large", "gristmill"} <= {
        name for _, name in found
    }
    images = set(re.findall(r"image: (gristmill-\S+|REGISTRY/\S+)", rendered))
    assert images == {
        "REGISTRY/gristmill-worker:VERSION-cuda",
        "REGISTRY/gristmill-producer:VERSION",
    }
    claims = [item["spec"] for (kind, _), item in found.items() if kind == "PersistentVolumeClaim"]
    assert [claim["storageClassName"] for claim in claims] == ["READ-WRITE-MANY"] * 2
