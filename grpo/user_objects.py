"""Objects of the user's own code: classes and functions named as `module:name`, and their options.

    environment: {kind: python, object: "shop.environment:ShopEnvironment", options: {stock: 40}}

The folder of the config is on the import path, like the folder of a script.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, ValidationError, create_model

from grpo import process_settings
from grpo.errors import ConfigError
from grpo.reads.recording import recorded_import
from grpo.user_failures import describe, is_from_outside

T = TypeVar("T")


def make_importable(folder: Path) -> None:
    """Append a folder to the import path of this process and of its child processes. Other modules come first."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)
        importlib.invalidate_caches()
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if place not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([*inherited, place])


def reference_of(name: str, *, group: str) -> str:
    """Return `module:name` unchanged, or look up any other name as an entry point of this group.

    Raises `ConfigError` if no installed package has this entry point.
    """
    if ":" in name:
        return name
    points = entry_points(group=group)
    if name not in points.names:
        known = ", ".join(sorted(points.names)) or "none"
        raise ConfigError(
            f"object {name!r} is not of the form module:name, and no installed package has an entry point {name!r} in "
            f"{group}. Write module:name, or one of the known entry points: {known}"
        )
    return points[name].value


def load_object(reference: str) -> Any:
    """Import the object `module:name` or `module:Class.method`.

    Raises `ConfigError` if it is missing or its module cannot be imported.
    """
    module_name, _, name = reference.partition(":")
    try:
        imported = module_name in sys.modules
        settings = nullcontext() if imported else process_settings.kept(f"module {module_name}")
        with recorded_import(module_name), settings:
            module = importlib.import_module(module_name)
    except BaseException as error:
        if is_from_outside(error):
            raise
        missing = isinstance(error, ModuleNotFoundError) and module_name.startswith(str(error.name))
        remedy = "Put it into the config's folder, or install its package" if missing else "Correct it"
        raise ConfigError(
            f"{reference}: module {module_name} cannot be imported ({describe(error)}). {remedy}"
        ) from error
    try:
        return attrgetter(name)(module)
    except AttributeError as error:
        near = [public for public, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__]
        raise ConfigError(f"{reference}: module {module_name} has no {name}. It has {', '.join(near)}") from error


def make_object(reference: str, options: Mapping[str, Any], kind: type[T], *given: Any, **named: Any) -> T:
    """Call a class or function of the user with the given arguments and with options, and return an instance of `kind`.

    Options are checked by the signature. Raises `ConfigError` if an option is unknown, missing or of another type, if
    the call fails, or if the result is not an instance of `kind`.
    """
    target = _maker(reference, kind)
    arguments = _arguments(reference, target, options, given=len(given), named=named)
    try:
        made = target(*given, **named, **arguments)
    except BaseException as error:
        if is_from_outside(error):
            raise
        raise ConfigError(f"{reference} cannot be made with options {dict(options)}: {describe(error)}") from error
    if not isinstance(made, kind):
        raise ConfigError(f"{reference} makes {type(made).__name__}. {_derive(kind, made)}")
    return made


def check_options(
    reference: str, options: Mapping[str, Any], kind: type, *, given: int = 0, named: Collection[str] = ()
) -> None:
    """Check the arguments of `make_object` without calling the class or function.

    Raises `ConfigError` if an option is unknown, missing or of another type, or if a class is not a `kind`.
    """
    target = _maker(reference, kind)
    if isinstance(target, type) and not issubclass(target, kind):
        raise ConfigError(f"{reference} is not a {kind.__name__}. {_derive(kind, target)}")
    _arguments(reference, target, options, given=given, named=named)


def _derive(kind: type, given: object) -> str:
    """Remedy for a class that is not a `kind`."""
    remedy = f"Derive it from {kind.__name__}"
    if kind.__name__ == "Environment" and hasattr(given, "reset"):
        other = "gym, for classes with reset and step" if hasattr(given, "step") else "trl, for classes with tools"
        return f"{remedy}, or set kind: {other}"
    return remedy


def _maker(reference: str, kind: type) -> Callable[..., Any]:
    target = load_object(reference)
    if not callable(target):
        raise ConfigError(f"{reference} is {type(target).__name__}. Name a class derived from {kind.__name__}")
    return cast(Callable[..., Any], target)


def bind(reference: str, options: Mapping[str, Any], *, given: int = 1, columns: bool = False) -> Callable[..., Any]:
    """Function of the user with its options, or an instance of a class that can be called.

    Options are the parameters after the first `given` ones. If `columns` is True, because the function is called with
    columns by name, an option may be any parameter. Raises `ConfigError` as `make_object` does.
    """
    target = load_object(reference)
    if isinstance(target, type):
        made = make_object(reference, options, object)
        if not callable(made):
            raise ConfigError(f"{reference} makes an object that cannot be called. Give its class a __call__")
        return cast(Callable[..., Any], made)
    if not callable(target):
        raise ConfigError(f"{reference} is {type(target).__name__}. Name a function, or a class with a __call__")
    arguments = _arguments(reference, target, options, given=0 if columns else given, only=options if columns else None)
    return functools.partial(target, **arguments) if arguments else target


def _arguments(
    reference: str,
    target: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    given: int,
    named: Collection[str] = (),
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Options, checked by the signature and converted to its annotations.

    The first `given` parameters and the `named` ones are not options. If `only` is set, no other parameter is an
    option, not even a required one or `**kwargs`.
    """
    try:
        parameters = inspect.signature(target, eval_str=True).parameters.values()
    except NameError:  # an annotation that exists only for type checkers
        parameters = inspect.signature(target).parameters.values()
    free = [p for p in [*parameters][given:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    accepted = {p.name: p for p in free if p.name not in named}
    takes_any = only is None and any(p.kind is p.VAR_KEYWORD for p in parameters)
    fields: dict[str, Any] = {
        name: (
            Any if p.annotation is p.empty or isinstance(p.annotation, str) else p.annotation,
            ... if p.default is p.empty else p.default,
        )
        for name, p in accepted.items()
        if (only is None or name in only)
        and (name in options or p.default is p.empty)  # another annotation may be a class that pydantic cannot check
    }
    shown = ", ".join(accepted) or "no options"
    if unknown := [name for name in options if name not in accepted and not takes_any]:
        raise ConfigError(f"{reference} has no option {unknown[0]!r}. It takes {shown}")
    settings = ConfigDict(extra="allow", arbitrary_types_allowed=True, allow_inf_nan=False, protected_namespaces=())
    model = create_model("Options", __config__=settings, **fields)
    try:
        checked = model.model_validate(dict(options))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"{reference}: option {place}: {problem['msg']}. It takes {shown}") from error
    return {name: getattr(checked, name) for name in options}
