"""Cubins: compiled once, whole or not at all, by NVRTC, for every architecture, without spills."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drivers import KernelCompileError
from drivers.cuda import build, nvrtc
from drivers.cuda.launch import Build, build_of
from drivers.dtypes import FLOAT16, FLOAT32

ROOT = Path(__file__).parents[2]
SOURCE = """
extern "C" __global__ void fill(float* out, int count) {
    __shared__ float one[16];
    one[threadIdx.x % 16] = VALUE;
    __syncthreads();
    if (threadIdx.x < count) out[threadIdx.x] = one[0];
}
extern "C" __global__ void nothing() {}
"""
ELF = b"\x7fELF"
TINY = Build(SOURCE, ("fill", "nothing"), ("VALUE=1.5f",))

pytestmark = pytest.mark.slow  # the compiler is one of Linux


@pytest.fixture
def compiled(monkeypatch):
    """How often the compiler was called, as a list of architectures."""
    calls = []
    compile_once = nvrtc.Nvrtc.compile

    def counted(self, source, arch, options=()):
        calls.append(arch)
        return compile_once(self, source, arch, options)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", counted)
    return calls


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_cubin_is_compiled_once_and_named_by_all_that_went_into_it(tmp_path, compiled):
    first = build.cubin_of(TINY, "sm_80", tmp_path)
    assert build.cubin_of(TINY, "sm_80", tmp_path) == first
    assert compiled == ["sm_80"]
    assert first.read_bytes()[:4] == ELF
    others = [
        build.cubin_of(TINY, "sm_90", tmp_path),
        build.cubin_of(Build(SOURCE, TINY.kernels, ("VALUE=2.5f",)), "sm_80", tmp_path),
        build.cubin_of(Build(SOURCE + "\n", TINY.kernels, TINY.defines), "sm_80", tmp_path),
    ]
    assert len({first, *others}) == 4 == len(compiled)
    assert len(files(tmp_path)) == 8  # and their logs
    assert first.read_bytes() != others[1].read_bytes()


def test_another_version_of_the_compiler_makes_its_own(tmp_path, compiled, monkeypatch):
    first = build.cubin_of(TINY, "sm_80", tmp_path)
    monkeypatch.setattr(nvrtc.nvrtc(), "version", "12.0")
    assert build.cubin_of(TINY, "sm_80", tmp_path) != first
    assert len(compiled) == 2


def test_without_a_folder_it_goes_to_the_cache(cache_home):
    path = build.cubin_of(TINY, "sm_80")
    assert path.parent == cache_home / "rayvec" / "cubins"


def test_what_is_reported_of_a_kernel(tmp_path):
    fill, nothing = build.report_of(build.cubin_of(TINY, "sm_90", tmp_path))
    assert (fill.kernel, nothing.kernel) == ("fill", "nothing")
    assert fill.registers > 0
    assert (fill.spill_bytes, fill.shared_bytes) == (0, 64)
    assert nothing.shared_bytes == 0


def test_a_kernel_that_spills_is_reported(tmp_path):
    held = "".join(f"float x{i} = from[{i} * n];" for i in range(64))
    used = "".join(f"from[{i}] = x{i} * x{(i + 7) % 64};" for i in range(64))
    text = f"{held} __syncthreads(); {used}"
    source = f'extern "C" __global__ void __maxnreg__(24) f(float* from, int n) {{ {text} }}'
    (report,) = build.report_of(build.cubin_of(Build(source, ("f",), ()), "sm_80", tmp_path))
    assert report.registers <= 24
    assert report.spill_bytes > 0


def test_a_source_that_does_not_compile_says_where(tmp_path):
    wrong = Build(SOURCE.replace("VALUE", "VALUES"), TINY.kernels, TINY.defines)
    with pytest.raises(KernelCompileError, match=r'kernels.cu\(4\): error.*"VALUES" is undefined'):
        build.cubin_of(wrong, "sm_80", tmp_path)
    with pytest.raises(KernelCompileError, match="gpu-architecture=sm_1 .*INVALID_OPTION"):
        build.cubin_of(TINY, "sm_1", tmp_path)
    assert files(tmp_path) == []


def test_threads_that_want_the_same_file_compile_it_once(tmp_path, compiled):
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: build.cubin_of(TINY, "sm_80", tmp_path), range(8)))
    assert len(paths) == len(compiled) == 1
    assert len(files(tmp_path)) == 2


def test_processes_do_not_disturb_each_other(tmp_path):
    program = (
        "import sys; from pathlib import Path; from tests.ops.test_cuda_build import TINY;"
        "from drivers.cuda.build import cubin_of;"
        "print(cubin_of(TINY, 'sm_80', Path(sys.argv[1])).read_bytes()[:4])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120)[0] for process in running]
    assert said == [f"{ELF}\n"] * 3
    assert len(files(tmp_path)) == 2


def test_a_half_written_file_is_none(tmp_path, compiled, monkeypatch):
    """A process that dies between the two renames leaves a log, which counts for nothing."""
    path = build.cubin_of(TINY, "sm_80", tmp_path)
    path.unlink()
    assert build.cubin_of(TINY, "sm_80", tmp_path) == path
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_written_is_named_and_each_process_compiles_for_itself(
    tmp_path, caplog
):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        path = build.cubin_of(TINY, "sm_80", blocked / "cubins")
    assert path.read_bytes()[:4] == ELF
    assert f"{blocked / 'cubins'}: cubins are not kept" in caplog.text
    assert path.parent.name.startswith("rayvec_cubins_")


def test_without_a_compiler_the_error_says_what_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(KernelCompileError, match="wanted the packages .*nvidia-cuda-nvrtc-cu12"):
        nvrtc.nvrtc.__wrapped__()


def test_the_command_prints_a_line_for_each_kernel(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build, "themes", lambda: ("rotary",))
    build.main(["--arch", "sm_80", "--folder", str(tmp_path)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["arch", "storage", "registers", "spilled", "shared", "kernel"]
    kernels = build_of("rotary", FLOAT16).kernels
    for dtype in ("float32", "float16", "bfloat16"):
        assert sorted(line[-1] for line in lines if line[1] == dtype) == sorted(kernels)
    assert len(files(tmp_path)) == 6


# ---- the kernels themselves


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What float16 builds take, by theme and architecture; compiled two at a time."""
    folder = tmp_path_factory.mktemp("cubins")
    cases = [(theme, arch) for theme in build.themes() for arch in build.ARCHS]
    with ThreadPoolExecutor(2) as pool:
        cubins = pool.map(
            lambda case: build.cubin_of(build_of(case[0], FLOAT16), case[1], folder), cases
        )
    return dict(zip(cases, map(build.report_of, cubins)))


@pytest.mark.xdist_group("cubins")  # one worker compiles them
@pytest.mark.parametrize("arch", build.ARCHS)
@pytest.mark.parametrize("theme", build.themes())
def test_every_kernel_compiles_without_spills(reports, theme, arch):
    found = reports[theme, arch]
    assert sorted(build_of(theme, FLOAT16).kernels) == [report.kernel for report in found]
    assert [report for report in found if report.spill_bytes] == []


def test_a_theme_for_float32_is_another_build():
    half, single = (build_of("rotary", dtype) for dtype in (FLOAT16, FLOAT32))
    assert half.source == single.source
    assert half.defines != single.defines
