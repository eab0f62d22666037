"""The radix tree against a plain set of prefixes, under any sequence of holds, growth and eviction."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglpool.enginemodel.radix import Hold, RadixTree

PAGES = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)


def ids_of(pages: tuple[int, ...]) -> bytes:
    return b"".join((page + 1).to_bytes(8, "big") for page in pages)


def prefixes(pages: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {pages[:length] for length in range(1, len(pages) + 1)}


class RadixMachine(RuleBasedStateMachine):
    """One set element per page: a page is known by the whole prefix that ends with it."""

    @initialize()
    def start(self) -> None:
        self.tree = RadixTree()
        self.known: set[tuple[int, ...]] = set()
        self.holds: list[tuple[Hold, tuple[int, ...]]] = []

    @rule(pages=PAGES, limit=st.integers(0, 13))
    def acquire(self, pages: tuple[int, ...], limit: int) -> None:
        expected = self._longest(pages[:limit])
        assert self.tree.peek(ids_of(pages), limit) == expected
        hold = self.tree.acquire(ids_of(pages), limit)
        assert hold.pages == expected
        self.holds.append((hold, pages))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        hold, pages = data.draw(st.sampled_from(self.holds))
        length = data.draw(st.integers(hold.pages, len(pages)))
        there = len(prefixes(pages[:length]) & self.known) - hold.pages
        assert self.tree.extend(hold, ids_of(pages), length) == there
        assert hold.pages == length
        self.known |= prefixes(pages[:length])

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holds) - 1))
        hold, _ = self.holds.pop(index)
        self.tree.release(hold)

    @rule(pages=st.integers(-1, 20))
    def evict(self, pages: int) -> None:
        evictable = self.tree.evictable_pages
        assert self.tree.evict(pages) == max(0, min(pages, evictable))
        self.known = {prefix for prefix in self.known if self.tree.peek(ids_of(prefix), len(prefix)) == len(prefix)}

    @invariant()
    def counts_are_those_of_the_set(self) -> None:
        held = set().union(*(prefixes(pages[: hold.pages]) for hold, pages in self.holds))
        assert held <= self.known
        assert self.tree.pages == len(self.known)
        assert self.tree.locked_pages == len(held)

    def _longest(self, pages: tuple[int, ...]) -> int:
        return max((len(prefix) for prefix in prefixes(pages) & self.known), default=0)


TestRadix = RadixMachine.TestCase
