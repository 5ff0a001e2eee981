"""Gates in Redis: a hash with one field per record and a revision, and a channel that tells each new revision.

Every write is one transaction. A watcher subscribes before it reads, so that nothing is lost between the two, and looks
at the revision now and then, in case a message was.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

from redis.client import Pipeline, PubSub

from serve_app.gating.encoding import (
    MOST_BYTES,
    SCHEMA,
    GatesUnreadable,
    decode_record,
    encode_gates,
    encode_record,
)
from serve_app.gating.last_known import LastKnown
from serve_app.gating.records import Forced, Record, Target
from serve_app.gating.redis_link import TROUBLE, RedisAddress, told
from serve_app.gating.snapshot import Snapshot
from serve_app.gating.store import GateStoreError, OnChange, StoreStatus
from serve_app.gating.watching import Watching

_REVISION = b"revision"
_LISTEN_S = 0.2
_LOOK_S = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0


class RedisStore:
    """A `redis:` or `rediss:` store; see `store.GateStore`.

    Args:
        name: of the hash, without the version of its contents. Stores with other names share nothing.
        look_s: seconds between looks at the revision.
    """

    def __init__(self, address: RedisAddress, /, *, name: str = "outrider:gates", look_s: float = _LOOK_S) -> None:
        # Another schema is another hash: versions of Outrider side by side do not read each other's records.
        self._hash = f"{name}:{SCHEMA}"
        self._channel = f"{name}:{SCHEMA}:changes"
        self._client = address.client()
        self._known = LastKnown(f"{address} {self._hash}")
        self._look_s = look_s
        # Reentrant: who is told of a change may look at the store.
        self._reading = threading.RLock()
        self._watching: Watching | None = None

    @property
    def snapshot(self) -> Snapshot:
        return self._known.snapshot

    def status(self) -> StoreStatus:
        return self._known.status()

    def load(self) -> Snapshot:
        with self._reading:
            try:
                self._load()
            except TROUBLE as error:
                self._fail(error)
            return self.snapshot

    def put(self, record: Record, /) -> None:
        self._set(record)

    def force(self, forced: Forced, /) -> None:
        self._set(forced)

    def unforce(self, target: Target, /) -> bool:
        return self._delete(f"forced:{Forced.id_for(target)}")

    def remove(self, record: str, /) -> bool:
        return self._delete(*(f"{kind}:{record}" for kind in ("exactness", "profit", "forced")))

    def export(self) -> str:
        with self._telling("read"):
            return encode_gates(self._gates(self._fields()))

    def watch(self, on_change: OnChange, /) -> None:
        self._known.watch(on_change)
        self._watching = Watching(self._keep_watching, name=self._known.name)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.stop()
        self._client.close()

    def _load(self) -> None:
        """Raises what `TROUBLE` names."""
        fields = self._fields()
        if not fields:
            self._known.find_nothing()
            return
        try:
            self._known.accept(self._gates(fields))
        except GatesUnreadable as error:
            self._known.find_unreadable(str(error), content=repr(sorted(fields.items())).encode())

    def _fields(self) -> dict[bytes, bytes]:
        return cast(dict[bytes, bytes], self._client.hgetall(self._hash))

    def _gates(self, fields: dict[bytes, bytes]) -> Snapshot:
        size = sum(map(len, fields.values()))
        if size > MOST_BYTES:
            raise GatesUnreadable(f"{size} bytes are too many for gates; the most are {MOST_BYTES}")
        rest = dict(fields)
        revision = rest.pop(_REVISION, b"0")
        if not revision.isdigit():
            raise GatesUnreadable(f"the revision is {revision[:20]!r}, which is no number")
        records = [decode_record(field.decode(errors="replace"), value=rest[field]) for field in sorted(rest)]
        return Snapshot.of(records, revision=int(revision))

    def _set(self, record: Record | Forced) -> None:
        field, value = encode_record(record)
        with self._telling("read"):
            if self._client.hget(self._hash, field) == value:
                return
        self._commit(lambda pipeline: pipeline.hset(self._hash, field, value))

    def _delete(self, *fields: str) -> bool:
        with self._telling("read"):
            if not any(self._client.hexists(self._hash, field) for field in fields):
                return False
        return self._commit(lambda pipeline: pipeline.hdel(self._hash, *fields)) > 0

    def _commit(self, change: Callable[[Pipeline], Any], /) -> int:
        """Runs one change, the next revision and its message in one transaction; what the change answered."""
        with self._telling("written"), closing(self._client.pipeline(transaction=True)) as pipeline:
            change(pipeline)
            pipeline.hincrby(self._hash, "revision", 1)
            pipeline.publish(self._channel, "changed")
            answer = int(pipeline.execute()[0])
        self.load()
        return answer

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except (*TROUBLE, GatesUnreadable) as error:
            self._drop_connections()
            trouble = str(error) if isinstance(error, GatesUnreadable) else told(error)
            raise GateStoreError(f"the gates in {self._known.name} cannot be {what}: {trouble}") from error

    def _fail(self, error: Exception) -> None:
        self._known.find_unreachable(told(error))
        self._drop_connections()

    def _drop_connections(self) -> None:
        """Forgets idle connections: after some errors the client keeps one on which nobody logged in."""
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _keep_watching(self, over: threading.Event) -> None:
        wait_s = _FIRST_WAIT_S
        while not over.is_set():
            began = time.monotonic()
            try:
                self._listen(over)
            except TROUBLE as error:
                self._fail(error)
            if time.monotonic() - began > _LONGEST_WAIT_S:
                wait_s = _FIRST_WAIT_S
            # Replicas that lost the same Redis do not come back to it together.
            over.wait(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _listen(self, over: threading.Event) -> None:
        """Follows the channel until the connection breaks. Raises what `TROUBLE` names."""
        with closing(cast(Any, self._client).pubsub()) as channel:
            channel.subscribe(self._channel)
            looked = -self._look_s
            while not over.is_set():
                if self._heard(channel):
                    with self._reading:
                        self._load()
                elif time.monotonic() - looked > self._look_s:
                    self._look()
                else:
                    continue
                looked = time.monotonic()

    def _heard(self, channel: PubSub) -> bool:
        """Waits a little for a message; the answer to the subscription, which comes first, is one."""
        return channel.get_message(timeout=_LISTEN_S) is not None

    def _look(self) -> None:
        revision = cast(bytes | None, self._client.hget(self._hash, "revision"))
        if revision is None or not revision.isdigit() or int(revision) != self.snapshot.revision:
            with self._reading:
                self._load()
