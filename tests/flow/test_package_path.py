"""`package:NAME/FOLDER`: files inside installed packages, named the same wherever they are."""

from __future__ import annotations

import importlib
import sys

import pytest
from source_corpus import config, read_all

from pipeline.errors import UsageError
from pipeline.package_path import package_folder
from pipeline.source import plan_shards
from pipeline.source.files import Files
from pipeline.source.listing import list_files

ROW = '{"id": "%s", "text": "a book"}\n'
SHELF = {
    "shelf/__init__.py": "",
    "shelf/one.jsonl": ROW % 1,
    "shelf/data/two.jsonl": ROW % 2,
    "shelf/data/deep/three.jsonl": ROW % 3,
    "shelf/data/.hidden.jsonl": ROW % 4,
    "shelf/data/notes.txt": "other",
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """(site, its files) -> the site, where packages are looked for before all others."""
    before = list(sys.path)

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "shelf"]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def one(site, files):
        for name, text in files.items():
            path = tmp_path / site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(sys, "path", [str(tmp_path / site), *before])
        forget()
        return tmp_path / site

    yield one
    forget()


def names(*uris, suffixes=(".jsonl",)):
    return [file.name for file in list_files(uris, suffixes, Files())]


def test_a_package_and_folders_in_it(install):
    site = install("site", SHELF)
    for inside in ("", "/", "/data", "/data/", "/data/deep"):
        folder = package_folder(f"package:shelf{inside}", what="model")
        assert folder == site / "shelf" / inside.strip("/")


def test_nothing_of_a_package_is_run(install):
    install("site", SHELF | {"shelf/__init__.py": "raise SystemExit('was run')"})
    assert names("package:shelf/data") == ["shelf/data/deep/three.jsonl", "shelf/data/two.jsonl"]


def test_a_dotted_name_is_a_package_in_a_package(install):
    site = install("site", SHELF | {"shelf/inner/__init__.py": "", "shelf/inner/x.jsonl": ""})
    assert package_folder("package:shelf.inner", what="model") == site / "shelf" / "inner"
    assert names("package:shelf.inner") == ["shelf.inner/x.jsonl"]


def test_a_package_without_an_init_file_is_a_package(install):
    install("site", {"shelf/data/x.jsonl": ""})
    assert names("package:shelf/data") == ["shelf/data/x.jsonl"]


def test_names_of_files_begin_with_the_package(install):
    install("site", SHELF)
    whole = ["shelf/data/deep/three.jsonl", "shelf/data/two.jsonl", "shelf/one.jsonl"]
    assert names("package:shelf") == names("package:shelf/") == whole
    assert names("package:shelf/data") == names("package:shelf/data/") == whole[:2]
    assert names("package:shelf/data/deep") == whole[:1]


def test_names_are_the_same_wherever_the_package_is_and_whatever_is_beside_it(install, tmp_path):
    install("site", SHELF)
    before = names("package:shelf/data")
    ids = read_all(config("jsonl", "package:shelf/data")).ids
    install("place [2]/lib", SHELF)
    assert names("package:shelf/data") == before
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.jsonl").write_text("")
    together = names("package:shelf/data", str(tmp_path / "more"))
    assert [name for name in together if "/more/" not in name] == before
    assert read_all(config("jsonl", "package:shelf/data")).ids == ids == ["3", "2"]


def test_a_file_that_two_entries_name_is_there_once(install):
    install("site", SHELF)
    assert len(names("package:shelf", "package:shelf/data")) == 3


def test_dead_letters_and_pieces_have_the_packages_names(install):
    install("site", {"shelf/__init__.py": "", "shelf/bad.jsonl": ROW % 1 + "no json\n"})
    source = config("jsonl", "package:shelf")
    (shard,) = plan_shards(source).shards
    assert shard.pieces[0].name == "shelf/bad.jsonl"
    assert read_all(source).places == ["shelf/bad.jsonl:2"]


def test_functions_of_a_package_have_ids_that_begin_with_it(install):
    code = 'def read(page):\n    """Read a page."""\n'
    install("site", {"shelf/__init__.py": "", "shelf/desk/lamp.py": code})
    assert read_all(config("python", "package:shelf")).ids == ["shelf/desk/lamp.py:read"]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("package:", "no package '' is installed here"),
        ("package:/data", "no package '' is installed here"),
        ("package:no_such_shelf", "no package 'no_such_shelf' is installed here"),
        ("package:no_such_shelf.inner", "package 'no_such_shelf.inner' cannot be found"),
        ("package:shelf.no_such", "no package 'shelf.no_such' is installed here"),
        ("package:textwrap", "no package 'textwrap' is installed here"),
        ("package:sys", "no package 'sys' is installed here"),
        ("package:.shelf", "package '.shelf' cannot be found"),
        ("package:shelf/nowhere", "the package has no folder 'nowhere'"),
        ("package:shelf/one.jsonl", "the package has no folder 'one.jsonl'"),
        ("package:shelf/*.jsonl", r"the package has no folder '\*\.jsonl'"),
        ("package:shelf/../shelf", "'../shelf' is not a folder inside the package"),
        ("package:shelf/data/../..", "'data/../..' is not a folder inside the package"),
        ("package:shelf//etc", "'/etc' is not a folder inside the package"),
        ("package:shelf/a\0b", "the package has no folder|is no folder"),
    ],
)
def test_what_is_no_folder_of_a_package_is_refused(install, uri, reason):
    install("site", SHELF)
    with pytest.raises(UsageError, match=reason) as caught:
        names(uri)
    assert str(caught.value).startswith("source.uri 'package:")
    assert "\n" not in str(caught.value)


def test_a_folder_without_files_of_the_format_is_refused(install):
    install("site", SHELF)
    with pytest.raises(UsageError, match="no files matched .*shelf/data: .* ending in .parquet"):
        names("package:shelf/data", suffixes=(".parquet",))


@pytest.mark.parametrize("code", ["raise RuntimeError('broken')", "1 +"], ids=["raises", "syntax"])
def test_a_package_that_fails_above_a_dotted_name_is_refused_by_name(install, code):
    install("site", {"shelf/__init__.py": code, "shelf/inner/__init__.py": ""})
    with pytest.raises(UsageError, match=r"package 'shelf\.inner' cannot be found"):
        package_folder("package:shelf.inner", what="model")
