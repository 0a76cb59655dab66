"""The check that SQLAlchemy has all that optilock uses of it, and flushes as the known releases do.

It runs once in a process, in the first ``watch()``. Without it a missing name would raise
``AttributeError`` in the middle of a flush at best. At worst it would hide a conflict: an attribute
that is written and never read, or a key of a dictionary that is never there.

The guard's own flush (``watched/guard/flush.py``) replaces functions of
SQLAlchemy. Each is known by the syntax tree of its source, which is the same for every version of
Python, without comments, annotations and layout. To add a release: read the changes of the
function that :func:`unknown_functions` names, make the same change in ``flushes.py`` or in
``watched/guard/flush.py`` if there is one to make, and add its digest.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import pkgutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha1
from types import CodeType, FunctionType
from typing import Any

#: Where a name is looked for -> the names: an attribute of the class or of its objects, or a name
#: in the source of the function. The word before the point names its owner in this package, or
#: the method of the class that has it. Of two owners, and of two names, either will do.
NEEDED: Mapping[str, str] = {
    "sqlalchemy.orm:Session": (
        "session._new session._deleted session._flushing session._nested_transaction"
        " session._register_altered session._remove_newly_deleted session.dispatch"
    ),
    "sqlalchemy.orm.identity:IdentityMap": "identity_map._modified",
    "sqlalchemy.orm:SessionTransaction": (
        "transaction._new transaction._deleted transaction._dirty transaction._state"
        " transaction._connections"
    ),
    "sqlalchemy.orm.session:SessionTransactionState": "PREPARED COMMITTED",
    "sqlalchemy.orm:UOWTransaction": "uow.mappers uow.states uow.transaction",
    "sqlalchemy.orm:Session._flush": "register_object",
    "sqlalchemy.orm:InstanceState": (
        "state.committed_state state._modified_event state._expire_attributes state._commit_all"
        " state._load_expired state.callables state.load_path state.runid state.manager"
    ),
    "sqlalchemy.orm.attributes:AttributeImpl|_AttributeImpl": "impl.sethasparent",
    "sqlalchemy.orm.instrumentation:ClassManager": "manager.has_parent manager.is_mapped",
    "sqlalchemy.orm:registry": "registry._managers",
    "sqlalchemy.orm:mapperlib": "mapperlib._all_registries",
    "sqlalchemy.orm:Mapper": (
        "mapper._primary_key_argument mapper._should_undefer_in_wildcard mapper._memoized_keys"
        " mapper._add_with_polymorphic_subclass mapper._path_registry mapper.exclude_properties"
        " mapper._pk_attr_keys_by_table"
    ),
    "sqlalchemy.orm.strategies:DeferredColumnLoader|_DeferredColumnLoader": (
        "setup_query._should_undefer_in_wildcard"
    ),
    "sqlalchemy.orm.interfaces:StrategizedProperty": "attribute._get_context_loader",
    "sqlalchemy.orm.strategy_options:_LoadElement|LoadElement": "option.strategy",
    "sqlalchemy.orm.descriptor_props:CompositeProperty": "composite.props",
    "sqlalchemy.event.attr:_ListenerCollection": "listeners.for_modify listeners.name",
    "sqlalchemy.orm:ORMExecuteState.load_options": "_sa_orm_load_options",
    "sqlalchemy.orm:loading": "loading._new_runid",
    "sqlalchemy.orm:QueryContext": "context.runid context.attributes",
    "sqlalchemy.orm.context:QueryContext.default_load_options": (
        "load._refresh_state load._lazy_loaded_from"
    ),
    "sqlalchemy.engine:Result": "result._unique_filter_state",
    "sqlalchemy.orm:Mapper._get_clause": "pk_%d",
    "sqlalchemy.orm:Load.defer": "deferred",
    "sqlalchemy:Connection": (
        "connection._transaction connection._nested_transaction connection._handle_dbapi_exception"
        " connection._commit_impl connection._commit_twophase_impl"
        " connection._prepare_twophase_impl connection._rollback_impl connection._echo"
        " connection._has_events"
    ),
    "sqlalchemy:Engine": "engine._has_events",
    "sqlalchemy.pool.base:_ConnectionFairy": "connection._connection_record",
    "sqlalchemy.pool.base:_ConnectionRecord": "record._ConnectionRecord__pool",
    "sqlalchemy.pool:Pool": "pool._invalidate pool._return_conn",
    "sqlalchemy.pool:Pool._invalidate": "_checkin",
    "sqlalchemy.engine:Transaction": "transaction.is_active",
    "sqlalchemy:Select": (
        "statement._clone statement._for_update_arg statement._distinct statement._distinct_on"
        " statement._group_by_clauses statement._having_criteria statement._independent_ctes"
        " statement._setup_joins statement._from_obj statement._propagate_attrs"
        " statement._generate_cache_key"
    ),
    "sqlalchemy:Select.join": "isouter full",
    "sqlalchemy:Update": (
        "statement._propagate_attrs statement._values statement._where_criteria"
        " statement._with_options statement._prefixes statement._returning"
        " statement._return_defaults statement._generate_cache_key"
        " statement._ordered_values|statement._maintain_values_ordering"
    ),
    "sqlalchemy:Delete": (
        "statement._propagate_attrs statement._where_criteria statement._with_options"
        " statement._prefixes statement._returning statement._return_defaults"
    ),
    "sqlalchemy:Insert": (
        "statement._propagate_attrs statement._values statement._multi_values"
        " statement._select_names statement._post_values_clause statement._prefixes"
    ),
    "sqlalchemy:StatementLambdaElement": "statement._resolved",
    "sqlalchemy.orm:Mapper.__clause_element__": "plugin_subject compile_state_plugin orm",
    "sqlalchemy.util:LRUCache": "get",
    "sqlalchemy.engine.default:DefaultExecutionContext": "context._is_server_side",
    "sqlalchemy.engine.default:DefaultDialect": (
        "dialect._on_connect_isolation_level dialect._set_connection_characteristics"
        " dialect._has_events"
    ),
    "sqlalchemy.sql.compiler:IdentifierPreparer": "preparer._double_percents",
    "sqlalchemy.sql.compiler:DDLCompiler": (
        "compiler.get_column_default_string compiler.visit_create_column"
    ),
    "sqlalchemy.ext.compiler:compiles": "_compiler_dispatcher",
    "sqlalchemy.ext.compiler:_dispatcher.__call__": "specs",
    "sqlalchemy.dialects.sqlite.base:SQLiteDialect": (
        "dialect._json_serializer dialect._json_deserializer"
    ),
    "sqlalchemy.types:TypeEngine": "kind._has_bind_expression kind._variant_mapping",
}

#: The same for names that only the guard's own flush uses.
OF_OWN_FLUSH: Mapping[str, str] = {
    "sqlalchemy.orm:Session": "session._autobegin_t session._warn_on_events",
    "sqlalchemy.orm:SessionTransaction": "transaction._begin",
    "sqlalchemy.orm:SessionTransaction.rollback": "_capture_exception",
    "sqlalchemy.orm:InstanceState": "InstanceState._commit_all_states",
    "sqlalchemy.orm:UOWTransaction": "uow.execute rest.finalize_flush_changes",
    "sqlalchemy.orm:Mapper": (
        "mapper._delete_orphans mapper._is_orphan mapper._persistent_sortkey_fn mapper._sort_key"
        " mapper._memoized_values mapper._compiled_cache mapper._dependency_processors"
    ),
    "sqlalchemy.orm.attributes:AttributeImpl|_AttributeImpl": "impl.is_equal",
    "sqlalchemy.orm.events:MapperEvents": "events.before_update events.after_update",
    "sqlalchemy.orm.events:InstanceEvents": "events.refresh_flush",
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


def missing_names(names: Mapping[str, str] = NEEDED) -> list[str]:
    """Return the names that the installed SQLAlchemy does not have, as this package writes them."""
    return [
        name
        for owner, some in names.items()
        for name in some.split()
        if not any(_has(found, one) for found in _found(owner) for one in name.split("|"))
    ]


def unknown_functions() -> list[str]:
    """Return the functions that the own flush replaces, and whose digest is of no known release."""
    return [name for name, known in REPLACED.items() if digest_of(name) not in known.split()]


def digest_of(name: str) -> str | None:
    """Return the digest of a function's syntax tree; ``None`` if it or its source is missing."""
    for function in _found(name):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType) and code.co_filename[0] == "<":  # SQLAlchemy's decorators
            code = getattr(inspect.unwrap(function), "__code__", None)
        try:
            tree = ast.parse(_source_of(code)) if isinstance(code, CodeType) else None
        except SyntaxError:
            continue
        if tree is not None and tree.body:
            parts: list[str] = []
            _add_form(tree.body[0], parts)
            return sha1(" ".join(parts).encode(), usedforsecurity=False).hexdigest()[:8]
    return None


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
