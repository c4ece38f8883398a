"""Divide a machine among several workers: devices into groups, memory and cores among engines."""

import os
import stat
from pathlib import Path

import pytest

from gristmill.shared.errors import SettingsError
from gristmill.shared.settings import read_settings
from gristmill.worker.engine.vllm import visible_devices
from gristmill.worker.engine.vllm.cpu_slices import core_slices, sliced
from gristmill.worker.engine.vllm.resource_flags import ResourceFlags
from gristmill.worker.parent import ChildPlan, child_plan, num_device_groups, planned_children
from gristmill.worker.settings import WorkerSettings

FLAGS = ("--model", "m")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
)  # fmt: skip


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with four cards: vLLM for CUDA, and a driver whose program lists them."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for module in (visible_devices, child_plan):
        monkeypatch.setattr(module, "is_for_cpu", lambda: False)
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n3\\n'\n")
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (visible_devices, child_plan):
        monkeypatch.setattr(module, "is_for_cpu", lambda: True)


def planned(*flags: str, **fields: object) -> list[ChildPlan]:
    return planned_children(read_settings(WorkerSettings, **fields), [*FLAGS, *flags])


def test_one_engine_gets_the_whole_machine_as_it_is() -> None:
    assert planned() == [ChildPlan("0", 0, [*FLAGS])]


def test_auto_is_one_engine_and_names_what_finds_the_number(
    caplog: pytest.LogCaptureFixture, plain_logging: None
) -> None:
    assert planned(engines="auto") == [ChildPlan("0", 0, [*FLAGS])]
    assert "gristmill tune finds the best number" in caplog.text


@pytest.mark.parametrize(
    ("engines", "share"), [(2, "0.45"), (3, "0.3"), (4, "0.225"), (7, "0.128")]
)
def test_engines_of_a_card_divide_its_memory(engines: int, share: str) -> None:
    plans = planned(engines=engines)
    assert [plan.engine for plan in plans] == [str(number) for number in range(engines)]
    assert {plan.group for plan in plans} == {0}
    for plan in plans:
        assert plan.flags == [*FLAGS, "--gpu-memory-utilization", share]
        assert plan.environment == {}


def test_share_of_the_operator_stays_and_must_fit() -> None:
    flags = ("--gpu_memory_utilization=0.3",)
    assert planned(*flags, engines=3)[2].flags == [*FLAGS, *flags]
    with pytest.raises(SettingsError, match=r"4 times 0\.3 is more than 1; leave it out"):
        planned(*flags, engines=4)


def test_each_group_of_devices_gets_all_engines() -> None:
    plans = planned("-tp", "2", engines=2, devices="all")
    shown = [(plan.engine, plan.group, plan.environment["CUDA_VISIBLE_DEVICES"]) for plan in plans]
    assert shown == [("0", 0, "0,1"), ("1", 0, "0,1"), ("2", 1, "2,3"), ("3", 1, "2,3")]
    assert {plan.environment["CUDA_DEVICE_ORDER"] for plan in plans} == {"PCI_BUS_ID"}


def test_one_engine_for_each_device_has_the_whole_device() -> None:
    plans = planned(devices="1, 3")
    assert [plan.environment["CUDA_VISIBLE_DEVICES"] for plan in plans] == ["1", "3"]
    assert {tuple(plan.flags) for plan in plans} == {FLAGS}


def test_visible_devices_of_this_process_are_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-abc")
    assert num_device_groups("all", FLAGS) == 2
    assert planned(devices="all")[1].environment["CUDA_VISIBLE_DEVICES"] == "GPU-abc"


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        ((), 4),
        (("--tensor-parallel-size=4",), 1),
        (("--tensor_parallel_size", "2", "--pipeline-parallel-size", "2"), 1),
        (("-pp", "2"), 2),
        (("-dp=2", "--data-parallel-size-local", "2"), 2),
    ],
)
def test_number_of_groups_follows_the_parallel_sizes(flags: tuple[str, ...], number: int) -> None:
    assert num_device_groups("all", [*FLAGS, *flags]) == number


@pytest.mark.parametrize(
    ("devices", "flags", "words"),
    [
        ("all", ("-tp", "3"), r"names 4 devices \(0,1,2,3\), and each engine needs 3"),
        ("0,1,2", ("-tp", "2"), "name a multiple of 2, or change the sizes"),
        ("0,4", (), "names 4; this process may use 0,1,2,3"),
        ("0,0", (), "no list of different devices; write all, or names such as"),
        ("0,", (), "no list of different devices"),
        ("all", ("-tp", "two"), "vLLM does not take these arguments: .*invalid int value: 'two'"),
        ("all", ("-tp", "0"), "must be at least 1"),
    ],
)
def test_devices_that_make_no_groups_are_refused(
    devices: str, flags: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        planned(*flags, devices=devices)


def test_driver_that_does_not_answer_is_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho no NVML >&2\nexit 9\n")
    with pytest.raises(
        SettingsError, match=r"does not list the devices \(no NVML\); mend the driver"
    ):
        planned(devices="all")


@pytest.mark.usefixtures("on_cpu")
def test_all_devices_of_a_cpu_are_one_group() -> None:
    assert num_device_groups("all", [*FLAGS, "-tp", "2"]) == 1
    assert planned(devices="all") == [ChildPlan("0", 0, [*FLAGS])]
    with pytest.raises(SettingsError, match="vLLM sees no NVIDIA device here"):
        planned(devices="0")


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two engines need two cores")
def test_engines_of_a_cpu_divide_its_cores_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = planned(engines=2)
    assert sorted([*first.cores, *second.cores]) == sorted(os.sched_getaffinity(0))
    flag, size = first.flags[-2:]
    assert flag == "--kv-cache-memory-bytes"
    assert 0 < int(size) <= 2 * 2**30
    assert int(first.environment["OMP_NUM_THREADS"]) == max(1, len(first.cores) - 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    first, _ = planned("--kv-cache-memory-bytes", "9", engines=2)
    assert first.environment == {"OMP_NUM_THREADS": "7"}
    assert first.flags == [*FLAGS, "--kv-cache-memory-bytes", "9"]


@pytest.mark.usefixtures("on_cpu")
def test_what_a_cpu_cannot_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    num_cores = len(os.sched_getaffinity(0))
    if num_cores < 64:
        with pytest.raises(SettingsError, match=f"more than the {num_cores} cores of this CPU"):
            planned(engines=num_cores + 1)
    if num_cores > 1:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1")
        with pytest.raises(SettingsError, match="would bind all engines to the same cores"):
            planned(engines=2)


def test_engines_elsewhere_are_no_engines_here() -> None:
    for fields in ({"engines": 2}, {"devices": "all"}):
        with pytest.raises(SettingsError, match="VLLM_URL is set, so the engine runs there"):
            planned(vllm_url="http://localhost:1", **fields)


def test_slices_keep_the_order_and_differ_by_one() -> None:
    assert sliced(range(7), 2) == [[0, 1, 2], [3, 4, 5, 6]]
    assert sliced(range(4), 4) == [[0], [1], [2], [3]]
    assert set(core_slices(1)[0]) == os.sched_getaffinity(0)


def test_flags_of_the_machine_are_found_among_others() -> None:
    flags = [
        "m",
        "--kv-cache-memory-bytes=5",
        "--lora-modules",
        "a=b",
        "--gpu-memory-utilization",
        ".5",
    ]
    assert ResourceFlags.read(flags) == ResourceFlags(1, 0.5, has_kv_cache_bytes=True)
    assert ResourceFlags.read(["--kv-cache-dtype", "fp8"]) == ResourceFlags(
        1, None, has_kv_cache_bytes=False
    )
