"""How a Redis is reached: its address, who asks, TLS; and what its errors mean. Knows no gates."""

import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from deployments.messages.errors import ConfigError

_PORT = 6379
_ANSWER_S = 2.0


@dataclass(frozen=True, kw_only=True)
class RedisAddress:
    """A Redis and who asks.

    Attributes:
        user: an ACL user; empty for the default one.
        password_file: a file with the password, read again for every connection, so that it may change.
        ca_file: who signs the server's certificate; empty trusts whom the system trusts.
        cert_file, key_file: this side's certificate, where the server wants one.
    """

    host: str
    port: int = _PORT
    db: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.db}"

    @staticmethod
    def parsed(
        url: str, /, *, password: str = "", password_file: str = "", tls: "TlsFiles | None" = None
    ) -> "RedisAddress":
        """The address in `redis[s]://[user[:password]@]host[:port][/db]`; a password given apart comes first.

        Raises:
            ConfigError: it is none. The message holds no secret.
        """
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
            db = int(parts.path.strip("/") or 0)
        except ValueError:
            host = None
        if not host or parts.scheme not in ("redis", "rediss") or parts.query or parts.fragment or db < 0:
            raise ConfigError(
                "a gate store on Redis is given as redis://[user@]host[:port][/db], or rediss:// for TLS, and no more; "
                "a password may stand in a variable or a file instead"
            )
        if tls is not None and parts.scheme == "redis":
            raise ConfigError("certificates were given for a redis:// address, which uses none; write rediss://")
        tls = tls or TlsFiles()
        return RedisAddress(
            host=host,
            port=port or _PORT,
            db=db,
            user=unquote(parts.username or ""),
            password=password or unquote(parts.password or ""),
            password_file=password_file,
            tls=parts.scheme == "rediss",
            ca_file=tls.ca_file,
            cert_file=tls.cert_file,
            key_file=tls.key_file,
        )

    @property
    def _has_credentials(self) -> bool:
        return bool(self.user or self.password or self.password_file)

    def client(self) -> redis.Redis:
        """A client that gives up soon and never tries again by itself: whoever asks knows better when to."""
        tls = {
            "ssl_ca_certs": self.ca_file or None,
            "ssl_certfile": self.cert_file or None,
            "ssl_keyfile": self.key_file or None,
            "ssl_check_hostname": True,
        }
        return redis.Redis(
            host=self.host,
            port=self.port,
            db=self.db,
            credential_provider=_Credentials(self) if self._has_credentials else None,
            socket_timeout=_ANSWER_S,
            socket_connect_timeout=_ANSWER_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            ssl=self.tls,
            **(tls if self.tls else {}),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Paths of certificates; as in `RedisAddress`."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class _Credentials(CredentialProvider):
    def __init__(self, address: RedisAddress) -> None:
        self._address = address

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        address = self._address
        password = address.password
        if address.password_file:
            try:
                password = Path(address.password_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                # Only for its own errors does the client drop the connection, which nobody logged in on.
                raise redis.ConnectionError(f"the password file cannot be read: {error}") from error
        return (address.user, password) if address.user else (password,)


TROUBLE = (redis.RedisError, OSError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""All that a Redis and the way to it may raise. TLS and timeouts are errors of the system; the client stumbles in many
ways over answers that no Redis gives.
"""


def told(error: Exception, /) -> str:
    """What an error means and what to do, in a few words; holds no secret."""
    # In a transaction the client repeats the command before it says what was wrong with it.
    text = str(error).rpartition(" of pipeline caused error: ")[2].strip().rstrip(".") or type(error).__name__
    match error:
        case redis.AuthenticationError() | redis.exceptions.AuthenticationWrongNumberOfArgsError():
            return f"it refused the user or the password ({text})"
        case redis.exceptions.NoPermissionError():
            return f"its user may not do this ({text}); docs/reference/gates.md has the rule for its ACL"
        case redis.exceptions.ReadOnlyError():
            return f"it is a replica, which cannot be written ({text}); give the address of the primary"
        case redis.TimeoutError() | TimeoutError() | socket.timeout():
            return f"it did not answer in time ({text})"
        case _:
            return text
