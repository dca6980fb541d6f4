"""The socket the server listens on: taken before anything else, so that a busy port is told at once."""

import dataclasses
import errno
import socket
import sys

from app.errors import AddressUnusable
from app.settings import Settings

_N_TRIES = 10


def listen(settings: Settings) -> socket.socket:
    """A listening socket on the settings' host and port. Raises `AddressUnusable`.

    Where the port is the default, which nobody chose, the next ones are tried while it is taken.
    """
    ports = [settings.port]
    if settings.port == _default_port():
        ports += range(settings.port + 1, settings.port + _N_TRIES)
    for port in ports[:-1]:
        try:
            return _bind(settings.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise AddressUnusable(settings.host, port, _reason(error)) from error
    try:
        return _bind(settings.host, ports[-1])
    except OSError as error:
        raise AddressUnusable(settings.host, settings.port, _reason(error)) from error


def url(listener: socket.socket) -> str:
    """The address a browser on this machine opens."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _bind(host: str, port: int) -> socket.socket:
    kind = socket.SOCK_STREAM
    found = socket.getaddrinfo(host.strip("[]"), port, type=kind, flags=socket.AI_PASSIVE)
    family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)  # "localhost" is IPv4 first
    listener = socket.socket(family, kind)
    try:
        if sys.platform != "win32":  # there the option lets two programs listen on one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program uses it"
    return error.strerror or str(error)


def _default_port() -> object:
    return next(field.default for field in dataclasses.fields(Settings) if field.name == "port")
