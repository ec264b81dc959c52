"""Chat templates in a process of their own: what they may take, and how they are ended."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from engine.tokenizer import template_process
from engine.tokenizer.chat_template import ChatTemplate, ChatTemplateError
from engine.tokenizer.sandbox import Program, ProgramError, Sandbox
from tests.template_bombs import BOMBS

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 2, 3, 4, 5)
ENDLESS = (
    "{% set s = 'x' * 1000000 %}{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}"
)
SOMETIMES = f"{{% if messages[0].content == 'endless' %}}{ENDLESS}{{% endif %}}{{{{ messages[0].content }}}}"
MEMORY = 300  # MB that a template may have its process take

pytestmark = pytest.mark.timeout(120)


def messages(*contents: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content} for content in contents]


def render(template: ChatTemplate, *contents: str, **options: Any) -> str:
    return template.render(messages(*contents), add_generation_prompt=True, now=NOW, **options)


EXPLODING = """
import json, resource, sys
from datetime import datetime
from engine.tokenizer import template_process
from engine.tokenizer.chat_template import ChatTemplate, ChatTemplateError
from tests.template_bombs import BOMBS

template_process.SECONDS = float(sys.argv[1])
for name, source in BOMBS.items():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    template = ChatTemplate(source)
    try:
        messages = [{"role": "user", "content": "Hello?"}] * 4
        text = template.render(messages, add_generation_prompt=True, now=datetime.now())
        outcome = f"it wrote {len(text)} letters"
    except ChatTemplateError as error:
        outcome = str(error)
    template.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps([name, outcome, seconds, after.ru_maxrss // 1024]))
"""


@pytest.fixture(name="exploded", scope="module")
def _exploded(template_seconds: float) -> dict[str, tuple[str, float, int]]:
    """Return what became of each bomb: what was said, the processor's seconds, and the most MB that any took so far."""
    run = subprocess.run(
        [sys.executable, "-c", EXPLODING, str(template_seconds)], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert run.stderr == ""
    return {name: tuple(account) for name, *account in map(json.loads, run.stdout.splitlines())}  # type: ignore[misc]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BOMBS)
def test_no_template_takes_all(exploded: dict[str, tuple[str, float, int]], template_seconds: float, name: str) -> None:
    outcome, seconds, memory = exploded[name]
    assert outcome.startswith("The model's chat template ")
    assert len(outcome) < 500
    assert "\n" not in outcome
    assert outcome.endswith(".") or outcome.endswith("….")
    assert "refuses this" in outcome or outcome.endswith("Another file of the same model may have a better one.")
    assert seconds < template_seconds + 1  # with what the process takes to begin
    assert memory < MEMORY


@pytest.fixture(name="template")
def _template() -> Iterator[ChatTemplate]:
    template = ChatTemplate(SOMETIMES)
    template.compile()
    yield template
    template.close()


def child(template: ChatTemplate) -> subprocess.Popen[bytes]:
    process = template._process
    assert process is not None
    assert process._child is not None
    return process._child._process


def test_one_that_was_ended_begins_again(template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert render(template, "Hi") == "Hi"
    first = child(template)
    monkeypatch.setattr(template_process, "SECONDS", 0.1)
    with pytest.raises(ChatTemplateError, match="was stopped"):
        render(template, "endless")
    assert first.returncode == -signal.SIGPROF
    assert render(template, "Hi") == "Hi"
    assert child(template).pid != first.pid
    child(template).kill()  # by whoever
    with pytest.raises(ChatTemplateError, match="was stopped"):
        render(template, "Hi")
    assert render(template, "Hi") == "Hi"


def test_one_that_is_not_wanted_any_more_is_ended(template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "SECONDS", 1000)
    n_checks = 0

    def check() -> None:
        nonlocal n_checks
        n_checks += 1
        if n_checks == 3:
            raise KeyError

    first = child(template)
    with pytest.raises(KeyError):
        render(template, "endless", check=check)
    assert first.returncode == -signal.SIGKILL
    assert render(template, "Hi", check=check) == "Hi"


def test_one_that_is_waited_for_in_vain_is_ended(template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "_PATIENCE", 0.1)
    os.kill(child(template).pid, signal.SIGSTOP)
    with pytest.raises(ChatTemplateError, match="was stopped"):
        render(template, "Hi" * 1_000_000)  # more than a pipe holds


def test_it_ends_with_whoever_holds_it(template: ChatTemplate) -> None:
    other = ChatTemplate(SOMETIMES)
    other.start()
    process = child(other)
    del other
    assert process.returncode == -signal.SIGKILL
    process = child(template)
    template.close()
    assert process.returncode == -signal.SIGKILL
    assert render(template, "Hi") == "Hi"


def test_many_threads_may_ask(template: ChatTemplate) -> None:
    asked = [str(i) * 100 for i in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda text: render(template, text), asked)) == asked


def test_a_thread_that_waits_for_another_may_stop(template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "SECONDS", 1000)
    stopped = False

    def check() -> None:
        if stopped:
            raise KeyError

    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(render, template, "endless", check=check) for _ in range(2)]
        stopped = True
        assert [type(answer.exception()) for answer in answers] == [KeyError, KeyError]


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="only Linux shows what a process has")
def test_it_has_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET", "secret")
    with open(tmp_path / "secret", "wb") as file:
        os.set_inheritable(file.fileno(), True)
        template = ChatTemplate(SOMETIMES)
        template.compile()
    about = Path("/proc", str(child(template).pid))
    assert {int(path.name) for path in (about / "fd").iterdir()} == {0, 1, 2}
    assert b"secret" not in (about / "environ").read_bytes()
    limits = {line[:25].strip(): line[26:].split()[:2] for line in (about / "limits").read_text().splitlines()}
    assert limits["Max open files"] == ["3", "3"]
    assert limits["Max file size"] == limits["Max processes"] == ["0", "0"]
    assert int(limits["Max address space"][0]) < MEMORY << 20


def test_it_loads_jinja_alone() -> None:
    code = (
        "import sys, engine.tokenizer.template_worker as _; print(*{'numpy', 'gguf', 'PySide6'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == "\n"


ORPHAN = """
import sys
from datetime import datetime
from engine.tokenizer import template_process
from engine.tokenizer.chat_template import ChatTemplate

template_process.SECONDS = 0.3
template = ChatTemplate(sys.argv[1])
template.compile()
print(template._process._child._process.pid, flush=True)
template.render([], add_generation_prompt=True, now=datetime.now())
sys.stdin.read()
"""


@pytest.mark.parametrize("source", ["", ENDLESS], ids=["idle", "busy"])
def test_it_ends_when_we_do(source: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    while is_alive(pid):
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # nobody may have asked yet how it ended


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (["no such program"], "can't be started: No such file"),
        ([sys.executable, "-c", ""], "can't be started: it ended before it began"),
        ([sys.executable, "-c", "print('x' * 1000)"], "can't be started: it ended before it began"),
        ([sys.executable, "-c", "import sys; sys.stdin.read()"], "can't be started: it ended before it began"),
    ],
    ids=["missing", "silent", "noisy", "waiting"],
)
def test_what_is_no_such_process(command: list[str], match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "helper_command", lambda *_: command)
    monkeypatch.setattr(template_process, "_START_PATIENCE", 0.2 if "stdin" in command[-1] else 60)
    with pytest.raises(ChatTemplateError, match=match):
        render(ChatTemplate("text"), "Hi")


def test_what_a_conversation_may_have(template: ChatTemplate) -> None:
    text = "🐭" * 1_000_000 + "x" * 3_000_000
    assert render(template, text) == text
    with pytest.raises(ChatTemplateError, match="fails: the conversation is too long for it"):
        render(template, text * 2)
    assert render(template, "Hi") == "Hi"


def outcome(render: Any, asked: Sequence[dict[str, str]]) -> str:
    try:
        text = render(asked, add_generation_prompt=False, now=NOW)
        return re.sub(" at 0x[0-9a-f]+", "", text)
    except ProgramError as error:
        return f"{error.failure}: {error.text}"


@pytest.mark.parametrize("kind", ["filters", "tests"])
def test_all_of_jinja_works_there(kind: str) -> None:
    apply = {"filters": "map", "tests": "select"}[kind]
    source = f"{{{{ [messages[0].content] | {apply}(messages[0].role) | list }}}}"
    names = sorted(getattr(Sandbox(), kind))
    here, there = Program(source, {}), template_process.TemplateProcess(source, {})
    for name in names:
        asked = [{"role": name, "content": "aaaa"}]
        found = outcome(lambda *a, **o: there.render(*a, check=template_process.no_check, **o), asked)
        assert found == outcome(here.render, asked), name
        assert "Errno" not in found
    there.close()


def test_all_functions_work_there(template: ChatTemplate) -> None:
    source = (
        "{{ lipsum(n=1) | length > 9 }} {{ dict(a=1).a }} {{ cycler('a', 'b').next() }} {{ joiner()() }} "
        "{{ namespace(a=1).a }} {{ range(3) | list }} {{ strftime_now('%d %b %Y') }} {{ missing is defined }} "
        "{{ 'a b' | wordwrap(1) }} {{ '<a>' | safe | striptags }} {{ '&amp;' | safe | pprint }}"
    )
    other = ChatTemplate(source)
    assert render(other, "Hi") == "True 1 a  1 [0, 1, 2] 03 Feb 2026 False a\nb  Markup('&amp;')"
    other.close()
