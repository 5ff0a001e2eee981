"""A process that writes records: `python -m tests.serve_app.gating.writing URL FIRST COUNT`."""

import sys

from serve_app.gating.opening import StoreSettings, open_store
from tests.serve_app.gating.making import exactness, key

if __name__ == "__main__":
    url, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = open_store(StoreSettings(url=url))
    for number in range(first, first + count):
        store.put(exactness(key(slots=number)))
    store.close()
