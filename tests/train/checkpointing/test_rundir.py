"""What a resumed run may change, and where a run may write."""

import json

import pytest

from tests.train.helpers import TINY, changed
from train.checkpointing import resume, rundir
from train.checkpointing.resume import check_same_flags, check_same_run
from train.checkpointing.rundir import resolve_run_dir, write_config
from train.config import ConfigError


def resumed(tmp_path, schedule: str, then: int, now: int, **more) -> None:
    config = changed(TINY, optimizer__schedule=schedule, steps=then)
    write_config(tmp_path, config)
    check_same_run(tmp_path, changed(config, steps=now, **more))


@pytest.mark.parametrize("schedule", ["constant", "plateau"])
def test_steps_may_grow_where_they_do_not_set_the_learning_rate(schedule, tmp_path):
    resumed(tmp_path, schedule, 6, 9)
    with pytest.raises(ConfigError, match=r"--steps: 6 .* 5 "):
        resumed(tmp_path, schedule, 6, 5)
    with pytest.raises(ConfigError, match=r"--seed: 0 .* 1 "):
        resumed(tmp_path, schedule, 6, 9, seed=1)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_steps_of_a_schedule_that_ends_may_not(schedule, tmp_path):
    with pytest.raises(ConfigError, match=r"--steps: 6 .* 9 "):
        resumed(tmp_path, schedule, 6, 9)


def test_another_schedule_does_not_let_steps_grow(tmp_path):
    with pytest.raises(ConfigError, match=r"--optimizer\.schedule: 'constant' "):
        resumed(tmp_path, "constant", 6, 9, optimizer__schedule="cosine")


def started_on_another_host(monkeypatch, **changes) -> None:
    """Checks TINY with `changes` where host 0 was started with TINY."""
    first = resume._flat(rundir.config_dict(TINY))
    monkeypatch.setattr(resume, "broadcast_from_coordinator", lambda _: first)
    check_same_flags(changed(TINY, **changes))


def test_hosts_take_the_same_flags(monkeypatch):
    flags = r"\n  --optimizer\.learning-rate: .* 0\.5 .*\n  --seed: 0 .* 1 "
    with pytest.raises(ConfigError, match=flags):
        started_on_another_host(monkeypatch, optimizer__learning_rate=0.5, seed=1)
    with pytest.raises(ConfigError, match=r"--resume: False .* True "):
        started_on_another_host(monkeypatch, resume=True)


def test_hosts_may_have_places_of_their_own(monkeypatch):
    places = dict.fromkeys(("run_dir", "token_cache", "compilation_cache"), "somewhere")
    more = {"hosts__index": 1, "data__raw_dir": "somewhere"}
    started_on_another_host(monkeypatch, **places, **more)


def test_hosts_and_cache_may_differ(tmp_path):
    more = {"hosts__count": 2, "compilation_cache": "somewhere"}
    resumed(tmp_path, "cosine", 6, 6, **more)


@pytest.mark.parametrize(
    ("run_dir", "named"),
    [
        ("s3://bucket/run", "s3://bucket/run .* gs://"),
        ("gs://bucket", "gs://BUCKET/FOLDER"),
    ],
)
def test_addresses_that_no_run_can_have(run_dir, named):
    with pytest.raises(ConfigError, match=named):
        resolve_run_dir(changed(TINY, run_dir=run_dir))


def test_a_field_that_came_later_had_its_default(tmp_path):
    write_config(tmp_path, TINY)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    del written["optimizer"]["mu_dtype"]
    path.write_text(json.dumps(written))
    check_same_run(tmp_path, TINY)
    with pytest.raises(ConfigError, match=r"--optimizer\.mu-dtype: "):
        check_same_run(tmp_path, changed(TINY, optimizer__mu_dtype="bfloat16"))


def test_hosts_fields_of_earlier_versions_are_read(tmp_path):
    write_config(tmp_path, TINY)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    written["hosts"]["lost_after"] = written["hosts"].pop("heartbeat_timeout") + 1
    written["hosts"]["stuck_after"] = written["hosts"].pop("stall_timeout") + 2
    path.write_text(json.dumps(written))
    found = rundir.read_config(tmp_path)["hosts"]
    assert (found["heartbeat_timeout"], found["stall_timeout"]) == (101, 3602)
    check_same_run(tmp_path, TINY)
