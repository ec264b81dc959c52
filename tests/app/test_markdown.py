import random

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QPalette, QTextDocument
from PySide6.QtWidgets import QApplication

from app.widgets.code_formats import code_spans
from app.widgets.markdown_document import MarkdownDocument
from app.widgets.markdown_sections import Sections

TEXT = """# Title

Some **bold** and `code` and a [link](https://example.org).

- one
- two
  - deep

1. first

   still first
2. second

```python
def f(x):
    return x

print(f(1))
```
```
no language
```

> quote

| a | b |
|---|---|
| 1 | 2 |

~~~
```
~~~

Raw <b>tags</b> stay ![picture](file:///etc/hostname).

```c
int main(void) { return 0; }
"""


def closed_sections(text: str) -> list[str]:
    sections = Sections()
    sections.add(text)
    return [piece.text for piece in iter(sections.take, None)]


@pytest.fixture
def document(qapp: QApplication) -> MarkdownDocument:
    return MarkdownDocument(QPalette(), qapp)


def test_a_text_that_grew_looks_like_the_whole(document: MarkdownDocument, qapp: QApplication) -> None:
    whole = MarkdownDocument(QPalette(), qapp)
    whole.set_source(TEXT)
    random.seed(1)
    rest = TEXT
    while rest:
        n = random.randint(1, 9)
        document.grow(rest[:n])
        rest = rest[n:]
    assert document.source == TEXT
    assert document.toHtml() == whole.toHtml()


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize(
    "text",
    [
        "1. Polar bears\n2. Dormice\n3. Hedgehogs",
        "- a\n- b\n\ntext\n\n- c",
        "# Title\n\ntext",
        "> quote\n\nafter",
        "```python\nx = 1\n```\n\nafter\n\n1. one\n2. two",
        "* **bold** x",
        "plain\n\n1. a\n2. b",
        "**bold** start",
    ],
)
def test_whatever_a_text_begins_with_it_looks_like_the_whole_when_it_grew(
    document: MarkdownDocument, qapp: QApplication, text: str, step: int
) -> None:
    whole = MarkdownDocument(QPalette(), qapp)
    whole.set_source(text)
    for start in range(0, len(text), step):
        document.grow(text[start : start + step])
    assert document.toHtml() == whole.toHtml()


def test_the_whole_reads_as_qt_alone_renders_it(document: MarkdownDocument) -> None:
    document.set_source(TEXT)
    reference = QTextDocument()
    features = QTextDocument.MarkdownFeature
    reference.setMarkdown(TEXT, features.MarkdownDialectGitHub | features.MarkdownNoHTML)
    reads = reference.toPlainText().replace("\ufffc", "Image: picture (file:///etc/hostname)")
    assert document.toPlainText().split() == reads.split()


def test_code_keeps_its_lines(document: MarkdownDocument) -> None:
    document.set_source(TEXT)
    assert "def f(x):\n    return x\n\nprint(f(1))\n" in document.toPlainText()


def test_sections_are_closed_only_where_nothing_can_change() -> None:
    assert closed_sections("one\n\ntwo\n") == ["one\n\n"]
    assert closed_sections("one\n\n2 and some more") == ["one\n\n"]
    assert closed_sections("one\n\n2") == []  # it may be the beginning of a list that goes on
    assert closed_sections("one\ntwo\n") == []
    assert closed_sections("- one\n\n- two\n\n  more\n") == []
    assert closed_sections("```\na\n\nb\n```\n\nc\n") == ["```\na\n\nb\n```\n\n"]
    assert closed_sections("```\na\n\nb\n") == []
    assert closed_sections("1. a\n\n2. b\n\ntext\n\n") == ["1. a\n\n2. b\n\n"]


def test_no_address_is_loaded(document: MarkdownDocument) -> None:
    kind = QTextDocument.ResourceType.ImageResource
    assert document.resource(kind.value, QUrl("file:///etc/hostname")) is None


def test_code_is_colored_by_its_language() -> None:
    code = "def f(): return 1"
    assert [(code[s : s + n], kind) for s, n, kind in code_spans(code, "python")] == [
        ("def", "keyword"),
        ("f", "name"),
        ("return", "keyword"),
        ("1", "number"),
    ]
    assert code_spans(code, "no such language") == []
    assert code_spans(code, "") == []
