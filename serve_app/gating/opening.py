"""The one place that looks at which kind of gate store was asked for."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from deployments.messages.errors import ConfigError
from serve_app.gating.file_store import FileStore
from serve_app.gating.redis_link import RedisAddress, TlsFiles
from serve_app.gating.redis_store import RedisStore
from serve_app.gating.store import GateStore


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Which gate store. Pickled to every replica, each of which opens it for itself.

    Attributes:
        url: `file:PATH`, `redis://[user@]host[:port][/db]`, or `rediss://` for TLS.
        password: of Redis, where it does not stand in `url`; read from a variable by whoever makes this.
        password_file: a file with it, on the machine that opens the store.
        tls: certificates, for `rediss://` alone.
        name: of the hash in Redis.
    """

    url: str = field(repr=False)
    password: str = field(default="", repr=False)
    password_file: str = ""
    tls: TlsFiles | None = None
    name: str = "outrider:gates"


def open_store(settings: StoreSettings, /) -> GateStore:
    """Makes the store that `settings` describe; looks at nothing yet.

    Raises:
        ConfigError: they describe none.
    """
    scheme, _, rest = settings.url.partition(":")
    match scheme:
        case "file":
            return FileStore(_path(rest))
        case "redis" | "rediss":
            address = RedisAddress.parsed(
                settings.url, password=settings.password, password_file=settings.password_file, tls=settings.tls
            )
            return RedisStore(address, name=settings.name)
        case _:
            raise ConfigError("a gate store begins with file:, redis:// or rediss://, as in file:gates.yaml")


def _path(rest: str) -> Path:
    path = unquote(rest.removeprefix("//")) if rest.startswith("//") else rest
    if not path or "\0" in path or (rest.startswith("//") and not path.startswith("/")):
        raise ConfigError("a gate store in a file is given as file:PATH, or file:///PATH")
    return Path(path).expanduser()
