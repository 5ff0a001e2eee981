"""API keys. Knows digests, not keys, and takes the same time for a near miss as for a far one."""

import hashlib
import hmac

from deployments.ingress.errors import Unauthorized

_SCHEME = "bearer"


class ApiKeys:
    """The keys a client may present, by their digests; none at all leaves the API open."""

    def __init__(self, *, digests: tuple[str, ...]) -> None:
        self._digests = digests

    def check(self, authorization: str | None, /) -> None:
        """Checks the value of the `Authorization` header.

        Raises:
            Unauthorized: keys are required and this is none of them.
        """
        if not self._digests:
            return
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() != _SCHEME or not key.strip():
            raise Unauthorized("No API key was given; send it as 'Authorization: Bearer KEY'.")
        presented = key_digest(key.strip())
        # Every key is compared, so that time does not tell which one came close.
        if not sum(hmac.compare_digest(presented, digest) for digest in self._digests):
            raise Unauthorized("The API key is not accepted here; check it with the operator of this server.")


def key_digest(key: str, /) -> str:
    """What replicas are told of a key: its SHA-256 in hexadecimal, since Ray keeps their settings in the clear."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
