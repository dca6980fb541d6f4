"""Which server, and what a person says about it."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from runtime.errors import InvalidSetting

_ALLOWED = "an address like http://127.0.0.1:8000, without name or password in it"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: `prefix` is the path before `/v1`, without a slash at its end."""

    is_encrypted: bool
    host: str
    port: int
    prefix: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}{self.prefix}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(url: str) -> Address:
    """`url` taken apart; raises `InvalidSetting`, which does not repeat a password."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidSetting("engine", url.rpartition("@")[2], _ALLOWED) from error
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not host or not is_plain:
        raise InvalidSetting("engine", url.rpartition("@")[2], _ALLOWED)
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    is_encrypted = parts.scheme == "https"
    return Address(is_encrypted, host, port or (443 if is_encrypted else 80), prefix.rstrip("/"))


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """A server, and the model behind it: `model` is its name there, or where its tokenizer lies here, or both.

    `context` None is what the server says. `key` is sent to it as a bearer token.
    """

    address: Address
    cache_dir: Path
    model: str | None = None
    context: int | None = None
    key: str | None = field(default=None, repr=False)
