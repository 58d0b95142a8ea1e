"""Files that are watched: what counts as a change, and when it is told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardq.tasks.sources import Sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    path = tmp_path / "shop" / "app.py"
    path.write_text("A = 1")
    return path


def looks(sources: Sources, count: int = 3) -> list[list[str]]:
    return [sources.changed() for _ in range(count)]


def test_what_has_not_changed_is_told_of_never(app: Path, tmp_path: Path) -> None:
    assert looks(Sources(tmp_path)) == [[], [], []]


def test_a_change_is_told_once_and_only_when_the_file_stands_still(
    app: Path, tmp_path: Path
) -> None:
    sources = Sources(tmp_path)
    app.write_text("A = ")
    assert sources.changed() == []
    app.write_text("A = 22")
    assert looks(sources) == [[], ["shop/app.py"], []]


def test_new_files_and_deleted_ones_are_changes(app: Path, tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    (tmp_path / "shop" / "new.py").touch()
    assert looks(sources) == [[], ["shop/new.py"], []]
    app.unlink()
    assert looks(sources) == [[], ["shop/app.py"], []]


def test_another_file_of_the_same_size_and_time_is_a_change(app: Path, tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    other = tmp_path / "written"
    other.write_text("A = 2")
    os.utime(other, ns=(app.stat().st_atime_ns, app.stat().st_mtime_ns))
    other.replace(app)
    assert looks(sources) == [[], ["shop/app.py"], []]


@pytest.mark.parametrize(
    "path",
    [
        "shop/notes.txt",
        "shop/.#app.py",
        ".git/hook.py",
        "shop/__pycache__/app.py",
        "lib/site-packages/a.py",
        "web/node_modules/gyp.py",
        "env/lib/a.py",
    ],
)
def test_what_is_no_source_of_the_app_is_passed_over(app: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    sources = Sources(tmp_path)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    assert looks(sources) == [[], [], []]


def test_a_link_to_nowhere_is_no_error(app: Path, tmp_path: Path) -> None:
    (tmp_path / "lost.py").symlink_to(tmp_path / "none.py")
    assert looks(Sources(tmp_path)) == [[], [], []]


def test_what_is_excluded_is_passed_over_in_all_directories(tmp_path: Path) -> None:
    files = [
        tmp_path / name
        for name in ("a/app.py", "a/gen/x.py", "b/mail_pb2.py", "b/mail.py", "c/other.py")
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("A = 1")
    sources = Sources(tmp_path / "a", tmp_path / "b", excludes=["gen", "*_pb2.py"])
    for file in files:
        file.write_text("A = 22")
    assert looks(sources) == [[], ["app.py", "mail.py"], []]
