"""Runs on several hosts: processes of this machine, each with its own devices."""

import os
import shutil
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from ntl_jax.sharding.mesh import batch_sharding, make_mesh
from tests.train.runs import (
    KILLED,
    QUICK,
    ROOT,
    STEPS,
    assert_same_run,
    finish,
    rows,
    saved,
    start,
    stop_midway,
    train,
)
from train.__main__ import parse_config
from train.config import ConfigError
from train.config.hosts import HostsConfig
from train.multihost import hosts

SHORT = ["--steps=6", "--optimizer.warmup-steps=2", "--checkpoint-every=3"]
SHORT += ["--model.num-layers=1", "--model.num-decoder-layers=1"]
TWO = {"hosts": 2, "devices": 2, "flags": QUICK}
FOUR = {"hosts": 4, "flags": QUICK}


def assert_close_rows(run_dir, other) -> None:
    """The sums over devices are in another order, and dropout is the same."""
    pairs = list(zip(rows(run_dir), rows(other), strict=True))
    assert pairs
    for row, twin in pairs:
        assert (row["step"], row["kind"]) == (twin["step"], twin["kind"])
        assert row["loss"] == pytest.approx(twin["loss"], rel=1e-4)


@pytest.fixture(scope="module")
def short_two(tmp_path_factory):
    """A short run on two hosts, and what each printed."""
    run_dir = tmp_path_factory.mktemp("hosts") / "short"
    return run_dir, train(run_dir, *SHORT, flags=QUICK, hosts=2)


@pytest.mark.slow
def test_two_hosts_train_and_evaluate_together(short_two):
    run_dir, (first, second) = short_two
    assert "2 cpu device(s) of 2 hosts" in first
    assert "interpolation" in first and "interpolation" not in second
    assert saved(run_dir)[0] == 6
    steps = [row["step"] for row in rows(run_dir) if row["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert len((run_dir / "predictions.jsonl").read_text().splitlines()) == 8


def assert_same_answers(run_dir, other) -> None:
    assert_same_run(run_dir, other, last=6)
    answers = [(path / "predictions.jsonl").read_text() for path in (run_dir, other)]
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_two_hosts_train_what_one_does(short_two, tmp_path):
    """The same devices in the same mesh: shared among processes or not is no matter."""
    two, one = short_two[0], tmp_path / "one"
    train(one, *SHORT, flags=QUICK, devices=2)
    assert_same_answers(two, one)
    train(tmp_path / "other", *SHORT, "--seed=1", flags=QUICK, devices=2)
    with pytest.raises(AssertionError):
        assert_same_run(two, tmp_path / "other", last=6)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["--data.packing", "--data.buckets=2"])
def test_two_hosts_lay_rows_out_as_one_does(layout, tmp_path):
    two, one = tmp_path / "two", tmp_path / "one"
    train(two, *SHORT, layout, flags=QUICK, hosts=2)
    train(one, *SHORT, layout, flags=QUICK, devices=2)
    assert_same_answers(two, one)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("hosts") / "two"
    train(run_dir, **TWO)
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize("victims", [1, 2])
def test_two_hosts_killed_and_resumed_equal_those_left_alone(victims, of_two, tmp_path):
    run_dir = tmp_path / "killed"
    statuses = stop_midway(run_dir, signal.SIGKILL, victims=victims, **TWO)
    assert statuses[-1] == KILLED and 0 not in statuses  # host 0 does not go on alone
    assert 0 < saved(run_dir)[0] < STEPS
    train(run_dir, "--resume", **TWO)
    assert_same_run(run_dir, of_two)


@pytest.mark.nightly
def test_a_signal_to_one_host_stops_and_saves_all(of_two, tmp_path):
    run_dir = tmp_path / "stopped"
    assert stop_midway(run_dir, signal.SIGTERM, **TWO) == [0, 0]
    assert 0 < saved(run_dir)[0] < STEPS
    train(run_dir, "--resume", **TWO)
    assert_same_run(run_dir, of_two)


@pytest.mark.nightly
def test_from_four_hosts_that_share_parameters_to_one_and_back(tmp_path):
    run_dir, whole = tmp_path / "four", tmp_path / "whole"
    mesh = ["--mesh.data=2", "--mesh.tensor=2"]
    train(whole, *mesh, **FOUR)
    assert KILLED in stop_midway(run_dir, signal.SIGKILL, *mesh, victims=4, **FOUR)
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    train(run_dir, "--resume", flags=QUICK)
    assert_close_rows(run_dir, whole)
    train(copy, "--resume", *mesh, **FOUR)
    assert_same_run(copy, whole)


@pytest.mark.nightly
@pytest.mark.parametrize("flag", ["--seed=1", "--steps=70"])
def test_hosts_of_different_flags_do_not_train(flag, tmp_path):
    """Two seeds would end well, with two models; more steps would never end."""
    processes = start(tmp_path / "run", hosts=2, flags=QUICK, of_last=[flag])
    (first, text), (second, named) = finish(processes)
    assert (first, second) == (1, 1)
    assert "error: " in text and "host 1" in text
    assert f"{flag.split('=')[0]}: " in named
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_host_that_hangs_ends_all(frozen, tmp_path):
    """Heartbeats do not end it here: they may be missing for longer than that."""
    seconds = 45  # which compiling must not take
    more = [f"--hosts.stall-timeout={seconds}", "--hosts.lost-after=900"]
    processes = start(tmp_path / "run", *more, hosts=2, flags=QUICK)
    waiting = processes[1 - frozen]
    try:
        while not (tmp_path / "run" / "checkpoints" / "5").exists():
            assert [process.poll() for process in processes] == [None, None]
            time.sleep(0.05)
        processes[frozen].send_signal(signal.SIGSTOP)
        text, _ = waiting.communicate(timeout=2 * seconds)
        processes[frozen].send_signal(signal.SIGCONT)
        processes[frozen].communicate(timeout=seconds)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert waiting.returncode == 1, text
    assert f"Timeout (0:00:{seconds})!" in text
    assert "train/loop.py" in text  # where it stood
    assert processes[frozen].returncode not in (0, KILLED)


@pytest.mark.nightly
def test_the_printed_commands_for_two_processes(tmp_path):
    text = (ROOT / "docs" / "hosts.md").read_text()
    block = text.split("```sh\n")[1].split("```")[0]
    assert "localhost" in block
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path / "runs" / "two-hosts")[0] == 100
    assert "of 2 hosts" in done.stderr


def test_rows_of_this_process_are_all_where_it_is_alone():
    sharding = batch_sharding(make_mesh(4, 1, 2))
    np.testing.assert_array_equal(hosts.local_rows(sharding, 8), np.arange(8))


def test_hosts_have_as_many_devices(monkeypatch):
    devices = [types.SimpleNamespace(process_index=host) for host in (0, 1, 1)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(ConfigError, match="1 on host 0, 2 on host 1"):
        hosts._check_devices()
    monkeypatch.setattr(jax, "devices", lambda: devices[:2])
    hosts._check_devices()


def test_flags_belong_together():
    with pytest.raises(ConfigError, match=r"--hosts\.coordinator, .* None, 2 and None"):
        hosts.join(HostsConfig(count=2))


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "8"}, None),  # a shell of salloc, without srun
        ({"SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}, None),
        ({"SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, "srun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun"),
        ({"SLURM_NTASKS": "", "SLURM_LOCALID": "0"}, None),
        ({"OMPI_COMM_WORLD_SIZE": ""}, None),
        ({"JOB_COMPLETION_INDEX": "0"}, "Kubernetes"),
    ],
)
def test_launchers_are_recognised(environment, found, monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_LOCALID", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hosts.launcher() == found


@pytest.mark.parametrize("variable", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"])
def test_a_number_of_processes_is_a_number(variable, monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    monkeypatch.setenv(variable, "2(x3)")
    with pytest.raises(ConfigError, match=rf"{variable}=2\(x3\)"):
        hosts.join(HostsConfig())


@pytest.mark.parametrize(
    ("coordinator", "count", "index", "named"),
    [
        ("a", 2, 0, "--hosts.coordinator a "),
        (":1", 2, 0, "--hosts.coordinator :1 "),
        ("a:70000", 2, 0, "--hosts.coordinator a:70000 "),
        ("a:1", 2, 2, "--hosts.index 2 "),
    ],
)
def test_flags_in_range(coordinator, count, index, named):
    with pytest.raises(ConfigError, match=named):
        hosts.join(HostsConfig(coordinator, count, index))


@pytest.mark.nightly
def test_a_launcher_whose_other_process_stays_away():
    """JAX would abort this one, with a stack of C++."""
    task = {"JOB_ID": "7", "STEP_NODELIST": "localhost", "NTASKS": "2"}
    task |= {"PROCID": "0", "LOCALID": "0"}
    environment = {f"SLURM_{name}": value for name, value in task.items()}
    code = "from train.multihost.hosts import HostsConfig, join; "
    code += "join(HostsConfig(timeout=2))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "2 s (--hosts.timeout" in done.stderr
    assert len(done.stderr.splitlines()) == 1


STALLED = """
import {module}
from train.multihost import hosts
hosts.several = lambda: True
with hosts.stall_timer(1):
    hosts.made_progress()
    {wait}
"""


def test_the_old_names_of_flags_are_accepted():
    old = ["--hosts.lost-after", "7", "--hosts.stuck-after=8"]
    config = parse_config("quickstart", old, "describe").hosts
    assert (config.heartbeat_timeout, config.stall_timeout) == (7, 8)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "wait"),
    [("time", "time.sleep(60)"), ("ctypes", "ctypes.PyDLL(None).sleep(60)")],
)
def test_a_stalled_process_exits_and_shows_where(module, wait):
    """Also one that holds Python's lock, so that no other thread can run."""
    done = subprocess.run(
        [sys.executable, "-c", STALLED.format(module=module, wait=wait)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert 'File "<string>", line 7' in done.stderr


def test_progress_restarts_the_stall_timer_and_one_process_has_none(monkeypatch):
    armed = []
    monkeypatch.setattr(
        hosts.faulthandler, "dump_traceback_later", lambda *a, **k: armed.append((a, k))
    )
    with hosts.stall_timer(5):
        hosts.made_progress()
    assert not armed
    monkeypatch.setattr(hosts, "several", lambda: True)
    with hosts.stall_timer(5):
        hosts.made_progress()
    hosts.made_progress()
    assert armed == [((5,), {"exit": True})] * 2


def test_one_process_speaks_for_itself():
    def refuse():
        raise ConfigError("no")

    assert hosts.broadcast_from_coordinator(lambda: {"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match="no"):
        hosts.broadcast_from_coordinator(refuse)
    hosts.assert_all_hosts(True, "fine")
    with pytest.raises(ConfigError, match="not fine"):
        hosts.assert_all_hosts(False, "not fine")
    batch = hosts.global_batch({"x": np.arange(8.0)}, batch_sharding(make_mesh(8)), 8)
    np.testing.assert_array_equal(jax.device_get(batch["x"]), np.arange(8.0))
