"""The radix cache of the engine model: turns of coding sessions per second, and what text to block ids costs.

Each operation is one turn of a session of about 100,000 tokens: the prompt is matched, prompt and output are put in
the cache (HBM and host tier), and the pool is far too small for all sessions, so that every turn evicts. The peer is
the plainest cache that is right: a dict from every prefix to its page. Run it with `python -m benchmarks.radix`.
"""

import argparse
import random
import sys
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from benchmarks.common import Row, percentile, show

from sglpool.enginemodel import BLOCK_ID_BYTES, block_ids
from sglpool.enginemodel.tiers import KVCache

CONTEXT_TOKENS = 100_000
SHARED_TOKENS = 15_000
"""Tools and system prompt, the same in every session."""
TURN_TOKENS = 700
SESSIONS = 32
POOL_TOKENS = 750_000
HOST_TOKENS = 3_000_000
SLOWEST_TURN_S = 1 / 20_000
SEED = 1


def rows(*, turns: int = 20_000, small_pages: bool = True) -> list[Row]:
    """Measure; `small_pages` adds the page size of one token, which some attention backends force."""
    found = _turn_rows(64, turns)
    if small_pages:
        found += _turn_rows(1, turns // 20)
    return found + _text_rows()


def _turn_rows(page_tokens: int, turns: int) -> list[Row]:
    sessions = _sessions(page_tokens)
    order = random.Random(SEED).choices(range(len(sessions)), k=turns)
    cache = KVCache(POOL_TOKENS // page_tokens, HOST_TOKENS // page_tokens)
    us = _per_turn_us(_cache_turns(cache, sessions, order, page_tokens), turns)
    peer_turns = max(20, turns // 1000) if page_tokens > 1 else 4
    peer_us = _per_turn_us(_dict_turns(sessions, order[:peer_turns], page_tokens), peer_turns)
    assert cache.evicted_pages > 0, "the pool was large enough: nothing was evicted"
    return [
        Row(
            figure=f"one turn at {CONTEXT_TOKENS:,} tokens in pages of {page_tokens}: match, insert, evict, both tiers",
            value=us,
            unit="us",
            goal=SLOWEST_TURN_S * 1e6 if page_tokens > 1 else None,
            peer="a dict of all prefixes, one tier",
            peer_value=peer_us,
        ),
        Row(figure=f"the same as turns per second, pages of {page_tokens}", value=1e6 / us, unit="1/s"),
    ]


def _cache_turns(
    cache: KVCache, sessions: Sequence[bytes], order: Sequence[int], page_tokens: int
) -> Callable[[], None]:
    """Turns of sessions, each longer by one turn than it was; a session that is full begins again."""
    first_pages, step_pages = CONTEXT_TOKENS // page_tokens, -(-TURN_TOKENS // page_tokens)
    lengths = [first_pages] * len(sessions)

    def run() -> None:
        for number in order:
            ids, pages = sessions[number], lengths[number]
            lease = cache.acquire(ids, pages - 1)
            cache.load_back(lease, ids)
            cache.grow(lease, pages - lease.pages)
            cache.commit(lease, ids, pages)
            cache.release(lease)
            longer = pages + step_pages
            lengths[number] = longer if longer * BLOCK_ID_BYTES <= len(ids) else first_pages

    return run


def _dict_turns(sessions: Sequence[bytes], order: Sequence[int], page_tokens: int) -> Callable[[], None]:
    """Every prefix is a key, by its hash chained over pages; the oldest keys are thrown out."""
    pool_pages, pages = POOL_TOKENS // page_tokens, CONTEXT_TOKENS // page_tokens
    cache: OrderedDict[int, None] = OrderedDict()

    def run() -> None:
        for number in order:
            ids, key, keys = sessions[number], 0, []
            for page in range(pages):
                key = hash((key, ids[page * BLOCK_ID_BYTES : (page + 1) * BLOCK_ID_BYTES]))
                keys.append(key)
            for key in reversed(keys):  # ends first, so that eviction begins with them
                cache[key] = None
                cache.move_to_end(key)
            while len(cache) > pool_pages:
                cache.popitem(last=False)

    return run


def _text_rows() -> list[Row]:
    text = random.Random(SEED).randbytes(4 * CONTEXT_TOKENS)
    peers: dict[int, tuple[str, Callable[[bytes], object]]] = {
        64: ("one hash over all of it (the floor)", lambda text: blake2b(text, digest_size=BLOCK_ID_BYTES).digest()),
        1: ("array: every token through a Python integer", lambda text: array("Q", array("I", text)).tobytes()),
    }
    return [
        Row(
            figure=f"text of {CONTEXT_TOKENS:,} tokens to ids in pages of {page_tokens}, p50",
            value=_median_ms(partial(block_ids, text, page_tokens)),
            unit="ms",
            peer=peer,
            peer_value=_median_ms(partial(convert, text)),
        )
        for page_tokens, (peer, convert) in peers.items()
    ]


def _median_ms(run: Callable[[], object]) -> float:
    return percentile([_timed_s(run) for _ in range(25)], 50) * 1e3


def _sessions(page_tokens: int) -> list[bytes]:
    """Ids of long sessions; random ids are as good as ids of text, and sooner made."""
    source = random.Random(SEED)
    shared = source.randbytes(SHARED_TOKENS // page_tokens * BLOCK_ID_BYTES)
    own_bytes = (CONTEXT_TOKENS * 3 // 2 - SHARED_TOKENS) // page_tokens * BLOCK_ID_BYTES
    return [shared + source.randbytes(own_bytes) for _ in range(SESSIONS)]


def _per_turn_us(run: Callable[[], None], turns: int) -> float:
    return _timed_s(run) / turns * 1e6


def _timed_s(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=20_000)
    options = parser.parse_args(argv)
    found = rows(turns=options.turns)
    show("radix cache of the engine model", found)
    return int(any(row.met is False for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
