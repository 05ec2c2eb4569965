"""The roll call of hosts: all there, some missing, flags that contradict each other."""

import concurrent.futures
import socket

import pytest

from tests.train.runs import free_port
from train.config import ConfigError
from train.hosts_config import HostsConfig
from train.rollcall import roll_call


def call(*hosts: tuple[int, int], timeout: int = 20) -> list[str]:
    """What each host of (index, count) is told; all on one port, in threads."""
    address = f"localhost:{free_port()}"

    def one(host: tuple[int, int]) -> str:
        index, count = host
        try:
            roll_call(HostsConfig(address, count, index, timeout))
        except ConfigError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(one, hosts))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_are_there(count):
    order = reversed(range(count))  # host 0 comes last
    assert call(*((index, count) for index in order)) == [""] * count


def test_the_missing_are_named_to_all_that_came():
    first, third = call((0, 4), (2, 4), timeout=1)
    assert first == third
    assert "of --hosts.count 4 hosts, 2 did not come within 1 s" in first
    assert ": 1, 3. Start" in first


def test_host_0_is_missed():
    (only,) = call((1, 2), timeout=1)
    assert "no word from host 0" in only and "within 1 s" in only


def test_two_of_one_index():
    said = call((0, 3), (1, 3), (1, 3), timeout=5)
    assert "two hosts have --hosts.index 1" in said[0]


def test_two_counts():
    said = call((0, 2), (1, 3), timeout=5)
    assert "host 1 has --hosts.count 3, host 0 2" in said[0]
    assert said[0] == said[1]


@pytest.mark.parametrize("address", ["host", "host:", "host:0", ":7", "host:70000"])
def test_addresses_are_checked(address):
    with pytest.raises(ConfigError, match="is no address: give HOST:PORT"):
        roll_call(HostsConfig(address, 2, 0, 1))


def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot listen there"):
            roll_call(HostsConfig(address, 2, 0, 1))


def test_index_beyond_the_count():
    with pytest.raises(ConfigError, match=r"--hosts\.index 2 is none of 0 to 1"):
        roll_call(HostsConfig("localhost:1", 2, 2, 1))
