"""Check every manifest against Kubernetes' own schemas, strictly: an unknown field is an error.

`make check` runs it. Plain manifests need only this Python. If `kubectl` or `kustomize` is on the
PATH, the script also renders the kustomizations and checks their output; neither tool contacts a
cluster.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
VERSIONS = ("1.29", kubernetes_validate.latest_version())
"""The oldest Kubernetes that Gristmill supports, and the newest for which there are schemas."""


def _strict(required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has only these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


_TEXT, _TEXTS = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
_DURATION = {"type": "string", "pattern": "^[0-9]+(ms|[smhd])$"}
_EXPRESSION = _strict("key operator", key=_TEXT, operator=_TEXT, values=_list_of(_TEXT))
_RULE = _strict(
    "alert expr labels annotations", alert=_TEXT, expr=_TEXT, labels=_TEXTS, annotations=_TEXTS
)
_RULE["properties"]["for"] = _DURATION
_NUMBER = {"type": "string", "pattern": "^[0-9.]+$"}
_TRIGGER = _strict(
    "serverAddress query threshold ignoreNullValues",
    serverAddress={"type": "string", "pattern": "^https?://"},
    query=_TEXT,
    threshold=_NUMBER,
    ignoreNullValues={"const": "false"},
)
_COUNT = {"type": "integer", "minimum": 0}
OPERATOR_SPECS = {
    "ScaledObject": _strict(
        "scaleTargetRef minReplicaCount maxReplicaCount triggers",
        scaleTargetRef=_strict("name", name=_TEXT), minReplicaCount=_COUNT, maxReplicaCount=_COUNT,
        triggers=_list_of(_strict("type metadata", type={"const": "prometheus"}, metadata=_TRIGGER)),
    ),
    "PrometheusRule": _strict("groups", groups=_list_of(_strict("name rules", name=_TEXT, rules=_list_of(_RULE)))),
    "PodMonitor": _strict(
        "selector podMetricsEndpoints",
        selector=_strict("", matchLabels=_TEXTS, matchExpressions=_list_of(_EXPRESSION)),
        podMetricsEndpoints=_list_of(_strict("port", port=_TEXT, path=_TEXT, interval=_DURATION)),
    ),
}  # fmt: skip
"""Kind of KEDA or the Prometheus operator -> schema of the part of its spec that we use. Kubernetes has none of it."""


def kustomizations() -> list[Path]:
    """Return the folders that hold a kustomization."""
    return sorted(path.parent for path in HERE.rglob("kustomization.yaml"))


def plain_manifests() -> list[Path]:
    """Return the files with complete objects.

    Files of an overlay are patches, so they are left out.
    """
    overlays = HERE / "overlays"
    found = (path for path in HERE.rglob("*.yaml") if path.name != "kustomization.yaml")
    return sorted(path for path in found if not path.is_relative_to(overlays))


def render(folder: Path) -> str | None:
    """Return the rendered objects of a kustomization; None without kubectl and kustomize.

    Raises:
        SystemExit: It cannot be rendered; the message has kustomize's error.
    """
    if found := shutil.which("kubectl"):
        command = [found, "kustomize", str(folder)]
    elif found := shutil.which("kustomize"):
        command = [found, "build", str(folder)]
    else:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # found above
    if done.returncode != 0:
        sys.exit(f"{folder.relative_to(HERE.parent)} cannot be rendered: {done.stderr.strip()}")
    return done.stdout


def objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML stream."""
    return [item for item in yaml.safe_load_all(text) if item]


def faults(item: dict[str, Any]) -> Iterator[str]:
    """Yield each error of an object, for each Kubernetes version."""
    name = f"{item['kind']}/{item['metadata']['name']}"
    if spec := OPERATOR_SPECS.get(item["kind"]):
        wanted = _strict(
            "apiVersion kind metadata spec",
            apiVersion={"enum": ["keda.sh/v1alpha1", "monitoring.coreos.com/v1"]},
            kind=_TEXT,
            metadata=_strict("name", name=_TEXT, labels=_TEXTS),
            spec=spec,
        )
        for error in jsonschema.Draft7Validator(wanted).iter_errors(item):
            yield f"{name}: {error.json_path}: {error.message}"
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            where = ".".join(str(part) for part in error.path)
            yield f"{name}: {where}: {error.message} (Kubernetes {version})"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{name}: {error.message}"


def main() -> None:
    """Check all manifests and kustomizations; exit with status 1 and the errors if any."""
    sources = {path.relative_to(HERE.parent): path.read_text() for path in plain_manifests()}
    for folder in kustomizations():
        name = folder.relative_to(HERE.parent)
        if (rendered := render(folder)) is None:
            sys.stdout.write(f"{name}: not checked; install kubectl or kustomize to render it\n")
        else:
            sources[name] = rendered
    found = [
        f"{source}: {fault}"
        for source, text in sources.items()
        for item in objects(text)
        for fault in faults(item)
    ]
    if found:
        sys.exit("\n".join(found))
    sys.stdout.write(
        f"{len(sources)} manifests and kustomizations fit Kubernetes {' and '.join(VERSIONS)}\n"
    )


if __name__ == "__main__":
    main()
