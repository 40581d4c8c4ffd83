"""Launch arithmetic: every row is covered once, and the device's limits are kept."""

from __future__ import annotations

import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from drivers.cuda.launch import SHARED_BYTES_LIMIT, build_of
from drivers.cuda.launches import varlen_attention as launch


@pytest.mark.parametrize(
    ("head_dim", "width"),
    [(1, 32), (32, 32), (33, 64), (64, 64), (65, 96), (96, 96), (97, 128), (128, 128)],
)
def test_a_head_goes_to_the_narrowest_build_that_holds_it(head_dim, width):
    assert launch.head_width(head_dim) == width
    got = launch.varlen_attention(batch=1, max_seq=1, num_heads=1, head_dim=head_dim)
    assert got.kernel == f"varlen_attention_{width}"


@pytest.mark.parametrize("head_dim", [-1, 0, 129, 256])
def test_a_head_that_no_build_holds_is_refused(head_dim):
    with pytest.raises(ShapeError, match=f"head_dim is {head_dim}, wanted 1 to 128"):
        launch.varlen_attention(batch=1, max_seq=1, num_heads=1, head_dim=head_dim)


@pytest.mark.parametrize(("max_seq", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (512, 32)])
def test_the_grid_covers_every_row_head_and_sequence(max_seq, blocks):
    got = launch.varlen_attention(batch=7, max_seq=max_seq, num_heads=12, head_dim=32)
    assert got.grid == (blocks, 12, 7)
    assert got.block == (128, 1, 1)


@pytest.mark.parametrize(("width", "wanted"), [(32, 12416), (64, 22656), (96, 32896), (128, 43136)])
def test_shared_memory_is_the_tiles_and_fits_without_asking_for_more(width, wanted):
    got = launch.varlen_attention(batch=1, max_seq=512, num_heads=1, head_dim=width)
    assert got.shared_bytes == wanted <= SHARED_BYTES_LIMIT


@pytest.mark.parametrize(
    "sizes", [{"batch": 65536, "num_heads": 1}, {"batch": 1, "num_heads": 65536}]
)
def test_more_than_a_grid_holds_is_refused(sizes):
    with pytest.raises(ShapeError, match="65536 .*, wanted at most 65535"):
        launch.varlen_attention(max_seq=1, head_dim=32, **sizes)


def test_the_kernels_are_built_with_the_numbers_that_the_grid_is_made_of():
    build = build_of("varlen_attention", np.dtype(np.float16))
    assert build.defines == ("STORAGE=__half", "QUERY_ROWS=16", "WARPS=4")
    assert build.kernels == tuple(f"varlen_attention_{width}" for width in (32, 64, 96, 128))
    assert build_of("varlen_attention", np.dtype(np.float32)).defines[0] == "STORAGE=float"
    assert launch.QUERY_ROWS % launch.WARPS == 0
    with pytest.raises(DtypeError, match="no storage type float64"):
        build_of("varlen_attention", np.dtype(np.float64))


def test_the_parts_of_a_theme_stand_between_the_prelude_and_its_kernels():
    build = build_of("norms", np.dtype(np.float16))
    pieces = ["warp_sum(float x)", "load_vector(float", "struct HeldRow", "NORM(norm_plain, 0)"]
    assert sorted(pieces, key=build.source.index) == pieces
    assert "HeldRow" not in build_of("varlen_attention", np.dtype(np.float16)).source
