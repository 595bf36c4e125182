"""An environment that uv has made activates and runs at its own path, and where machines that boot see it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from operations.local import environment_paths

UV = Path(sys.executable).with_name("uv")
INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: greet\nVersion: 1\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": "[console_scripts]\ngreet = greet:main\n",
    "RECORD": "",
}


@pytest.fixture(scope="module", params=["plain", "with a blank"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a console script, as the product makes them."""
    folder = tmp_path_factory.mktemp(request.param)
    wheel = folder / "greet-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greet.py", "import sys\n\ndef main():\n    print(sys.prefix)\n")
        for name, text in INFO.items():
            archive.writestr(f"greet-1.dist-info/{name}", text)
    made = folder / "envs" / "0123456789abcdef"
    subprocess.run([UV, "venv", "--quiet", "--no-config", made], check=True)
    install = [str(UV), "pip", "install", "--quiet", "--no-config", "--offline"]
    subprocess.run([*install, "--python", str(made / "bin" / "python"), str(wheel)], check=True)
    environment_paths.adapt(made)
    return made


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("moved", [False, True], ids=["here", "elsewhere"])
def test_it_activates_and_its_scripts_run(environment: Path, shell: str, moved: bool, tmp_path: Path) -> None:
    place = environment
    if moved:
        # As on a machine that boots: it is below /apps, which a folder of the test stands for.
        place = tmp_path / "apps" / "envs" / environment.name
        place.parent.mkdir(parents=True)
        subprocess.run(["cp", "-a", environment, place], check=True)
        activate = place / "bin" / "activate"
        text = activate.read_text().replace("/apps/envs", f"{tmp_path}/apps/envs", 1)
        activate.write_text(text.replace(str(environment), "/none"))
    script = '. "$0/bin/activate" && command -v greet && greet && python -c "import sys; print(sys.prefix)"'
    done = subprocess.run([shell, "-c", script, place], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.splitlines() == [f"{place}/bin/greet", str(place), str(place)], done.stderr


def test_it_may_be_adapted_again(environment: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in environment.glob("bin/*") if not file.is_symlink()}

    before = contents()
    environment_paths.adapt(environment)
    assert contents() == before
