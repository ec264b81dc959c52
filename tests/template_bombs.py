"""Chat templates that take all time or memory where they are let, or end in errors of any size."""

_LONG = "{% set s = 'x' * 1000000 %}"
_MANY = "{% set many = range(100000) | list %}"


def _doubled(expression: str) -> str:
    """Return a template in which a text grows 40 times by an expression of `ns.s`."""
    begin = "{% set ns = namespace(s='x') %}{% for i in range(40) %}"
    return f"{begin}{{% set ns.s = {expression} %}}{{% endfor %}}{{{{ ns.s | length }}}}"


def _for_each(of: str, body: str) -> str:
    return f"{{% for a in {of} %}}{body}{{% endfor %}}"


def _nested(opening: str, closing: str, n: int) -> str:
    return opening * n + closing * n


_LOOPS = {
    "a text": _LONG + _for_each("s", _for_each("s", "")),
    "a list": _MANY + _for_each("many", _for_each("many", "")),
    "messages that are repeated": _for_each("messages * 300000", _for_each("messages * 300000", "")),
    "messages that are added up": _doubled("(messages if i == 0 else ns.s) + (messages if i == 0 else ns.s)"),
    "slices": _LONG + _for_each("s | slice(1000000)", _for_each("s", "")),
    "batches": _LONG + _for_each("s | batch(1)", _for_each("s", "")),
    "a dictionary": "{% set d = dict.fromkeys(range(90000)) %}" + _for_each("d", _for_each("d", "")),
    "recursion": "{% for a in [[1]] recursive %}{{ loop([a, a]) }}{% endfor %}",
    "macros": f"{_LONG}{{% macro f() %}}{_for_each('s', '{{ a }}')}{{% endmacro %}}" + _for_each("s", "{{ f() }}"),
    "what is left out": _LONG + _for_each("s", _for_each("s if a == 'y'", "")),
    "maps": _LONG + _for_each("s", "{{ s | map('upper') | list | length }}"),
    "sorts": _LONG + _for_each("s", "{{ s | list | sort | length }}"),
    "groups": _MANY + _for_each("many", "{{ many | groupby('real') | length }}"),
    "sums": _MANY + _for_each("many", "{{ many | sum }}"),
    "unique items": _MANY + _for_each("many", "{{ many | unique | list | length }}"),
}
_GROWTH = {
    "~": _doubled("ns.s ~ ns.s"),
    "+": _doubled("ns.s + ns.s"),
    "join": _doubled("[ns.s, ns.s] | join"),
    "format": _doubled("'{0}{0}'.format(ns.s)"),
    "%": _doubled("'%s%s' % (ns.s, ns.s)"),
    "the filter format": _doubled("'%s%s' | format(ns.s, ns.s)"),
    "replace": _doubled("ns.s.replace('x', 'xx')"),
    "the filter replace": _doubled("ns.s | replace('x', 'xx')"),
    "blocks": "{% set ns = namespace(s='x') %}"
    + _for_each("range(40)", "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}"),
    "macros": "{% macro f(s, n) %}{{ f(s ~ s, n - 1) if n else s }}{% endmacro %}{{ f('x', 40) | length }}",
    "lists": _doubled("[ns.s, ns.s] | string"),
    "tojson": _doubled("ns.s | tojson | tojson"),
    "numbers": "{% set ns = namespace(n=7) %}" + _for_each("range(60)", "{% set ns.n = ns.n * ns.n %}") + "{{ ns.n }}",
}
_SIZES = {
    "join": _LONG + "{{ s.join(s) | length }}",
    "the filter join": _LONG + "{{ s | join(s) | length }}",
    "replace": _LONG + "{{ s.replace('x', s) | length }}",
    "translate": _LONG + "{{ s.translate({120: s}) | length }}",
    "indent": "{% set s = '\\n' * 1000000 %}{{ s | indent(1000000, blank=true) | length }}",
    "wordwrap": _LONG + "{{ s | wordwrap(1, wrapstring=s) | length }}",
    "expandtabs": "{{ ('\\t' * 1000000).expandtabs(1000000) | length }}",
    "text without end": _LONG + _for_each("s", "{{ s }}"),
    "text": _LONG + "{{ s }}" * 30,
    "center": "{{ 'x'.center(3000000000) | length }}",
    "the filter center": "{{ 'x' | center(3000000000) | length }}",
    "ljust": "{{ 'x'.ljust(3000000000) | length }}",
    "rjust": "{{ 'x'.rjust(3000000000) | length }}",
    "zfill": "{{ 'x'.zfill(3000000000) | length }}",
    "format": "{{ '{0:>3000000000}'.format('x') | length }}",
    "format_map": "{{ '{a:>3000000000}'.format_map({'a': 'x'}) | length }}",
    "%": "{{ '%500000000d' % 1 }}",
    "% with a width from outside": "{{ '%*d' % (2000000000, 1) }}",
    "the filter format": "{{ '%2000000000s' | format('x') }}",
    "tojson": "{{ [1, [2]] | tojson(indent=1000000000) | length }}",
    "slice": "{{ [] | slice(1000000000) | list | length }}",
    "batch": "{{ [1] | batch(1000000000, 0) | list | length }}",
    "lipsum": "{{ lipsum(n=100000000) }}",
    "lipsum of long paragraphs": "{{ lipsum(n=1, min=100000000, max=100000001) }}",
    "round": "{{ 1.5 | round(1000000000) }}{{ (10 | int) | round(-1000000000) }}",
}
_COMPILING = {
    "constants": "{{ 'x'.ljust(3000000000) ~ 'y' }}{{ 'x' | center(3000000000) }}",
    "lists in lists": "{{ " + _nested("[", "]", 150) + " }}",
    "parentheses": "{{ " + _nested("(", ")", 20000) + " }}",
    "negations": "{{ " + "-" * 50000 + "1 }}",
    "sums": "{{ " + "1 + " * 50000 + "1 }}",
    "loops in loops": _nested("{% for a in messages %}", "{% endfor %}", 30),
    "conditions in conditions": _nested("{% if a %}", "{% endif %}", 3000),
    "statements": "{% set a = 1 %}{{ a }}" * 60000,
    "macros": "".join(f"{{% macro m{i}() %}}{{{{ x }}}}{{% endmacro %}}" for i in range(20000)),
    "dictionaries": "{{ " + "{'a': " * 2000 + "1" + "}" * 2000 + " }}",
    "a long name": "{{ " + "a" * 5000000 + " }}{{ 1 +",
}
_ERRORS = {
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros that call": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "a long refusal": _LONG + "{{ raise_exception(s) }}",
    "a long name": "{{ {}['" + "x" * 1000000 + "'].y }}",
    "powers": "{{ 9 ** 9 ** 9 }}",
    "products": "{{ 'x' * 10000000000 }}",
    "half of a character": "{{ '\\ud800' }}",
}
BOMBS = {
    f"{kind}: {name}": source
    for kind, bombs in {
        "loops over": _LOOPS,
        "growth by": _GROWTH,
        "size of": _SIZES,
        "compiling": _COMPILING,
        "errors from": _ERRORS,
    }.items()
    for name, source in bombs.items()
}
"""By what they do."""
