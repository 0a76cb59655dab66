"""The parts of SQLAlchemy that the self-test does not try: names, and functions of known releases.

The self-test (``_watched/guard/self_test.py``) uses most undocumented parts before a row of the
application is written. The names in :data:`NEEDED` are used only with other databases, other kinds
of classes or lost connections, so they are looked up. Without that a missing name would raise
``AttributeError`` in the middle of a flush at best. At worst it would hide a conflict: an attribute
that is written and never read, or a key of a dictionary that is never there.

The guard's own flush (``_watched/guard/flush.py``) replaces functions of SQLAlchemy. A later
release may do more in them than the self-test looks at. So in a release that is not :data:`KNOWN`
each must have a known source: its syntax tree, which is the same for every version of Python,
without comments, annotations and layout. To add a release: read the changes of the function that
:func:`unknown_functions` names, make the same change in ``flushes.py`` or in
``_watched/guard/flush.py`` if there is one to make, and add its digest and its number.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import pkgutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha1
from types import CodeType, FunctionType
from typing import Any

import sqlalchemy

from optilock._undocumented.names import not_found

#: Names that the self-test does not use: where each is looked for -> the names. A name is an
#: attribute of the class or of its objects, or is in the source of the function. The word before
#: the point names its owner in this package, or the method of the class that has it. Of two owners,
#: and of two names, either will do.
NEEDED: Mapping[str, str] = {
    "sqlalchemy.orm:Session": "session._autobegin_t",
    "sqlalchemy.orm.attributes:AttributeImpl|_AttributeImpl": "impl.sethasparent",
    "sqlalchemy.orm:Mapper": (
        "mapper._add_with_polymorphic_subclass mapper.exclude_properties"
        " mapper._pk_attr_keys_by_table mapper._memoized_keys mapper._path_registry"
    ),
    "sqlalchemy.orm.strategies:DeferredColumnLoader|_DeferredColumnLoader": (
        "setup_query._should_undefer_in_wildcard"
    ),
    "sqlalchemy.orm.interfaces:StrategizedProperty": (
        "attribute._get_context_loader attribute.setup attribute.create_row_processor"
    ),
    "sqlalchemy.orm.loading:_instance_processor": (
        "memoized_setups result._getter create_row_processor"
    ),
    "sqlalchemy:NestedTransaction": "nested._savepoint nested._previous_nested",
    "sqlalchemy.orm.strategy_options:_LoadElement|LoadElement": "option.strategy",
    "sqlalchemy.orm:Load.defer": "deferred",
    "sqlalchemy.orm.descriptor_props:CompositeProperty": "composite.props",
    "sqlalchemy.orm:ORMExecuteState.load_options": "_sa_orm_load_options",
    "sqlalchemy.orm.context:QueryContext.default_load_options": (
        "load._refresh_state load._lazy_loaded_from"
    ),
    "sqlalchemy.orm:Mapper._get_clause": "pk_%d",
    "sqlalchemy.pool.base:_ConnectionFairy": "connection._connection_record",
    "sqlalchemy.pool.base:_ConnectionRecord": "record._ConnectionRecord__pool",
    "sqlalchemy.pool:Pool": "pool._invalidate pool._return_conn",
    "sqlalchemy.pool:Pool._invalidate": "_checkin",
    "sqlalchemy.engine.default:DefaultExecutionContext": "context._is_server_side",
    "sqlalchemy.dialects.sqlite.base:SQLiteDialect": (
        "dialect._json_serializer dialect._json_deserializer"
    ),
    "sqlalchemy.ext.compiler:compiles": "_compiler_dispatcher",
    "sqlalchemy.ext.compiler:_dispatcher.__call__": "specs",
}

#: Functions that the own flush replaces -> the digests of their known sources.
REPLACED: Mapping[str, str] = {
    "sqlalchemy.orm:Session.flush": "bf59187b",
    "sqlalchemy.orm:Session._flush": "09794095",
    "sqlalchemy.orm:Session._register_persistent": "0d642a2a 29b690e3",
    "sqlalchemy.orm:UOWTransaction.__init__": "fe47aacc",
    "sqlalchemy.orm:UOWTransaction.execute": "cb90833a",
    "sqlalchemy.orm:UOWTransaction.register_object": "90f41067",
    "sqlalchemy.orm:UOWTransaction.finalize_flush_changes": "4d2169e9",
    "sqlalchemy.orm.persistence:save_obj|_save_obj": "f8a99351 7721cf48",
    "sqlalchemy.orm.persistence:_organize_states_for_save": "c393a770",
    "sqlalchemy.orm.persistence:_connections_for_states": "96c7fdf9",
    "sqlalchemy.orm.persistence:_collect_update_commands": "642b47f1 0e23a14d",
    "sqlalchemy.orm.persistence:_emit_update_statements": "f89c952e",
    "sqlalchemy.orm.persistence:_postfetch": "baf8d485 bef5aa0f 062c0bab 500d8aa9",
    "sqlalchemy.orm.persistence:_finalize_insert_update_commands": "fc15fa1d ab0cdaa2",
    "sqlalchemy.orm.persistence:_sort_states": "cae5d328",
}


#: The newest patch release with these functions, of each minor release.
KNOWN: Mapping[str, int] = {"2.0": 58, "2.1": 9}


def missing_names() -> list[str]:
    """Return the names that the installed SQLAlchemy does not have, as this package writes them."""
    return not_found + [
        name
        for owner, some in NEEDED.items()
        for name in some.split()
        if not any(_has(found, one) for found in _found(owner) for one in name.split("|"))
    ]


def is_known_release() -> bool:
    """Return whether the sources of the replaced functions follow from the release's number.

    Reading them would take as long as the self-test, which a changed copy has to pass as well.
    """
    minor, _, patch = sqlalchemy.__version__.rpartition(".")
    return patch.isdecimal() and int(patch) <= KNOWN.get(minor, -1)


def unknown_functions() -> list[str]:
    """Return the functions that the own flush replaces, and that are none of a known release."""
    is_other = _is_covered if is_known_release() else _is_unknown
    return [name for name in REPLACED if is_other(name)]


def _is_covered(name: str) -> bool:
    """Return whether another library has put a function of its own over it."""
    codes = [_code_of(function) for function in _found(name)]
    return not any(code is not None and code.co_filename.startswith(_FOLDER) for code in codes)


def _is_unknown(name: str) -> bool:
    return digest_of(name) not in REPLACED[name].split()


_FOLDER = os.path.join(os.path.dirname(sqlalchemy.__file__), "")


def digest_of(name: str) -> str | None:
    """Return the digest of a function's syntax tree; ``None`` if it or its source is missing."""
    for function in _found(name):
        code = _code_of(function)
        try:
            tree = None if code is None else ast.parse(_source_of(code))
        except SyntaxError:
            continue
        if tree is not None and tree.body:
            parts: list[str] = []
            _add_form(tree.body[0], parts)
            return sha1(" ".join(parts).encode(), usedforsecurity=False).hexdigest()[:8]
    return None


def _code_of(function: Any) -> CodeType | None:
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_filename[0] == "<":  # SQLAlchemy's decorators
        code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _source_of(code: CodeType) -> str:
    """Return its lines; ``inspect.getsource()`` takes ten times as long."""
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    is_inside = False
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    for number, line in enumerate(lines):
        here = line.lstrip()
        if not here or len(line) - len(here) > indent or here[0] in ")#":
            continue
        if is_inside:
            del lines[number:]
            break
        is_inside = here[0] != "@"  # of its decorators
    return textwrap.dedent("".join(lines))


def _found(name: str) -> Iterator[Any]:
    """Yield the objects with that name; of several after ``|`` those that exist."""
    module, _, rest = name.partition(":")
    for one in rest.split("|"):
        try:
            yield pkgutil.resolve_name(f"{module}:{one}")
        except (ImportError, AttributeError):
            continue


def _has(owner: Any, name: str) -> bool:
    """Return whether it has the attribute, or names it in its constructor, or in its parameters."""
    place, _, name = name.rpartition(".")
    if hasattr(owner, name) or _names(owner, name):
        return True
    if not isinstance(owner, type):
        return False
    made = (vars(cls).get("__init__") for cls in owner.__mro__)
    annotated = (vars(cls).get("__annotations__", ()) for cls in owner.__mro__)
    return (
        any(name in some for some in annotated)
        or any(_names(one, name) for one in made)
        or _names(getattr(owner, place, None), name)
    )


def _names(function: Any, name: str) -> bool:
    function = inspect.unwrap(function) if callable(function) else function
    function = getattr(function, "fget", function)
    return isinstance(function, FunctionType) and name in set(_words_of(function.__code__))


def _words_of(code: CodeType) -> Iterator[str]:
    """Yield the names and the texts in the code, also of functions inside it."""
    yield from (*code.co_names, *code.co_varnames)
    yield from _texts_in(code.co_consts)


def _texts_in(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (tuple, frozenset)):
            yield from _texts_in(value)
        elif isinstance(value, CodeType):
            yield from _words_of(value)


#: Parts of a syntax tree that change nothing, or that not every version of Python has.
_LEFT_OUT = frozenset(
    {"ctx", "kind", "annotation", "returns", "type_comment", "type_params", "decorator_list"}
)


def _add_form(node: Any, parts: list[str]) -> None:
    """Add a syntax tree to ``parts``, as texts."""
    if isinstance(node, list):
        parts.append("[")
        for one in node:
            if not _is_docstring(one):
                _add_form(one, parts)
        parts.append("]")
    elif isinstance(node, ast.AST):
        parts.append(type(node).__name__)
        for name in node._fields:
            part = getattr(node, name, None)
            if name not in _LEFT_OUT and part is not None and part != []:
                parts.append(name)
                _add_form(part, parts)
    else:
        parts.append(repr(node))


def _is_docstring(node: Any) -> bool:
    """Return whether it is a text that is a statement."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
