"""Operations as the Python of a migration script, with the imports that it needs."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import render
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import CreateTableOp
from sqlalchemy.types import TypeEngine

from optilock.alembic.operation import VersionOperation
from optilock.tokens import Token

__all__ = ["rendered"]


@render.renderers.dispatch_for(VersionOperation)
def rendered(context: AutogenContext, operation: VersionOperation) -> str:
    """The operation as the line of a migration script."""
    context.imports.add("import optilock.alembic")
    call = operation.call()
    words = [_text(context, argument) for argument in call.arguments]
    words += [
        f"{option}={_text(context, value)}"
        for option, value in call.options.items()
        if value is not None and value != ()
    ]
    return f"op.{call.name}({', '.join(words)})"


_render_table = render.renderers.dispatch(CreateTableOp)


@render.renderers.dispatch_for(CreateTableOp, replace=True)
def _with_imports(context: AutogenContext, operation: CreateTableOp) -> str:
    """Alembic writes our types by their whole names, and does not import them."""
    for column in operation.columns:
        module = type(getattr(column, "type", None)).__module__
        if module.startswith("optilock."):
            context.imports.add(f"import {module}")
    return str(_render_table(context, operation))


def _text(context: AutogenContext, value: Any) -> str:
    if isinstance(value, Token):
        return _token(context, value)
    if isinstance(value, TypeEngine):
        return _type(context, value)
    return repr(str(value)) if isinstance(value, str) else repr(value)


def _token(context: AutogenContext, token: Token) -> str:
    """The call that makes an equal token; what is as by default is left out."""
    kind = type(token)
    context.imports.add(f"import {kind.__module__}")
    given, named = token.arguments()
    words = [_text(context, value) for value in given]
    words += [f"{name}={_text(context, value)}" for name, value in named.items()]
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(words)})"


def _type(context: AutogenContext, kind: TypeEngine[Any]) -> str:
    module = type(kind).__module__
    if not module.startswith("sqlalchemy."):
        context.imports.add(f"import {module}")
    return str(render._repr_type(kind, context))
