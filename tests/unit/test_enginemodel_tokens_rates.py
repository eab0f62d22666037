"""Text to tokens to ids, and the rates of the GPU types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglpool.enginemodel import block_ids, count_tokens, rates_for

PAGE_SIZES = st.sampled_from([1, 2, 16, 64])


@given(st.binary(max_size=700), PAGE_SIZES)
def test_every_full_page_has_an_id(text: bytes, page: int) -> None:
    assert len(block_ids(text, page)) == len(text) // (4 * page) * 8
    assert count_tokens(text) == (len(text) + 3) // 4


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300), PAGE_SIZES)
def test_ids_are_equal_exactly_as_far_as_the_pages_are(prefix: bytes, one: bytes, other: bytes, page: int) -> None:
    texts = (prefix + one, prefix + other)
    size = 4 * page
    first, second = (block_ids(text, page) for text in texts)
    for number in range(min(len(first), len(second)) // 8):
        pages = [text[number * size : (number + 1) * size] for text in texts]
        ids = [ids[number * 8 : (number + 1) * 8] for ids in (first, second)]
        assert (pages[0] == pages[1]) == (ids[0] == ids[1])


def test_a_page_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size_tokens is 0"):
        block_ids(b"text", 0)


def test_a_hundred_thousand_tokens_take_about_six_seconds_on_four_b200s() -> None:
    rates = rates_for("B200", 4, speculative=False, kv_bytes_per_token=35_136)
    assert rates.prefill_s(100_000, 0) == pytest.approx(6.25)
    assert rates.decode_s(5) == pytest.approx(0.012)
    assert 100_000 / rates.host_load_tokens_per_s == pytest.approx(0.07, abs=0.005)
    load_s = rates.start_overhead_s + 595.15e9 / rates.weight_load_bytes_per_s
    assert load_s == pytest.approx(16 * 60)


def test_a_prompt_takes_the_same_whole_or_in_chunks() -> None:
    rates = rates_for("B200", 4, speculative=False, kv_bytes_per_token=35_136)
    chunks_s = sum(rates.prefill_s(1_000, start) for start in range(0, 50_000, 1_000))
    assert chunks_s == pytest.approx(rates.prefill_s(50_000, 0))


def test_types_and_sizes_are_in_order() -> None:
    def prefill_s(gpu: str, ranks: int) -> float:
        rates = rates_for(gpu, ranks, speculative=False, kv_bytes_per_token=35_136)
        return rates.prefill_s(50_000, 0)

    def decode_s(gpu: str, ranks: int) -> float:
        return rates_for(gpu, ranks, speculative=False, kv_bytes_per_token=35_136).decode_s(5)

    assert prefill_s("B300", 4) < prefill_s("B200", 4) < prefill_s("H200", 4)
    assert decode_s("B300", 4) == decode_s("B200", 4) < decode_s("H200", 4)
    # Twice the ranks are faster, but not twice as fast.
    assert prefill_s("B200", 4) / 2 < prefill_s("B200", 8) < prefill_s("B200", 4)
    assert decode_s("B200", 4) / 2 < decode_s("B200", 8) < decode_s("B200", 4)


def test_speculation_gives_more_tokens_per_longer_step() -> None:
    plain = rates_for("B200", 8, speculative=False, kv_bytes_per_token=35_136)
    drafts = rates_for("B200", 8, speculative=True, kv_bytes_per_token=35_136)
    assert plain.accept_length == 1.0
    assert 3 <= drafts.accept_length <= 6
    assert drafts.decode_s(5) > plain.decode_s(5)
    assert drafts.decode_s(5) / drafts.accept_length < plain.decode_s(5)


def test_what_has_no_rates_is_refused_with_what_has() -> None:
    with pytest.raises(ValueError, match="'A100': known are B200, B300, H200"):
        rates_for("A100", 4, speculative=False, kv_bytes_per_token=35_136)
    with pytest.raises(ValueError, match="tensor_parallel_size is 0"):
        rates_for("B200", 0, speculative=False, kv_bytes_per_token=35_136)
