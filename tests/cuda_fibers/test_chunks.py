"""What the kernels of chunks share: places of chunks, launches, numbers that stand in two files."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from drivers import DtypeError, ShapeError, activations
from drivers.cuda import storage
from drivers.cuda.activations import ACTIVATION_NUMBERS
from drivers.cuda.launch import GRID_X_LIMIT, KERNELS, Build, Launch, build_of
from drivers.cuda.launches import chunks, elementwise, gates, layout, memory
from tests import oracle
from tests.cuda_fibers.engine import compile_kernels
from tests.cuda_fibers.host_memory import guarded

PRELUDE = (KERNELS / "prelude.cu").read_text(encoding="utf-8")
PLACES = """
extern "C" __global__ void place_one(long long* out, long long number, long long rows,
                                     long long cols) {
    const ChunkPlace place = chunk_place(number, rows, cols);
    out[0] = place.row;
    out[1] = place.column;
    out[2] = place.count;
}
"""
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def place(number, rows, cols):
    """(row, column, count) as the kernels have it."""
    build = Build(PRELUDE + PLACES, ("place_one",), ("STORAGE=float",))
    out = guarded((3,), np.int64)
    launch = Launch("place_one", (1, 1, 1), (1, 1, 1))
    sizes = map(np.int64, (number, rows, cols))
    compile_kernels(build).run(launch, [out, *sizes], "ascending")
    return out.tolist()


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (7, 31), (3, 8), (2, 1025), (5, 16), (1, 9)])
def test_the_chunks_of_a_matrix_cover_every_value_once(rows, cols):
    launch = chunks.chunks("kernel", rows, cols)
    assert launch.grid[0] * launch.block[0] >= rows * -(-cols // chunks.CHUNK)
    taken = np.zeros((rows, cols), int)
    for number in range(rows * cols + 2):
        row, column, count = place(number, rows, cols)
        if count:
            taken[row, column : column + count] += 1
            assert column % chunks.CHUNK == 0
    assert (taken == 1).all()


@pytest.mark.parametrize(
    ("rows", "cols"), [(1, 2**36 + 5), (2**33, 12), (2**31 + 3, 7), (3, 2**34), (2**20, 2**20 + 1)]
)
def test_places_beyond_32_bits(rows, cols):
    per_row = -(-cols // chunks.CHUNK)
    last = rows * per_row - 1
    for number in (0, min(last, 2**32 - 1), min(last, 2**32), last // 3, last):
        row, chunk = divmod(number, per_row)
        column = chunk * chunks.CHUNK
        assert place(number, rows, cols) == [row, column, min(chunks.CHUNK, cols - column)]
    assert place(last + 1, rows, cols)[2] == 0


@pytest.mark.parametrize(
    ("launch", "blocks"),
    [
        (elementwise.elementwise(act=None, rows=1, cols=8 * 256), 1),
        (elementwise.elementwise(act="gelu", rows=1, cols=8 * 256 + 1), 2),
        (elementwise.elementwise(act=None, rows=257, cols=1), 2),
        (gates.gate(act="silu", rows=256, cols=9), 2),
        (gates.split_halves(rows=3, cols=8), 1),
        (memory.fill_zeros(size_bytes=16 * 256), 1),
        (memory.copy_bytes(size_bytes=16 * 256 + 1), 2),
        (memory.cast(stored=np.dtype(np.float16), asked=BFLOAT16, count=2049), 2),
        (layout.split_heads(batch=2, seq=64, heads=6, head_dim=3), 3),
        (layout.join_heads(batch=2, seq=64, heads=2, head_dim=9), 2),
        (layout.build_attn_mask(count=257), 2),
    ],
    ids=lambda value: value.kernel if isinstance(value, Launch) else None,
)
def test_a_launch_has_a_thread_for_every_chunk(launch, blocks):
    assert launch.grid == (blocks, 1, 1)
    assert launch.block == (256, 1, 1)
    assert launch.shared_bytes == 0


def test_more_chunks_than_a_grid_holds_are_refused():
    most = GRID_X_LIMIT * chunks.THREADS
    assert chunks.chunks("kernel", most, 8).grid[0] == GRID_X_LIMIT
    with pytest.raises(ShapeError, match=r"kernel: 2147483648 blocks .*at most 2147483647"):
        chunks.chunks("kernel", most + 1, 8)


@pytest.mark.parametrize("theme", ["elementwise", "gates", "memory", "layout"])
def test_every_kernel_of_a_theme_is_named(theme):
    build = build_of(theme, np.dtype(np.float16))
    own = build.source.removeprefix(PRELUDE)
    made = set(
        re.findall(r'extern "C" __global__ void __launch_bounds__\(THREADS\)\s+(\w+)\(', own)
    )
    for macro, names in re.findall(r"^(ELEMENTWISE|GATE|CAST)\(([^)]+)\)$", own, re.MULTILINE):
        parts = names.split(", ")
        name = f"{parts[0]}_{parts[2]}" if macro == "CAST" else parts[0]
        made.add(f"{macro.lower()}_{name}")
    assert made == set(build.kernels)
    assert "THREADS=256" in build.defines


def test_numbers_that_stand_in_python_and_in_the_prelude_are_the_same():
    assert f"constexpr int CHUNK = {chunks.CHUNK};" in PRELUDE
    names = re.search(r"enum Activation {([^}]*)}", PRELUDE)[1].replace(" ", "").split(",")
    assert [name.lower() for name in names] == [
        act or "no_activation" for act in ACTIVATION_NUMBERS
    ]
    assert list(ACTIVATION_NUMBERS.values()) == list(range(len(names)))
    assert set(ACTIVATION_NUMBERS) - {None} == set(oracle.ACTIVATIONS)
    fit = re.search(r"FIT\[\] = {([^}]*)}", PRELUDE)[1]
    assert tuple(float(number.strip(" f\n")) for number in fit.split(",")) == activations.TAIL
    assert f"1.0f + {activations.TAIL_SCALE}f * a" in PRELUDE


# ---- storage types


def tensors(*kinds):
    return [np.zeros(3, kind) for kind in kinds]


def test_a_kernel_is_built_for_the_type_beside_float32():
    half, wide = np.float16, np.float32
    assert storage.storage_of("op", *tensors(wide, wide)) == wide
    assert storage.storage_of("op", *tensors(wide, half, half), None) == half
    assert storage.storage_of("op", *tensors(BFLOAT16, wide)) == BFLOAT16
    with pytest.raises(DtypeError, match="op: got dtypes bfloat16 and float16, wanted one of them"):
        storage.storage_of("op", *tensors(half, wide, BFLOAT16))


def test_a_flag_is_set_for_float32_alone():
    arguments = storage.flagged(*tensors(np.float32, np.float16, BFLOAT16), None)
    assert arguments[1::2] == [1, 0, 0, 0]
    assert all(type(flag) is np.int32 for flag in arguments[1::2])
    assert arguments[-2] is None


def test_what_is_no_storage_type_is_refused_by_name():
    storage.require_storage("op", *tensors(np.float32, np.float16, BFLOAT16))
    have = "wanted one of float32, float16, bfloat16"
    for kind in (np.float64, np.int32):
        with pytest.raises(DtypeError, match=f"op: got dtype {np.dtype(kind)}, {have}"):
            storage.storage_of("op", *tensors(np.float32, kind))
        with pytest.raises(DtypeError, match=f"op: to dtype {np.dtype(kind)}, {have}"):
            storage.storage_type("op", kind)
