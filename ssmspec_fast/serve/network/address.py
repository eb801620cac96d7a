"""Where the server listens, under which names, and who asks."""

import os
import socket
from collections.abc import Collection
from contextlib import ExitStack, suppress
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from ssmspec_ref.errors import ParameterError


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, bound before the model is loaded; the server listens at it later. Raises: ParameterError."""
    with ExitStack() as stack:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            made = stack.enter_context(socket.socket(family))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(os.name == "posix"))
            made.bind(address)
        except (OSError, ValueError) as error:  # a name that cannot be one is a ValueError
            said = f"cannot listen at {host[:100]} port {port}: {error}"
            raise ParameterError(f"{said}; give another --host or --port") from error
        stack.pop_all()
        return made


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine reaches the address that a socket is bound to, however it was written."""
    found = ip_address(listening.getsockname()[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def is_own(host: str, names: Collection[str]) -> bool:
    """Whether a Host header, which may end with a port, is an address or one of the names."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        name = host.lower()
    if name in names:
        return True
    with suppress(ValueError):
        return bool(ip_address(name.removeprefix("[").removesuffix("]")))
    return False


def client_of(peer: Any) -> str:
    """The client of a connection from (address, port): its address, of which it may have a whole network in IPv6 (/64)."""
    address = "" if peer is None else str(peer[0])
    with suppress(ValueError):
        found = ip_address(address.partition("%")[0])
        if isinstance(found, IPv6Address):
            return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
    return address
