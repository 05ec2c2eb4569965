"""Waiting for all hosts before JAX does, which would end the process without a word."""

import contextlib
import json
import logging
import socket
import threading
import time
from typing import Any

from train.config import ConfigError
from train.config.hosts import HostsConfig

logger = logging.getLogger("train")


def roll_call(config: HostsConfig) -> None:
    """Returns once every host has named itself to host 0, host 0 itself included.

    Raises:
        ConfigError: on every host that came, naming those that did not within
            `config.timeout` seconds, or two that call themselves the same.
    """
    host, port = _address(config)
    count, index = config.count or 1, config.index or 0
    if not 0 <= index < count:
        raise ConfigError(
            f"--hosts.index {index} is none of 0 to {count - 1}, the indices of "
            f"--hosts.count {count}: count from 0."
        )
    if config.index == 0:
        trouble = _listen(host, port, config)
    else:
        trouble = _report(host, port, config)
    if trouble:
        raise ConfigError(trouble)


def _address(config: HostsConfig) -> tuple[str, int]:
    host, _, port = (config.coordinator or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"--hosts.coordinator {config.coordinator} is no address: give HOST:PORT, "
            "host 0's name and a free port there, the same on every host."
        )
    return host.strip("[]"), int(port)


def _listen(host: str, port: int, config: HostsConfig) -> str:
    """Host 0: collects all hosts, then tells all of them what came of it.

    It calls itself by the address too, as JAX will: an address that is not this
    machine's, or that it cannot resolve, would end the process without a word.
    """
    count = config.count or 1
    deadline = time.monotonic() + config.timeout
    found: set[int] = set()
    connections: list[socket.socket] = []
    trouble = ""
    try:
        server = _server(port)
    except OSError as error:
        return (
            f"--hosts.coordinator {config.coordinator}: host 0 cannot listen there "
            f"({error.strerror}): name another port."
        )
    itself = threading.Thread(target=_report, args=(host, port, config), daemon=True)
    itself.start()
    with server:
        while len(found) < count and not trouble:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                connection, _ = server.accept()
                connections.append(connection)
                connection.settimeout(5)
                said = _message(connection.recv(256), "index", "count")
            except TimeoutError:
                if time.monotonic() >= deadline:
                    trouble = _missing(found, config)
                continue
            except (ValueError, ConnectionError):
                continue  # something else that knocks at open ports
            trouble = _fault(said, found, count)
            found.add(said["index"])
    for connection in connections:
        with connection, contextlib.suppress(ConnectionError):  # it may have given up
            connection.sendall(json.dumps({"trouble": trouble}).encode())
    return trouble


def _server(port: int) -> socket.socket:
    """Listens to IPv4 and, where the machine has it, to IPv6, as JAX does."""
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", port))
    family = socket.AF_INET6
    return socket.create_server(("", port), family=family, dualstack_ipv6=True)


def _message(data: bytes, *names: str) -> dict[str, Any]:
    """What a host says; ValueError where it is no host that speaks."""
    said = json.loads(data)
    if not isinstance(said, dict) or set(said) != set(names):
        raise ValueError(f"not of a roll call: {said}")
    return said


def _missing(found: set[int], config: HostsConfig) -> str:
    absent = [i for i in range(config.count or 1) if i not in found]
    if 0 in absent:
        return (
            "host 0 does not reach itself at --hosts.coordinator "
            f"{config.coordinator}: give every host a name or an address of the "
            "machine that has --hosts.index 0."
        )
    return (
        f"of --hosts.count {config.count} hosts, {len(absent)} did not come within "
        f"{config.timeout} s (--hosts.timeout): {', '.join(map(str, absent))}. Start "
        "the same command there with their --hosts.index, or leave out all --hosts "
        "flags to train on this machine alone."
    )


def _fault(said: dict[str, int], found: set[int], count: int) -> str:
    if said["count"] != count:
        return (
            f"host {said['index']} has --hosts.count {said['count']}, host 0 {count}: "
            "give every host the same."
        )
    if said["index"] in found:
        return f"two hosts have --hosts.index {said['index']}: give each its own."
    return ""


def _report(host: str, port: int, config: HostsConfig) -> str:
    """Any other host: names itself to host 0, and waits for its word."""
    deadline = time.monotonic() + config.timeout
    silent = (
        f"no word from host 0 at --hosts.coordinator {config.coordinator} within "
        f"{config.timeout} s (--hosts.timeout): is it started, with the same address, "
        "and can this machine reach the port?"
    )
    me = json.dumps({"index": config.index, "count": config.count}).encode()
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.settimeout(config.timeout + 10)
                connection.sendall(me)
                answer = connection.recv(2**16)
            if answer:
                return _message(answer, "trouble")["trouble"]
        except OSError:
            logger.debug("host 0 does not listen yet")
        except ValueError:
            silent = (
                f"what answers at --hosts.coordinator {config.coordinator} is not host "
                "0 of a run: name host 0's machine and a port that is free there."
            )
        time.sleep(0.2)
    return silent
