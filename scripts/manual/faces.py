"""The signatures of asyncio's calls in the reference, which is made from the source alone."""

from __future__ import annotations

import ast
from typing import Any

import griffe


class Signatures(griffe.Extension):
    """Gives each declared call the parameters and overloads that it has at run time."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        # The Spark package has no asyncio calls.
        faces = pkg["aio"].modules.values() if pkg.name == "shardq" else ()
        for module in faces:
            for face in module.classes.values():
                for call in face.functions.values() if isinstance(face, griffe.Class) else ():
                    _sign(call, pkg)


def _sign(call: Any, package: Any) -> None:
    for decorator in call.decorators:
        if decorator.callable_path != "shardq.aio.threaded.declared":
            continue
        (made,) = decorator.value.arguments
        if isinstance(made, griffe.ExprName):
            # A call with overloads is made on the module's top level.
            made = call.module[made.name].value
        method = package[made.arguments[0].canonical_path.removeprefix(f"{package.name}.")]
        call.labels.add("async")
        if call.overloads:
            # Written in `aio`, because a parameter is a face.
            continue
        call.parameters, call.returns = method.parameters, method.returns
        call.overloads = method.overloads
        if made.function.name == "faced":
            # The call returns the asyncio class of the same name.
            returned = ast.parse(str(method.returns), mode="eval").body
            call.returns = griffe.get_annotation(returned, parent=package["aio"])
