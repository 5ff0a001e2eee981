"""API keys. Knows digests, not keys, and takes the same time for a near miss as for a far one."""

import hashlib
import hmac

from deployments.ingress.errors import Forbidden, Unauthorized

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

    def accepts(self, authorization: str | None, /) -> bool:
        """Whether `check` would let it pass."""
        try:
            self.check(authorization)
        except Unauthorized:
            return False
        return True


class AdminKeys(ApiKeys):
    """The keys of operators; none at all closes what they open.

    Args:
        others: keys of clients, which are known here and do not reach so far.
    """

    def __init__(self, *, digests: tuple[str, ...], others: tuple[str, ...]) -> None:
        super().__init__(digests=digests)
        self._is_closed = not digests
        self._others = ApiKeys(digests=others) if others else None

    def check(self, authorization: str | None, /) -> None:
        """As `ApiKeys`.

        Raises:
            Forbidden: there are no such keys, or this one is a client's.
        """
        if self._is_closed:
            raise Forbidden("This route is closed: the server has no admin keys; set ingress.admin_keys_file.")
        try:
            super().check(authorization)
        except Unauthorized:
            if self._others is not None and self._others.accepts(authorization):
                raise Forbidden("This API key may not use this route; it needs an admin key.") from None
            raise


def key_digest(key: str, /) -> str:
    """What replicas are told of a key: its SHA-256 in hexadecimal, since Ray keeps their settings in the clear."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
