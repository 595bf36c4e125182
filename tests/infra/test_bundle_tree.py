"""Which files of a folder are bundled and staged, and in which order: digests depend on both."""

from __future__ import annotations

from pathlib import Path

from infra import bundle


def test_a_tree_has_its_files_in_order_without_what_python_and_tools_leave(tmp_path: Path) -> None:
    root = tmp_path / "root"
    left = [f"{name}/deep/x.py" for name in sorted(bundle.SKIPPED)]
    for name in ["b.py", "a/z.py", "a.py", "a/b/c.txt", "a/b/c.pyc", *left, f"a/{left[0]}"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "far.py").touch()
    (root / "a" / "linked").symlink_to(tmp_path / "outside")
    (root / "near.py").symlink_to("b.py")
    names = ["a/b/c.txt", "a/z.py", "a.py", "b.py", "near.py"]
    found = list(bundle.tree(root))
    assert [name for name, _ in found] == names
    assert dict(found)["near.py"] == b"b.py"
