"""An environment of its own for each peer, under the user's cache; made once, gone with `rm -r`.

Peers pin clients that exclude each other (arq wants a redis-py that Gristmill refuses), and none of
them may change what Gristmill itself runs with.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path.home() / ".cache" / "gristmill" / "peers"
INSTALL_TIMEOUT_S = 900


class NotInstalled(Exception):
    """The peer is not here and cannot be fetched; the text says why."""


def environment(name: str, packages: Sequence[str], *, with_ours: bool = False) -> Path:
    """Return the interpreter of the peer's environment; installs what is missing.

    Args:
        name: Of the environment's folder.
        packages: What pip installs; the newest release that it finds.
        with_ours: See the packages of the running interpreter too, vLLM for one.

    Raises:
        NotInstalled: pip failed, as it does without a network.
    """
    folder = FOLDER / name
    python = folder / "bin" / "python"
    done = folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == list(packages):
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    if with_ours:
        ours = [path for path in sys.path if path.endswith("site-packages")]
        site = next((folder / "lib").glob("python*/site-packages"))
        (site / "ours.pth").write_text("\n".join(ours) + "\n")
    _run([str(python), "-m", "pip", "install", "--quiet", *packages])
    done.write_text(json.dumps(list(packages)))
    return python


def versions(python: Path, packages: Sequence[str]) -> str:
    """Return `name version` of each package, as installed for that interpreter."""
    names = [package.split("[")[0] for package in packages]
    code = "import sys, importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    return _run([str(python), "-c", code, *names]).strip()


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # our own commands
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(command[:5])}: not done in {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(" ".join(errors or done.stderr.splitlines()[-1:])[:300])
    return done.stdout
