"""The drop-in for vLLM's Inkling operator: its tables bit for bit, and its own test matrix, on every device present."""

import inspect

import numpy as np
import pytest
from oracle import BFLOAT16, Problem, attention

import flashrel
from flashrel import inkling

TP = (1, 2, 4, 8)


def splits(batch, q, kv=131072, tp=1, is_local=False, major=10):
    return inkling.inkling_fa4_num_splits(
        is_local=is_local, batch_size=batch, max_query_len=q, num_heads=64 // tp, num_kv_heads=8 // tp, max_kv_len=kv,
        capability_major=major,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "q", "expected"),
    [
        (1, 1, [16, 32, 128, 128]),
        (8, 1, [2, 4, 8, 16]),
        (32, 1, [1, 1, 2, 4]),
        (1, 128, [2, 4, 8, 16]),
        (1, 2048, [1, 1, 1, 1]),
    ],
)
def test_split_table(batch, q, expected):
    assert [splits(batch, q, tp=tp) for tp in TP] == expected
    assert [splits(batch, q, tp=tp, major=9) for tp in TP] == [1, 1, 1, 1]
    assert [splits(batch, q, tp=tp, is_local=True) for tp in TP] == [1, 1, 1, 1]


@pytest.mark.parametrize(("kv", "expected"), [(8192, 32), (65536, 64), (1048576, 128)])
def test_split_table_by_length(kv, expected):
    assert splits(1, 1, kv, tp=4) == splits(1, 1, kv, tp=8) == expected


def test_buckets():
    assert [inkling.bucket_max_seqlen_q(n) for n in (-1, 0, 1, 2, 3, 4, 5, 64, 65)] == [1, 1, 1, 2, 4, 4, 8, 64, 128]


def test_sheared_majors():
    majors = {major for major in range(7, 14) for minor in (0, 1, 3) if inkling.use_sheared_bias((major, minor))}
    assert majors == {10, 11}


def test_signature_is_the_seeds():
    parameters = inspect.signature(inkling.inkling_fa4_rel_attention).parameters
    assert list(parameters) == [
        "q", "key_cache", "value_cache", "block_table", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale",
        "causal", "window_size", "rel_extent", "rel_logits", "num_splits", "out",
    ]  # fmt: skip
    assert parameters["num_splits"].default == 32 and parameters["out"].default is None
    assert all(p.kind is p.KEYWORD_ONLY for name, p in list(parameters.items())[3:])
    rule = inspect.signature(inkling.inkling_fa4_num_splits).parameters
    assert list(rule)[:6] == ["is_local", "batch_size", "max_query_len", "num_heads", "num_kv_heads", "max_kv_len"]


def seed_arguments(heads, extent, window, q_lens, kv_lens):
    """The seed's inputs: head_dim 128, page 16, scale 1/128, unit-norm q and k, bf16."""
    arrays = Problem(
        q_lens, kv_lens, n_q_heads=heads[0], n_kv_heads=heads[1], head_dim=128, page_size=16, dtype=BFLOAT16, bias="logits",
        rel_extent=extent, window_size=window, softmax_scale=1 / 128,
    ).arrays()  # fmt: skip
    q = arrays["q"].astype(np.float32)
    arrays["q"] = (q / np.linalg.norm(q, axis=-1, keepdims=True)).astype(BFLOAT16)
    arrays["key_cache"], arrays["value_cache"] = arrays.pop("k_cache"), arrays.pop("v_cache")
    for name in ("rel_zero", "rel_edge"):
        del arrays[name]
    arrays["max_seqlen_q"] = inkling.bucket_max_seqlen_q(max(q_lens))
    return {**arrays, "rel_extent": extent}


SEED_SHAPES = [([1, 1, 1], [37, 130, 700]), ([5, 33, 1, 17], [5, 80, 64, 130])]
SEED_BANDS = [(128, (-1, -1)), (1024, (-1, -1)), (128, (127, 0)), (256, (255, 0))]


@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
@pytest.mark.parametrize(("extent", "window"), SEED_BANDS)
@pytest.mark.parametrize(("q_lens", "kv_lens"), SEED_SHAPES)
def test_seed_matrix(heads, extent, window, q_lens, kv_lens, place):
    arguments = seed_arguments(heads, extent, window, q_lens, kv_lens)
    expected, _ = attention(
        **{k: v for k, v in arguments.items() if k not in ("key_cache", "value_cache", "rel_extent")},
        k_cache=arguments["key_cache"], v_cache=arguments["value_cache"],
    )  # fmt: skip
    there = {name: place.put(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    result = inkling.inkling_fa4_rel_attention(**there)
    np.testing.assert_allclose(place.get(result).astype(np.float64), expected, rtol=2e-2, atol=2e-2)

    for num_splits in (1, 32, 128):
        out = place.put(np.full(arguments["q"].shape, np.nan, BFLOAT16))
        assert inkling.inkling_fa4_rel_attention(**there, num_splits=num_splits, out=out) is out
        np.testing.assert_array_equal(place.get(out).view(np.uint16), place.get(result).view(np.uint16))


def test_disagreements_are_refused():
    arguments = seed_arguments((4, 4), 128, (-1, -1), [1], [20])
    with pytest.raises(ValueError, match="rel_extent: got 64, expected rel_logits' last dimension 128"):
        inkling.inkling_fa4_rel_attention(**{**arguments, "rel_extent": 64})
    with pytest.raises(ValueError, match="num_splits: got 0"):
        inkling.inkling_fa4_rel_attention(**arguments, num_splits=0)
    with pytest.raises(TypeError, match="softmax_scale"):
        inkling.inkling_fa4_rel_attention(**{k: v for k, v in arguments.items() if k != "softmax_scale"})


def test_forced_splits_agree_through_rel_attention():
    arguments = seed_arguments((8, 2), 1024, (-1, -1), [1], [700])
    del arguments["rel_extent"]
    arguments["k_cache"], arguments["v_cache"] = arguments.pop("key_cache"), arguments.pop("value_cache")
    whole = flashrel.rel_attention(**arguments, num_splits=1).astype(np.float64)
    for num_splits in (3, 32, 128):
        np.testing.assert_allclose(
            flashrel.rel_attention(**arguments, num_splits=num_splits).astype(np.float64), whole, atol=2**-8, rtol=2**-7
        )
