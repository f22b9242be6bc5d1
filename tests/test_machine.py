"""CPUs and memory within the limits of containers and jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raytrain import machine

GIB = 2**30


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("DOT", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of control groups of a machine of 64 CPUs and 256 GiB."""
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * 2**20}.__getitem__)
    return tmp_path


def test_a_machine_without_control_groups_is_counted_as_it_is(groups: Path) -> None:
    assert (machine.host_cpus(), machine.host_memory()) == (64, 256 * GIB)


@pytest.mark.parametrize(
    ("quota", "cpus"), [("400000 100000", 4), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 64)]
)
def test_a_container_of_version_2_has_its_own_group_as_the_root(groups: Path, quota: str, cpus: int) -> None:
    write(groups, own="0::/", cpuDOTmax=quota, memoryDOTmax=str(8 * GIB))
    assert (machine.host_cpus(), machine.host_memory()) == (cpus, 8 * GIB)


def test_a_job_is_held_by_the_smallest_limit_of_the_groups_around_it(groups: Path) -> None:
    write(groups, own="0::/slurm/job_7/step_0", slurm__cpuDOTmax="max 100000", slurm__memoryDOTmax="max")
    write(groups, slurm__job_7__cpuDOTmax="1600000 100000", slurm__job_7__memoryDOTmax=str(32 * GIB))
    write(groups, slurm__job_7__step_0__memoryDOTmax=str(64 * GIB), slurm__job_8__memoryDOTmax=str(GIB))
    assert (machine.host_cpus(), machine.host_memory()) == (16, 32 * GIB)


def test_groups_of_version_1_have_a_tree_for_each_kind(groups: Path) -> None:
    write(groups, own="9:name=systemd:/x\n4:cpu,cpuacct:/docker/1f\n3:memory:/docker/1f\n0::/")
    write(groups, cpu__cpuDOTcfs_quota_us="-1", cpu__cpuDOTcfs_period_us="100000")
    write(groups, memory__memoryDOTlimit_in_bytes="9223372036854771712")
    assert (machine.host_cpus(), machine.host_memory()) == (64, 256 * GIB)
    write(groups, cpu__docker__1f__cpuDOTcfs_quota_us="250000", cpu__docker__1f__cpuDOTcfs_period_us="100000")
    write(groups, memory__docker__1f__memoryDOTlimit_in_bytes=str(6 * GIB))
    assert (machine.host_cpus(), machine.host_memory()) == (2, 6 * GIB)


def test_fewer_cpus_of_this_process_than_of_its_container_count(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(groups, own="0::/", cpuDOTmax="400000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert machine.host_cpus() == 2
