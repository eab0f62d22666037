"""A radix tree over block ids with locks and eviction: which prefixes one tier of memory holds.

Edges are slices of ids, so a common prefix costs comparisons of memory and never a loop over blocks. Sizes are whole
pages. Not here: how large the tier is and what happens to what is evicted (`tiers`).

Two rules keep eviction free of scans. A node is locked by everyone who holds it or a descendant, and it enters the
order of eviction when its last holder lets go, children first: so a node always stands behind its children, and the
first of the order is a leaf. And eviction takes exactly the pages asked for, from the ends of the leaves longest
unused; the engine itself takes whole leaves, which are shorter because it never lengthens one.
"""

from collections import OrderedDict

from sglpool.enginemodel.config import BLOCK_ID_BYTES

LONGEST_EDGE_BYTES = 65_536
"""A leaf is lengthened in place up to this; then it gets a child, so that lengthening never copies much."""


class Node:
    """An edge and what hangs on its end. After a split the object is the lower part, so whoever holds it may keep it.

    Attributes:
        edge: the ids from the parent's end to this node's end.
        parent: the node above, None for the root.
        children: nodes below, by their first id.
        locks: holders of this node or of a descendant.
    """

    __slots__ = ("children", "edge", "locks", "parent")

    def __init__(self, edge: bytes, parent: "Node | None", locks: int) -> None:
        self.edge = edge
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.locks = locks

    @property
    def pages(self) -> int:
        """Pages of the edge."""
        return len(self.edge) // BLOCK_ID_BYTES


class Hold:
    """A locked prefix: its last node and its length in pages."""

    __slots__ = ("node", "pages")

    def __init__(self, node: Node, pages: int) -> None:
        self.node = node
        self.pages = pages


class RadixTree:
    """Prefixes of one tier.

    Attributes:
        pages: pages of all nodes.
        locked_pages: pages of the nodes that someone holds.
    """

    def __init__(self) -> None:
        self._root = Node(b"", None, locks=1)
        self._order: OrderedDict[Node, None] = OrderedDict()
        self.pages = 0
        self.locked_pages = 0

    @property
    def evictable_pages(self) -> int:
        """Pages that nobody holds."""
        return self.pages - self.locked_pages

    def peek(self, ids: bytes, limit_pages: int) -> int:
        """Length in pages of the longest prefix held here; changes nothing, not even what is evicted next."""
        limit = _limit(ids, limit_pages)
        node, at = self._root, 0
        while at < limit:
            child = node.children.get(ids[at : at + BLOCK_ID_BYTES])
            if child is None:
                break
            common = _common(child.edge, ids, at, limit)
            at += common
            if common < len(child.edge):
                break
            node = child
        return at // BLOCK_ID_BYTES

    def acquire(self, ids: bytes, limit_pages: int) -> Hold:
        """Hold the longest prefix here, at most so many pages."""
        hold = Hold(self._root, 0)
        self.follow(hold, ids, limit_pages)
        return hold

    def follow(self, hold: Hold, ids: bytes, limit_pages: int) -> None:
        """Lengthen a held prefix of these ids by what is here already, to at most so many pages."""
        node, at, limit = hold.node, hold.pages * BLOCK_ID_BYTES, _limit(ids, limit_pages)
        while at < limit:
            child = node.children.get(ids[at : at + BLOCK_ID_BYTES])
            if child is None:
                break
            common = _common(child.edge, ids, at, limit)
            if common < len(child.edge):
                child = self._split(child, common)
            self._lock(child)
            node = child
            at += common
        hold.node, hold.pages = node, at // BLOCK_ID_BYTES

    def extend(self, hold: Hold, ids: bytes, pages: int) -> int:
        """Lengthen a held prefix of these ids to so many pages; what is missing is added.

        Returns:
            How many of the pages were there already.
        """
        held = hold.pages
        self.follow(hold, ids, pages)
        found = hold.pages - held
        at, limit = hold.pages * BLOCK_ID_BYTES, _limit(ids, pages)
        if at < limit:
            self._append(hold, ids[at:limit])
        return found

    def release(self, hold: Hold) -> None:
        """Let go of a prefix; it stays until it is evicted."""
        node = hold.node
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self._order[node] = None
                self.locked_pages -= node.pages
            node = node.parent
        hold.node, hold.pages = self._root, 0

    def evict(self, pages: int) -> int:
        """Throw out so many pages, the longest unused first; fewer if the rest is held.

        Returns:
            How many pages were thrown out.
        """
        left = pages
        while left > 0 and self._order:
            leaf = next(iter(self._order))
            size = leaf.pages
            if size > left:
                leaf.edge = leaf.edge[: (size - left) * BLOCK_ID_BYTES]
                left = 0
            else:
                del self._order[leaf]
                parent = leaf.parent
                assert parent is not None
                assert not leaf.children
                del parent.children[leaf.edge[:BLOCK_ID_BYTES]]
                left -= size
        evicted = pages - left
        self.pages -= evicted
        return evicted

    def _lock(self, node: Node) -> None:
        """Lock one node whose ancestors are locked by the same holder."""
        if not node.locks:
            self._order.pop(node, None)  # a new upper part of a split is not in the order
            self.locked_pages += node.pages
        node.locks += 1

    def _append(self, hold: Hold, edge: bytes) -> None:
        """Add pages below a held node: in place if nobody could tell, else as a child."""
        node = hold.node
        self.pages += len(edge) // BLOCK_ID_BYTES
        self.locked_pages += len(edge) // BLOCK_ID_BYTES
        hold.pages += len(edge) // BLOCK_ID_BYTES
        alone = node.locks == 1 and not node.children and node.parent is not None
        if alone and len(node.edge) + len(edge) <= LONGEST_EDGE_BYTES:
            node.edge += edge
            return
        child = Node(edge, node, locks=1)
        node.children[edge[:BLOCK_ID_BYTES]] = child
        hold.node = child

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge in two and return the new upper part, locked by the same holders."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.edge[:at], parent, locks=node.locks)
        parent.children[node.edge[:BLOCK_ID_BYTES]] = upper
        node.edge = node.edge[at:]
        node.parent = upper
        upper.children[node.edge[:BLOCK_ID_BYTES]] = node
        return upper


def _limit(ids: bytes, pages: int) -> int:
    return min(len(ids), pages * BLOCK_ID_BYTES)


def _common(edge: bytes, ids: bytes, at: int, limit: int) -> int:
    """Bytes, in whole ids, that an edge and the ids from a place on have in common; at least the first id is."""
    size = len(edge)
    if at + size <= limit and ids.startswith(edge, at):
        return size
    low, high = 1, min(size, limit - at) // BLOCK_ID_BYTES
    if low < high and ids.startswith(edge[: high * BLOCK_ID_BYTES], at):
        return high * BLOCK_ID_BYTES
    # The first `low` ids are equal; beyond `high` they cannot be, or need not.
    while high - low > 1:
        middle = (low + high) // 2
        start, end = low * BLOCK_ID_BYTES, middle * BLOCK_ID_BYTES
        if edge[start:end] == ids[at + start : at + end]:
            low = middle
        else:
            high = middle
    return low * BLOCK_ID_BYTES
