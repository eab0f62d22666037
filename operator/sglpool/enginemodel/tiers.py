"""The KV pool in HBM with its cache, and HiCache's host pool behind it, counted in pages.

Every page of the pool is free, in the tree of cached prefixes, or private to one request. The host pool has a tree of
its own and holds also what is in HBM: what is cached in HBM is copied at once (write-through), as far as there is
room that no running request holds. Not here: who is admitted, and time.
"""

from sglpool.enginemodel.config import BLOCK_ID_BYTES
from sglpool.enginemodel.radix import Hold, RadixTree


class Lease:
    """What one request holds.

    Attributes:
        device: its locked prefix in HBM.
        host: its locked prefix in host memory.
        private: pages in HBM that are not in the tree: the chunk in flight, output, the last partial page.
    """

    __slots__ = ("device", "host", "private")

    def __init__(self, device: Hold, host: Hold) -> None:
        self.device = device
        self.host = host
        self.private = 0

    @property
    def pages(self) -> int:
        """Pages in HBM, shared ones included."""
        return self.device.pages + self.private


class KVCache:
    """Both tiers of one replica.

    Attributes:
        pool_pages: pages in HBM.
        host_pages: pages in host memory, 0 without HiCache.
        evicted_pages: thrown out of HBM so far.
        load_back_pages: brought back from host memory so far.
        backup_pages: copied to host memory so far.
    """

    def __init__(self, pool_pages: int, host_pages: int) -> None:
        self.pool_pages = pool_pages
        self.host_pages = host_pages
        self.evicted_pages = 0
        self.load_back_pages = 0
        self.backup_pages = 0
        self._private_pages = 0
        self._device = RadixTree()
        self._host = RadixTree()

    @property
    def available_pages(self) -> int:
        """Free pages in HBM."""
        return self.pool_pages - self._device.pages - self._private_pages

    @property
    def evictable_pages(self) -> int:
        """Cached pages in HBM that no request holds."""
        return self._device.evictable_pages

    @property
    def obtainable_pages(self) -> int:
        """Pages that a request can get: free ones and what can be evicted."""
        return self.available_pages + self.evictable_pages

    @property
    def used_pages(self) -> int:
        """Pages in HBM that requests hold."""
        return self._private_pages + self._device.locked_pages

    @property
    def host_used_pages(self) -> int:
        """Pages in host memory that hold something."""
        return self._host.pages

    def peek(self, ids: bytes, limit_pages: int) -> int:
        """Pages cached in either tier; changes nothing."""
        device = self._device.peek(ids, limit_pages)
        return max(device, self._host.peek(ids, limit_pages)) if self.host_pages else device

    def acquire(self, ids: bytes, limit_pages: int) -> Lease:
        """Hold the longest cached prefix of each tier."""
        return Lease(self._device.acquire(ids, limit_pages), self._host.acquire(ids, limit_pages))

    def load_back(self, lease: Lease, ids: bytes) -> int:
        """Bring what only the host tier has into HBM; the caller knows that there is room.

        Returns:
            The pages that came back.
        """
        pages = lease.host.pages - lease.device.pages
        if pages <= 0:
            return 0
        self._make_room(pages)
        self._device.extend(lease.device, ids, lease.host.pages)
        self.load_back_pages += pages
        return pages

    def grow(self, lease: Lease, pages: int) -> None:
        """Give a request so many private pages more; the caller knows that there is room."""
        if pages > 0:
            self._make_room(pages)
            lease.private += pages
            self._private_pages += pages

    def commit(self, lease: Lease, ids: bytes, pages: int) -> None:
        """Share a request's first so many pages: from now on others find them, here and in host memory.

        Pages that someone else has shared meanwhile are given back.
        """
        moved = min(pages, len(ids) // BLOCK_ID_BYTES) - lease.device.pages
        if moved > 0:
            lease.private -= moved
            self._private_pages -= moved
            self._device.extend(lease.device, ids, pages)
        self._back_up(lease, ids)

    def release(self, lease: Lease) -> None:
        """Let go of everything: private pages are free, shared ones stay cached."""
        self._private_pages -= lease.private
        lease.private = 0
        self._device.release(lease.device)
        self._host.release(lease.host)

    def flush(self) -> None:
        """Forget both tiers; nobody holds anything."""
        self._device = RadixTree()
        self._host = RadixTree()

    def _back_up(self, lease: Lease, ids: bytes) -> None:
        target = lease.device.pages
        if not self.host_pages or lease.host.pages >= target:
            return
        # What lies there already is held first, lest it be evicted to make room for itself.
        self._host.follow(lease.host, ids, target)
        missing = target - lease.host.pages
        free = self.host_pages - self._host.pages
        free += self._host.evict(missing - free)
        copied = min(missing, free)
        self._host.extend(lease.host, ids, lease.host.pages + copied)
        self.backup_pages += copied

    def _make_room(self, pages: int) -> None:
        self.evicted_pages += self._device.evict(pages - self.available_pages)
