"""Text to tokens and block ids. A token is four bytes of UTF-8: a stand-in for a tokenizer, with its one property.

Equal text prefixes give equal token prefixes, and equal token prefixes give equal id prefixes. Not here: anything
that a real tokenizer knows; a token may end in the middle of a character.
"""

from hashlib import blake2b

from sglpool.enginemodel.config import BLOCK_ID_BYTES

TOKEN_BYTES = 4
"""Bytes of UTF-8 per token, about what English and code come to with large vocabularies."""


def count_tokens(text: bytes) -> int:
    """Tokens of a text; the last one may be shorter than the others."""
    return -(-len(text) // TOKEN_BYTES)


def block_ids(text: bytes, page_size_tokens: int) -> bytes:
    """Ids of the text's full pages, `BLOCK_ID_BYTES` each; the rest of the last page has none.

    Args:
        text: UTF-8 of the whole sequence.
        page_size_tokens: tokens of a page.
    """
    if page_size_tokens < 1:
        raise ValueError(f"page_size_tokens is {page_size_tokens}: give at least 1")
    if page_size_tokens == 1:
        return _widened(text)
    page_bytes = page_size_tokens * TOKEN_BYTES
    ends = range(page_bytes, len(text) + 1, page_bytes)
    return b"".join([blake2b(text[end - page_bytes : end], digest_size=BLOCK_ID_BYTES).digest() for end in ends])


def _widened(text: bytes) -> bytes:
    """Every token as its own id: its bytes and zeros. Four strided copies instead of a hash per token."""
    tokens = len(text) // TOKEN_BYTES
    ids = bytearray(tokens * BLOCK_ID_BYTES)
    for offset in range(TOKEN_BYTES):
        ids[offset::BLOCK_ID_BYTES] = text[offset : tokens * TOKEN_BYTES : TOKEN_BYTES]
    return bytes(ids)
