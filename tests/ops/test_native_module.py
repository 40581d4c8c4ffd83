"""The native module: loaded or refused, its instruction sets, and what the tiles compute."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import drivers
from drivers import DriverError, choose_driver, open_driver
from drivers.cpu import CpuDriver, native_module
from drivers.cpu.native_module import choose_instruction_set, instruction_sets, open_kernels
from tests.tiles import TILE_SETS, bf16_bits, interleaved, tile_matmul_reference

if os.environ.get("RAYVEC_REQUIRE_NATIVE") != "1":
    pytest.importorskip("rayvec_native", reason="installed without a C++ compiler")
import rayvec_native

SETS = rayvec_native.instruction_sets()
WITHOUT_TILES = [name for name in SETS if name not in TILE_SETS]


@pytest.fixture
def installed(monkeypatch):
    """Puts another object, or nothing, in the place of the installed module."""

    def install(module):
        monkeypatch.setitem(sys.modules, native_module.MODULE, module)

    return install


# ---- loading


@pytest.mark.parametrize("version", [0, native_module.ABI_VERSION + 1])
def test_a_module_of_another_version_is_refused_with_both_numbers(installed, version):
    installed(SimpleNamespace(__file__="old.so", abi_version=lambda: version))
    wanted = f"old.so has ABI version {version}, this rayvec wants {native_module.ABI_VERSION}: "
    with pytest.raises(DriverError, match=wanted + "install rayvec again"):
        open_driver("cpu")


def test_a_module_without_a_version_is_refused(installed):
    installed(SimpleNamespace(__file__="other.so"))
    with pytest.raises(DriverError, match="other.so has ABI version none, this rayvec wants"):
        open_driver("cpu")


@pytest.mark.parametrize("name", ["cpu", "cpu:portable"])
def test_a_missing_module_is_refused_with_what_to_install(monkeypatch, name):
    monkeypatch.setattr(native_module, "MODULE", "rayvec_native_of_nobody")
    with pytest.raises(DriverError, match=r"rayvec_native_of_nobody is not installed: .*\+\+"):
        open_driver(name)


def test_a_module_that_cannot_be_loaded_is_refused_with_the_loaders_words(monkeypatch, tmp_path):
    (tmp_path / "rayvec_broken.py").write_text("raise ImportError('GLIBC_9.9 not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(native_module, "MODULE", "rayvec_broken")
    with pytest.raises(DriverError, match=r"cannot be loaded: GLIBC_9\.9 not found"):
        open_driver("cpu")


def test_auto_passes_over_a_missing_module_and_says_why(monkeypatch):
    monkeypatch.setattr(drivers, "AUTO_ORDER", ("cpu", "numpy"))
    assert choose_driver("auto")[0] == "cpu"
    monkeypatch.setattr(native_module, "MODULE", "rayvec_native_of_nobody")
    chosen, reason = choose_driver("auto")
    assert chosen == "numpy"
    assert "; not cpu: the native module rayvec_native_of_nobody is not installed" in reason


# ---- instruction sets


def test_the_sets_of_any_machine_are_there_best_first():
    order = ["amx_bf16", "avx512_bf16", "avx512", "avx2", "portable", "amx_bf16_emulated"]
    assert [name for name in order if name in SETS] == list(instruction_sets()) == SETS
    assert {"portable", "amx_bf16_emulated"} <= set(SETS)
    assert choose_instruction_set() == SETS[0]


@pytest.mark.parametrize("name", ["sse9", "", "AVX2"])
def test_an_unknown_set_is_refused_by_name(name):
    with pytest.raises(DriverError, match=f"no instruction set '{name}' here, have .*portable"):
        open_driver(f"cpu:{name}")
    with pytest.raises(ValueError, match=f"no instruction set '{name}' on this machine, have "):
        rayvec_native.kernels(name)


@pytest.mark.parametrize("name", SETS)
def test_a_driver_of_one_set_and_its_clone(name):
    driver = open_driver(f"cpu:{name}")
    clone = driver.new_for_clone()
    for made in (driver, clone):
        assert type(made) is CpuDriver
        assert (made.instruction_set, made.kernels.name) == (name, name)
        assert made.name == f"cpu:{name}"
    assert clone is not driver


def test_the_best_set_is_the_default_and_said():
    driver = open_driver("cpu")
    assert (driver.name, driver.instruction_set) == ("cpu", SETS[0])
    assert driver.new_for_clone().name == "cpu"
    assert choose_driver("cpu")[1].endswith(f"instruction set {SETS[0]} of {', '.join(SETS)}")


def test_vectors_have_the_width_of_their_set():
    widths = {
        "amx_bf16": 16,
        "avx512_bf16": 16,
        "avx512": 16,
        "avx2": 8,
        "portable": 4,
        "amx_bf16_emulated": 16,
    }
    assert {name: open_kernels(name).lanes for name in SETS} == {n: widths[n] for n in SETS}


# ---- tiles


@pytest.mark.parametrize("name", TILE_SETS)
@pytest.mark.parametrize(("rows", "depth", "cols"), [(16, 32, 16), (1, 96, 16), (37, 64, 48)])
def test_tiles_compute_what_the_manual_says_bit_by_bit(rng, name, rows, depth, cols):
    a, b, c = (
        rng.standard_normal(s).astype(np.float32)
        for s in [(rows, depth), (depth, cols), (rows, cols)]
    )
    got = tile_matmul(name, a, b, c)
    np.testing.assert_array_equal(got, tile_matmul_reference(name, bf16_bits(a), bf16_bits(b), c))
    exact = c + rounded(a).astype(np.float64) @ rounded(b).astype(np.float64)
    assert np.abs(got - exact).max() <= 1e-6 * depth


@pytest.mark.parametrize("name", TILE_SETS)
def test_tiles_at_the_ends_of_the_range(rng, name):
    """Denormals count as zero, sums overflow to infinity, and NaN spreads along its row."""
    values = np.float32([0, -0.0, 1e-40, -1e-39, 1e-38, 1e-30, 1, -1e20, 3e38, -3e38, np.inf])
    a, b = rng.choice(values, (16, 64)), rng.choice(values, (64, 32))
    a[5, 7] = np.nan
    c = rng.choice(values, (16, 32))
    with np.errstate(all="ignore"):
        want = tile_matmul_reference(name, bf16_bits(a), bf16_bits(b), c)
    got = tile_matmul(name, a, b, c)
    assert np.isnan(got[5]).all()
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(
        np.signbit(got)[~np.isnan(got)], np.signbit(want)[~np.isnan(want)]
    )


@pytest.mark.parametrize("name", WITHOUT_TILES)
def test_a_set_without_tiles_says_so(name):
    with pytest.raises(ValueError, match="no tiles"):
        tile_matmul(name, *(np.zeros(s, np.float32) for s in [(16, 32), (32, 16), (16, 16)]))


# ---- what benchmarks measure against


@pytest.mark.parametrize("name", SETS)
def test_the_peak_says_how_many_operations_it_did(name):
    kernels = open_kernels(name)
    assert rayvec_native.testing.fma_peak(kernels, 0) == 0
    assert rayvec_native.testing.fma_peak(kernels, 7) == 7 * 12 * kernels.lanes * 2
    with pytest.raises(ValueError, match="fma_peak: wanted iterations >= 0"):
        rayvec_native.testing.fma_peak(kernels, -1)


@pytest.mark.parametrize("name", SETS)
def test_the_peak_of_tiles(name):
    kernels = open_kernels(name)
    if name in WITHOUT_TILES:
        with pytest.raises(ValueError, match="tile_peak: this instruction set has no tiles"):
            rayvec_native.testing.tile_peak(kernels, 1)
        return
    assert rayvec_native.testing.tile_peak(kernels, 0) == 0
    assert rayvec_native.testing.tile_peak(kernels, 3) == 3 * 6 * 16 * 16 * 32 * 2
    with pytest.raises(ValueError, match="tile_peak: wanted iterations >= 0"):
        rayvec_native.testing.tile_peak(kernels, -1)


def rounded(x):
    """The float32 values of x in bf16."""
    return (bf16_bits(x).astype(np.uint32) << 16).view(np.float32)


def tile_matmul(name, a, b, c):
    out = c.copy()
    rayvec_native.testing.tile_matmul(
        open_kernels(name), bf16_bits(a), interleaved(bf16_bits(b)), out
    )
    return out
