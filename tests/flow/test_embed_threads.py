"""How many threads `rayvec embed` takes where it is not told."""

from __future__ import annotations

import io
from types import SimpleNamespace

from drivers import DriverError, NumpyDriver
from pipeline.cli import main


class OneDevice(NumpyDriver):
    """Has no clones, as a GPU's driver has none."""

    name = "cuda:0"

    def new_for_clone(self):
        raise DriverError("a device has one driver")


def test_a_gpu_gets_one_thread_where_a_processor_gets_one_a_core(minilm, monkeypatch, capsys):
    monkeypatch.setattr("pipeline.commands.embed.open_driver", lambda name: OneDevice())
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a\n")))
    assert main(["embed", "--model", str(minilm)]) == 0
    assert "driver cuda:0" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a\n")))
    assert main(["embed", "--model", str(minilm), "--threads", "2"]) == 2
    assert capsys.readouterr().err == "rayvec: a device has one driver\n"
