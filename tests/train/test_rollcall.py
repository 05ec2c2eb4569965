"""The roll call of hosts: all there, some missing, flags that contradict each other."""

import concurrent.futures
import errno
import socket
import threading
import time

import pytest

from tests.train.runs import free_port
from train.config import ConfigError
from train.config.hosts import HostsConfig
from train.multihost.rollcall import roll_call


def call(
    *hosts: tuple[int, int], timeout: int = 20, host: str = "localhost"
) -> list[str]:
    """What each host of (index, count) is told; all on one port, in threads."""
    address = f"{host}:{free_port()}"

    def one(who: tuple[int, int]) -> str:
        index, count = who
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


@pytest.mark.parametrize("count", [1, 2])
def test_host_0_does_not_reach_itself(count):
    """JAX would abort the process, with a stack of C++."""
    address = f"no-such-host.invalid:{free_port()}"
    said = r"not reach itself at .*no-such-host.*of the machine that has --hosts\.index"
    with pytest.raises(ConfigError, match=said):  # which others may be told too
        roll_call(HostsConfig(address, count, 0, 1))


def has_ipv6() -> bool:
    """Whether this machine has an address of IPv6; containers often have none."""
    if not socket.has_dualstack_ipv6():
        return False
    with socket.socket(socket.AF_INET6) as itself:
        return itself.connect_ex(("::1", free_port())) == errno.ECONNREFUSED


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no address of IPv6")
def test_an_address_of_ipv6():
    assert call((1, 2), (0, 2), host="[::1]") == ["", ""]


def test_host_0_is_missed():
    (only,) = call((1, 2), timeout=1)
    assert "no word from host 0" in only and "within 1 s" in only


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request", b"{}"])
def test_something_else_answers(answer):
    with socket.create_server(("localhost", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed
                    return
                with connection:
                    connection.recv(256)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address = f"localhost:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address} is not host 0 of a run"):
            roll_call(HostsConfig(address, 2, 1, 1))
        server.shutdown(socket.SHUT_RDWR)


def test_who_does_not_speak_is_not_counted():
    address = f"localhost:{free_port()}"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        said = pool.submit(roll_call, HostsConfig(address, 2, 0, 1))
        host, port = address.split(":")
        while not said.done():
            try:
                with socket.create_connection((host, int(port)), timeout=5) as stranger:
                    stranger.sendall(b"[1]")
                break
            except OSError:  # host 0 does not listen yet
                time.sleep(0.05)
        with pytest.raises(ConfigError, match="1 did not come within 1 s"):
            said.result()


def test_two_of_one_index():
    said = call((0, 3), (1, 3), (1, 3), timeout=5)
    assert "two hosts have --hosts.index 1" in said[0]


def test_two_counts():
    said = call((0, 2), (1, 3), timeout=5)
    assert "host 1 has --hosts.count 3, host 0 2" in said[0]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "address", ["host", "host:", "host:0", ":7", "host:70000", "host:\u00b2"]
)
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
