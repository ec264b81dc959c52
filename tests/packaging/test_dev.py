"""The set-up: what it does on a bare machine, and that it does nothing twice."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEV = Path(__file__).parents[2] / "packaging" / "dev.py"


class FakeRun:
    """Stand in for `subprocess.run`: record each command; one whose words hold `fails` gives `status`."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.fails = ""
        self.status = 1
        self.effects: dict[str, Callable[[], object]] = {}

    def __call__(self, command: Any, *, check: bool, **_: object) -> subprocess.CompletedProcess[str]:
        line = " ".join(map(str, command))
        self.commands.append(line)
        for words, effect in self.effects.items():
            if words in line:
                effect()
        status = self.status if self.fails and self.fails in line else 0
        if check and status:
            raise subprocess.CalledProcessError(status, command)
        return subprocess.CompletedProcess(command, status)

    def forget(self) -> list[str]:
        commands, self.commands = self.commands, []
        return commands


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEV.parent)
    spec = importlib.util.spec_from_file_location("dormouse_dev", DEV)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()
    monkeypatch.setattr(dev.subprocess, "run", fake)
    return fake


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "pyproject.toml").write_text("[project]\n")
    return root


@pytest.mark.parametrize("name", ["dev.py", "desktop.py"])
def test_old_pythons_can_read_it(name: str) -> None:
    tree = ast.parse((DEV.parent / name).read_text(), feature_version=(3, 7))
    assert ast.get_docstring(tree)


def test_old_python_is_refused(
    dev: ModuleType, run: FakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "OLDEST_PYTHON", (99, 0))
    assert dev.main(["test"]) == 1
    assert "needs Python" in capsys.readouterr().err
    assert run.commands == []


@pytest.mark.parametrize("argv", [[], ["dance"]])
def test_wrong_usage_shows_the_commands(dev: ModuleType, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert dev.main(argv) == 2
    shown = capsys.readouterr().err
    assert all(f"dev.py {name}" in shown for name in dev.COMMANDS)


def test_help_is_no_failure(dev: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["--help"]) == 0
    assert "dev.py test" in capsys.readouterr().out


def test_system_packages_are_found_missing(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dev.missing_packages(dev.TEST_PROGRAMS) == []
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dev, "LIBRARIES", {"libnowhere.so.1": "libnowhere1"})
    monkeypatch.setattr(dev.sys, "platform", "linux")
    assert dev.missing_packages({}) == ["python3-venv", "libnowhere1"]
    programs = {"sh": "dash", "no-such-program": "nowhere-utils"}
    assert dev.missing_packages(programs) == ["python3-venv", "libnowhere1", "nowhere-utils"]


def test_root_installs_system_packages(dev: ModuleType, run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(dev.os, "geteuid", lambda: 0)
    dev.install_packages([])
    assert run.forget() == []
    dev.install_packages(["python3-venv", "libgomp1"])
    update, install = run.commands
    assert update == "apt-get update"
    assert install.startswith("env DEBIAN_FRONTEND=noninteractive apt-get install")
    assert install.endswith("python3-venv libgomp1")


def test_others_are_told_the_command(
    dev: ModuleType, run: FakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(dev.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(dev, "missing_packages", lambda programs: ["python3-venv"])
    assert dev.main(["test"]) == 1
    assert "sudo apt-get install --yes --no-install-recommends python3-venv\n" in capsys.readouterr().err
    assert run.commands == []


def test_without_apt_the_packages_are_named(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    with pytest.raises(dev.Stop, match="libgomp1"):
        dev.install_packages(["libgomp1"])


def test_environment_is_made_once(dev: ModuleType, run: FakeRun, checkout: Path) -> None:
    environment = dev.Environment(checkout)
    run.effects["-m venv"] = environment.folder.mkdir
    run.fails = "import sys, pip"
    environment.prepare()
    _, venv, pip = run.forget()
    assert venv.endswith(f"-m venv --clear {checkout / '.venv'}")
    assert pip.endswith(f"-m pip install --editable {checkout}[test]")

    run.fails = ""
    environment.prepare()
    (probe,) = run.forget()
    assert "import sys, pip" in probe

    (checkout / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    environment.prepare()
    _, pip = run.forget()
    assert "-m pip install" in pip


def test_broken_installation_is_repeated(dev: ModuleType, run: FakeRun, checkout: Path) -> None:
    environment = dev.Environment(checkout)
    environment.folder.mkdir()
    run.fails = "pip install"
    with pytest.raises(subprocess.CalledProcessError):
        environment.prepare()
    run.fails = ""
    run.forget()
    environment.prepare()
    assert "pip install" in run.commands[-1]
    assert environment.is_current()


def test_half_made_environments_are_not_sound(dev: ModuleType, checkout: Path) -> None:
    environment = dev.Environment(checkout)
    assert not environment.is_sound()
    environment.programs.mkdir(parents=True)
    environment.python.symlink_to(checkout / "gone")
    assert not environment.is_sound()
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", environment.folder], check=True)
    assert not environment.is_sound()


def test_this_environment_is_sound(dev: ModuleType, checkout: Path) -> None:
    environment = dev.Environment(checkout)
    environment.python = Path(sys.executable)
    assert environment.is_sound()


@pytest.fixture
def prepared(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "install_packages", lambda packages: None)
    monkeypatch.setattr(dev.Environment, "prepare", lambda environment: None)


@pytest.mark.usefixtures("prepared")
def test_tests_run_after_style_and_types(dev: ModuleType, run: FakeRun) -> None:
    assert dev.main(["test", "-k", "slot"]) == 0
    tools = [command.partition(" -m ")[2] for command in run.commands]
    assert tools == ["ruff check", "ruff format --check", "mypy", "pytest -k slot"]


@pytest.mark.usefixtures("prepared")
def test_what_measures_time_runs_alone(dev: ModuleType, run: FakeRun) -> None:
    assert dev.main(["test"]) == 0
    together, alone = (command.partition(" -m pytest ")[2] for command in run.commands[3:])
    assert together.startswith("--numprocesses 2")
    assert together.endswith("-m not clock")
    assert alone == "-m clock"


@pytest.mark.usefixtures("prepared")
def test_benchmarks_run_in_the_environment(dev: ModuleType, run: FakeRun) -> None:
    assert dev.main(["bench", "--quick"]) == 0
    python = DEV.parents[1] / ".venv" / "bin" / "python"
    assert run.commands == [f"{python} -m bench.table --quick"]


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(("status", "expected"), [(5, 5), (-15, 143)])
def test_failure_stops_and_is_passed_on(dev: ModuleType, run: FakeRun, status: int, expected: int) -> None:
    run.fails, run.status = "mypy", status
    assert dev.main(["test"]) == expected
    assert len(run.commands) == 3


@pytest.mark.usefixtures("prepared")
def test_interrupt_is_quiet(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dev.subprocess, "run", interrupt)
    assert dev.main(["test"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("prepared")
def test_run_becomes_the_window(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(dev, "run", lambda *command: became.append([str(part) for part in command]))
    monkeypatch.setattr(dev.os, "execv", lambda program, command: became.append([program, *command]))
    dev.main(["run", "story.slot"])
    programs = DEV.parents[1] / ".venv" / "bin"
    window = str(programs / "dormouse")
    assert became == [[str(programs / "dormouse-cli"), "fetch-starter"], [window, window, "story.slot"]]
