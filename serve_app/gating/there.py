"""What runs at a service, as it says itself, to hold records against: every part of its keys. Asks over HTTP."""

import httpx
import msgspec

from deployments.messages.errors import ConfigError, Unavailable
from serve_app.gating.here import Here
from serve_app.gating.keys import ProfitKey

_ANSWER_S = 30.0


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    key: ProfitKey | None


class _Replica(msgspec.Struct, frozen=True, kw_only=True):
    replica: str
    candidates: tuple[_Candidate, ...]


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[_Replica, ...]


def that_service(url: str, /, *, keys: tuple[str, ...]) -> tuple[Here, ...]:
    """One for each kind of verifier there is: replicas on the same chip with the same programs are as one.

    Args:
        url: where the service answers, without a path.
        keys: the first one opens `/admin`.

    Raises:
        ConfigError: it has no key of this service, or the service asks no gates.
        Unavailable: nobody answers, or says what is not understood.
    """
    found: dict[str, Here] = {}
    for replica in _page(url, keys=keys).data:
        pairings = [each.key for each in replica.candidates if each.key is not None]
        if pairings:
            here = _here(replica.replica, pairings=pairings)
            found.setdefault(repr((here.parts, here.pairings)), here)
    if not found:
        raise ConfigError(f"the service at {url} asks no gates, so there is nothing to compare records with")
    return tuple(found.values())


def _here(replica: str, *, pairings: list[ProfitKey]) -> Here:
    return Here(
        where=f"to {replica}",
        parts=_fields(pairings[0].program),
        pairings={key.drafter.kind: {"drafter": key.drafter, "k_max": key.k_max} for key in pairings},
    )


def _fields(value: msgspec.Struct) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _page(url: str, *, keys: tuple[str, ...]) -> _Page:
    asked = f"{url.rstrip('/')}/admin/gates"
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    try:
        answer = httpx.get(asked, headers=headers, timeout=_ANSWER_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{asked} cannot be asked ({error}); is the service running?") from error
    if answer.status_code in (401, 403):
        raise ConfigError(f"{asked} needs one of the service's admin keys; give a file that has it, --admin-keys-file")
    try:
        return msgspec.json.decode(answer.raise_for_status().content, type=_Page)
    except (httpx.HTTPStatusError, msgspec.DecodeError) as error:
        told = " ".join(str(error).splitlines()[:1])
        raise Unavailable(f"{asked} is not understood ({told}); is it Outrider of the same version?") from error
