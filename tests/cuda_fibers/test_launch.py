"""Launch arithmetic: every row is covered once, and the device's limits are kept."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from drivers import DtypeError, ShapeError
from drivers.cuda.launch import SHARED_BYTES_LIMIT, SHARED_BYTES_OPT_IN, build_of
from drivers.cuda.launches import flash_attention, heads
from drivers.cuda.launches import varlen_attention as launch
from tests.cuda_fibers.cuda_driver import fiber_driver


@pytest.mark.parametrize(
    ("head_dim", "width"),
    [
        (1, 32),
        (32, 32),
        (33, 64),
        (64, 64),
        (65, 96),
        (96, 96),
        (97, 128),
        (128, 128),
        (129, 256),
        (256, 256),
    ],
)
def test_a_head_goes_to_the_narrowest_build_that_holds_it(head_dim, width):
    assert launch.head_width(head_dim) == width
    got = launch.varlen_attention(batch=1, max_seq=1, num_heads=1, head_dim=head_dim)
    assert got.kernel == f"varlen_attention_{width}"


@pytest.mark.parametrize("head_dim", [-1, 0, 257, 512])
def test_a_head_that_no_build_holds_is_refused(head_dim):
    with pytest.raises(ShapeError, match=f"head_dim is {head_dim}, wanted 1 to 256"):
        launch.varlen_attention(batch=1, max_seq=1, num_heads=1, head_dim=head_dim)


@pytest.mark.parametrize(("max_seq", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (512, 32)])
def test_the_grid_covers_every_row_head_and_sequence(max_seq, blocks):
    got = launch.varlen_attention(batch=7, max_seq=max_seq, num_heads=12, head_dim=32)
    assert got.grid == (blocks * 12 * 7, 1, 1)
    assert got.block == (128, 1, 1)


@pytest.mark.parametrize(("width", "wanted"), [(32, 12416), (64, 22656), (96, 32896), (128, 43136)])
def test_shared_memory_is_the_tiles_and_fits_without_asking_for_more(width, wanted):
    got = launch.varlen_attention(batch=1, max_seq=512, num_heads=1, head_dim=width)
    assert got.shared_bytes == wanted <= SHARED_BYTES_LIMIT


def test_the_widest_head_asks_for_more_shared_memory():
    got = launch.varlen_attention(batch=1, max_seq=512, num_heads=1, head_dim=256)
    assert SHARED_BYTES_LIMIT < got.shared_bytes == 84096 <= SHARED_BYTES_OPT_IN


@pytest.mark.parametrize(
    "grid_of", [launch.varlen_attention, flash_attention.flash_attention], ids=["plain", "flash"]
)
def test_many_sequences_and_heads_are_blocks_along_x(grid_of):
    got = grid_of(batch=70000, max_seq=1, num_heads=3, head_dim=32)
    assert got.grid == (210000, 1, 1)
    with pytest.raises(ShapeError, match=f"{2**31} query tiles, wanted at most {2**31 - 1}"):
        grid_of(batch=2**16, max_seq=1, num_heads=2**15, head_dim=32)


@pytest.mark.parametrize(
    ("head_dim", "rows", "shared_bytes"),
    [(32, 128, 20480), (64, 64, 36864), (96, 64, 53248), (128, 64, 69632), (256, 64, 33792)],
)
def test_flash_attention_covers_every_row_in_tiles_that_fit(head_dim, rows, shared_bytes):
    for max_seq, tiles in [(1, 1), (rows, 1), (rows + 1, 2), (10 * rows, 10)]:
        got = flash_attention.flash_attention(
            batch=7, max_seq=max_seq, num_heads=12, head_dim=head_dim
        )
        assert got.grid == (tiles * 12 * 7, 1, 1)
        assert got.block == (2 * rows, 1, 1)  # a warp for 16 rows
        assert got.shared_bytes == shared_bytes <= SHARED_BYTES_OPT_IN


@pytest.mark.parametrize("head_dim", [1, 31, 32, 48, 64, 80, 96, 128, 160, 255, 256])
def test_dtype_and_head_size_decide_which_kernel_attends(head_dim):
    driver = fiber_driver("shuffled")
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        on_tensor_cores = dtype != np.float32 and head_dim in (32, 64, 96, 128, 256)
        theme = driver._attention_theme(np.dtype(dtype), head_dim)
        assert theme == ("flash_attention" if on_tensor_cores else "varlen_attention")


@pytest.mark.parametrize("head_dim", [0, 16, 31, 48, 80, 160, 512])
def test_flash_attention_refuses_other_heads(head_dim):
    with pytest.raises(ShapeError, match=f"head_dim is {head_dim}, wanted one of 32, 64, 96, 128"):
        flash_attention.flash_attention(batch=1, max_seq=1, num_heads=1, head_dim=head_dim)


@pytest.mark.parametrize(
    ("head_dim", "pairs", "name"),
    [
        (32, 16, "2"), (64, 32, "4"), (96, 48, "8"), (128, 64, "8"), (256, 128, "16"),
        (16, 8, "2"), (64, 0, "4"), (64, 16, "any"), (40, 20, "any"), (7, 3, "any"),
        (272, 136, "any"),
    ],
)  # fmt: skip
def test_a_head_is_normed_and_rotated_by_the_lanes_that_hold_it(head_dim, pairs, name):
    got = heads.norm_and_rotate(tokens=70000, head_dim=head_dim, pairs=pairs)
    assert got.kernel == f"norm_and_rotate_{name}"
    assert got.grid == (70000, 1, 1)


def test_the_kernels_are_built_with_the_numbers_that_the_grid_is_made_of():
    build = build_of("varlen_attention", np.dtype(np.float16))
    assert build.defines == ("STORAGE=__half", "QUERY_ROWS=16", "WARPS=4")
    assert build.kernels == tuple(f"varlen_attention_{width}" for width in (32, 64, 96, 128, 256))
    assert build_of("varlen_attention", np.dtype(np.float32)).defines[0] == "STORAGE=float"
    assert launch.QUERY_ROWS % launch.WARPS == 0
    with pytest.raises(DtypeError, match="no storage type float64"):
        build_of("varlen_attention", np.dtype(np.float64))
    with pytest.raises(
        DtypeError, match="no storage type float32 of flash_attention, only float16"
    ):
        build_of("flash_attention", np.dtype(np.float32))


def test_the_parts_of_a_theme_stand_between_the_prelude_and_its_kernels():
    build = build_of("norms", np.dtype(np.float16))
    pieces = ["warp_sum(float x)", "load_vector(float", "struct HeldRow", "NORM(norm_plain, 0)"]
    assert sorted(pieces, key=build.source.index) == pieces
    assert "HeldRow" not in build_of("varlen_attention", np.dtype(np.float16)).source
