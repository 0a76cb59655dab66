"""Checks of a web application's routes: those that write should compare the request's condition.

::

    $ optilock check --app shop.web:app

A route writes if it answers PUT, PATCH or DELETE. A POST mostly creates something, which has
nothing to compare: it is a note. A route is protected if one of its functions, or dependencies,

* takes ``Conditions`` and uses them (FastAPI, Litestar), or calls for them (Starlette, Flask);
* calls a function that compares: ``expect``, ``apply``, ``merge_changes``, an entity operation,
  ``evaluate``;
* calls ``require_conditions``; or ``overwrite``.

The functions are read, not run: the names in them, and in functions that they call by a plain name.
Calls through an object are not found. For a route without conditions on purpose use the decorator
:func:`optilock.web.conditions.unconditional`.

FastAPI, Starlette, Litestar and Flask are recognised by the names of their classes, so only modules
that the application has imported are needed.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from optilock.check.findings import Finding, error, note, warning
from optilock.errors import ConfigurationError, describe
from optilock.unit.old_options import requires_by_old_option
from optilock.web.conditions import UNCONDITIONAL
from optilock.web.units import REQUIRES

_WRITES = ("PUT", "PATCH", "DELETE", "POST")
#: Names of optilock that compare, or declare that there is nothing to compare.
_COMPARE = frozenset(
    {
        "apply", "bulk_delete", "bulk_update", "compared", "conditions_of", "delete", "evaluate",
        "expect", "insert", "merge", "merge_changes", "overwrite", "replace",
        "require_conditions", "required", "transaction",
    }
)  # fmt: skip
_READS = "_optilock_reads_conditions"
#: The depth of nested calls that are followed.
_DEPTH = 6

Function = Callable[..., Any]


@dataclass(frozen=True)
class Route:
    """A method and a path, and the functions that answer."""

    method: str
    path: str
    functions: tuple[Function, ...]
    #: Functions that take conditions, each with the name of the parameter.
    given: tuple[tuple[Function, str], ...] = ()


@dataclass
class _App:
    """The parts of an application that are checked."""

    kind: str
    installed: bool
    routes: list[Route] = field(default_factory=list)


def check_routes(app: Any) -> Iterator[Finding]:
    """Check an application's routes.

    Args:
        app: of FastAPI, Starlette, Litestar or Flask; or a function without arguments that makes
            one.

    Raises:
        ConfigurationError: it is no such application.
    """
    found = _read(_made(app))
    if not found.installed:
        yield warning(
            "conditions-not-enforced",
            found.kind,
            "The application does not compare the conditions of its requests with what it writes: a"
            " route that ignores If-Match answers 200.",
            _INSTALL[found.kind],
        )
    for route in found.routes:
        yield from _of_route(route)


_INSTALL = {
    "FastAPI": "Call optilock.web.fastapi.install(app) before the routes are added.",
    "Starlette": "Add Middleware(optilock.web.starlette.ConditionalRequests).",
    "Litestar": "Add optilock.web.litestar.OptilockPlugin() to the plugins.",
    "Flask": "Call init_app(app) of an optilock.web.flask.Optilock().",
}


def _of_route(route: Route) -> Iterator[Finding]:
    if any(_is_protected(one, set(), _DEPTH) for one in route.functions):
        return
    if any(_uses(function, name) for function, name in route.given):
        return
    kind = note if route.method == "POST" else error
    takes = bool(route.given)
    yield kind(
        "unprotected-route",
        f"{route.method} {route.path}",
        "The route takes the conditions of the request and never uses them."
        if takes
        else "The route compares no condition of the request: the last writer wins.",
        "Write expect(obj, conditions.expected), or entities.replace(..., **conditions.demands); or"
        " say that it is meant so: @optilock.web.conditions.unconditional.",
    )


# -- the code of a function ------------------------------------------------------------------------


def _is_protected(function: Any, seen: set[Any], depth: int) -> bool:
    if hasattr(function, UNCONDITIONAL) or hasattr(function, REQUIRES):
        return True
    if requires_by_old_option(function):
        return True
    plain = _plain(function)
    if plain is None or plain in seen or not depth:
        return False
    seen.add(plain)
    names = _names(plain.__code__)
    return requires_by_old_option(plain) or any(
        _compares(value, names)
        or (_is_of_application(value) and _is_protected(value, seen, depth - 1))
        for value in _named_by(plain, names)
    )


def _plain(function: Any) -> FunctionType | None:
    """Return the function behind decorators, methods and callable objects."""
    function = inspect.unwrap(getattr(function, "func", function))
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "__call__", None)  # noqa: B004
    return function if isinstance(function, FunctionType) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _names(code: CodeType) -> set[str]:
    return {name for one in _codes(code) for name in (*one.co_names, *one.co_freevars)}


def _named_by(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yield the values of these names in the module, and around the function."""
    around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in names:
        if name in around:
            try:
                yield around[name].cell_contents
            except ValueError:  # not yet bound
                continue
        elif name in function.__globals__:
            yield function.__globals__[name]


def _compares(value: Any, names: set[str]) -> bool:
    if isinstance(value, ModuleType):
        return _is_ours(value.__name__) and bool(_COMPARE & names)
    if _is_ours(getattr(value, "__module__", None)) and getattr(value, "__name__", "") in _COMPARE:
        return True
    kind = type(value)
    return kind.__name__ == "Optilock" and _is_ours(kind.__module__) and "conditions" in names


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.split(".")[0] == "optilock"


def _is_of_application(value: Any) -> bool:
    """Return whether a function is the application's: not optilock's, SQLAlchemy's or Python's."""
    plain = _plain(value) if callable(value) and not isinstance(value, type) else None
    top = "" if plain is None else (plain.__module__ or "").split(".")[0]
    return bool(top) and top not in _OTHERS


_OTHERS = frozenset(
    {"asyncio", "fastapi", "flask", "functools", "litestar", "optilock", "sqlalchemy", "starlette"}
)


def _uses(function: Any, name: str) -> bool:
    """Return whether a function reads its parameter."""
    plain = _plain(function)
    if plain is None:
        return True  # unknown
    for one in dis.get_instructions(plain.__code__):
        if one.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")):
            named = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            if name in named:
                return True
    return False


# -- the frameworks --------------------------------------------------------------------------------


def _made(app: Any) -> Any:
    if _kind(app) is None and callable(app) and not isinstance(app, type):
        try:
            inspect.signature(app).bind()
        except (TypeError, ValueError):
            return app
        return app()
    return app


def _kind(app: Any) -> str | None:
    for cls in type(app).__mro__:
        module = cls.__module__.split(".")[0]
        if cls.__name__ in _INSTALL and module == cls.__name__.lower():
            return cls.__name__
    return None


def _read(app: Any) -> _App:
    kind = _kind(app)
    if kind is None:
        raise ConfigurationError(
            f"--app names {describe(app)}, and routes are known of FastAPI, Starlette, Litestar"
            " and Flask: name the application (shop.web:app), or a function that makes it."
        )
    if kind == "Litestar":
        return _App(kind, _has_plugin(app), [*_of_litestar(app)])
    if kind == "Flask":
        return _App(kind, "optilock" in app.extensions, [*_of_flask(app)])
    installed = any(
        _is_ours(getattr(getattr(one, "cls", None), "__module__", None))
        for one in app.user_middleware
    )
    return _App(kind, installed, [*_of_starlette(app.routes, "")])


def _of_starlette(routes: Iterable[Any], prefix: str) -> Iterator[Route]:
    for one in routes:
        if hasattr(one, "effective_route_contexts"):  # an included router of FastAPI
            yield from _of_starlette(one.effective_route_contexts(), prefix)
            continue
        inner = getattr(one, "starlette_route", None) or one
        endpoint = getattr(one, "endpoint", None) or getattr(inner, "endpoint", None)
        path = prefix + (getattr(one, "path", "") or getattr(inner, "path", ""))
        if endpoint is not None:
            yield from _of_endpoint(one, endpoint, path)
        else:
            yield from _of_starlette(getattr(inner, "routes", None) or (), path)


def _of_endpoint(route: Any, endpoint: Any, path: str) -> Iterator[Route]:
    dependant = getattr(route, "dependant", None)
    functions, given = _dependencies(dependant) if dependant else ((endpoint,), ())
    for method, function in _by_method(endpoint, getattr(route, "methods", None) or ()):
        yield Route(method, path, functions if function is endpoint else (function,), given)


def _dependencies(dependant: Any) -> tuple[tuple[Function, ...], tuple[tuple[Function, str], ...]]:
    functions, given, waiting = [], [], [dependant]
    while waiting:
        one = waiting.pop()
        functions.append(one.call)
        for below in one.dependencies:
            if hasattr(below.call, _READS):
                given.append((one.call, below.name or ""))
            else:
                waiting.append(below)
    return tuple(functions), tuple(given)


def _by_method(endpoint: Any, methods: Iterable[str]) -> Iterator[tuple[str, Function]]:
    """Yield each method that writes, with its function: a class has one for each."""
    for method in _WRITES:
        if isinstance(endpoint, type):
            function = getattr(endpoint, method.lower(), None)
            if function is not None and (not methods or method in methods):
                yield method, function
        elif method in methods:
            yield method, endpoint


def _has_plugin(app: Any) -> bool:
    return any(_is_ours(getattr(one, "__module__", None)) for one in app.middleware)


def _of_litestar(app: Any) -> Iterator[Route]:
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            names = handler.parsed_fn_signature.parameters
            functions, given = [handler.fn], []
            for name, provider in handler.resolve_dependencies().items():
                if name in names and _is_ours(type(provider.dependency).__module__):
                    given.append((handler.fn, name))
                elif name in names:
                    functions.append(provider.dependency)
            for method in _WRITES:
                if method in handler.http_methods:
                    yield Route(method, route.path, tuple(functions), tuple(given))


def _of_flask(app: Any) -> Iterator[Route]:
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        endpoint = getattr(view, "view_class", view)
        for method, function in _by_method(endpoint, rule.methods or ()):
            yield Route(method, rule.rule, (function,))
