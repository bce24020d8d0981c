"""Recording of what the user's code reads, from the first import of this module on.

In a stage, `open` and listings of folders are recorded for everything in its context. For the user's code and the
threads that it starts, the following is recorded as well: connections of sqlite3, programs, libraries that are loaded,
environment variables, `os.stat`, and files that C++ or a program opens below the folders of the user's modules.

While a module is imported, its reads are recorded for the module, with the digest of that moment. This is needed
because `WORDS = Path("words.txt").read_text()` at the top of a module runs once in a process, long before a stage calls
its functions. Every stage that runs code of the module counts these reads.

A function with a cache, and a variable that is filled at its first use, read a file once in a process as well. Each
stage therefore also counts what the user's code has read earlier, in the checks before the run and in other stages that
run one of its modules.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from grpo.reads import environment, status
from grpo.reads.frames import Reader, claim, is_import_system, reader
from grpo.reads.modules import find_module, import_root, is_users
from grpo.reads.names import current_digest, renamed, roots_of, without
from grpo.reads.recorder import PROGRAMS, ReadRecorder, is_installed_code, note
from grpo.reads.watch import existing_places, may_name, watched

_LISTINGS = ("os.listdir", "os.scandir")
_EVERY = ("open", *_LISTINGS)
"""Events that count in a stage's context, whatever code causes them. Others count only if the user's code does."""
_USERS = ("sqlite3.connect", "ctypes.dlopen", "os.fork", "os.forkpty", *PROGRAMS)
_THREADS = ("_thread.start_new_thread", "_thread.start_joinable_thread")
_EVENTS = frozenset((*_EVERY, *_USERS, *_THREADS))
_EARLIER = frozenset(sys.modules)
"""Modules that were imported before anything was recorded."""
_recorder: ContextVar[ReadRecorder | None] = ContextVar("read_recorder", default=None)
_active: list[ReadRecorder] = []
_lock = threading.Lock()
_own = threading.local()


class _ModuleReads:
    """Reads of a module while it is imported, each with the digest of that moment."""

    def __init__(self) -> None:
        self.digests: dict[str, str | None] = {}
        self.earlier: dict[str, str | None] = {}
        """Reads of the module's functions in earlier stages and in the checks before the run."""
        self.unseen: set[str] = set()
        self._written: set[str] = set()

    def add(self, record: Callable[[ReadRecorder], object]) -> None:
        """Add what `record` does to a recorder."""
        recorder = ReadRecorder()
        record(recorder)
        self.unseen |= recorder.unseen
        self._written |= recorder.written
        for name, digest in recorder.digests().items():
            if name not in self._written:
                self.digests.setdefault(name, digest)


_modules: dict[str, _ModuleReads] = {}


class StageReads:
    """Reads of a stage, and reads of its modules when they were imported."""

    def __init__(self, modules: Iterable[str], recorder: ReadRecorder) -> None:
        self._modules = tuple(modules)
        self._recorder = recorder

    def digests(self, *, exclude: tuple[Path, ...] = ()) -> dict[str, str | None]:
        """Digests by name, see `grpo.reads.names`, without files in the folders `exclude`."""
        roots = _users_roots(self._modules)
        own = self._recorder.digests(exclude=exclude, roots=roots)
        digests = dict[str, str | None]()
        for module in self._modules:
            if module in _modules:
                kept = without(_modules[module].earlier, exclude)
                digests |= {renamed(name, roots): digest for name, digest in kept.items()}
        digests |= own
        for module in self._modules:
            if module in _modules:
                kept = without(_modules[module].digests, exclude)
                digests |= {renamed(name, roots): digest for name, digest in kept.items()}
        self.remember(own)
        return digests

    def remember(self, known: Mapping[str, str | None] | None = None) -> None:
        """Count what the user's functions have read in later stages too, with the digests of now or `known` ones.

        A function with a cache, and a variable that is filled at its first use, will not read it again.
        """
        roots = _users_roots(self._modules)
        for module, recorder in self._recorder.by_module.items():
            earlier = _modules.setdefault(module, _ModuleReads()).earlier
            for name in recorder.names(roots=roots):
                if name not in earlier:
                    earlier[name] = known[name] if known is not None and name in known else current_digest(name)
            for name, digest in recorder.variables().items():
                earlier.setdefault(name, digest)

    @property
    def unseen(self) -> list[str]:
        """Ways in which something was read that cannot be seen."""
        ways = {way for module in self._modules if module in _modules for way in _modules[module].unseen}
        earlier = {
            f"the import of {module}, before the import of grpo" for module in _EARLIER.intersection(self._modules)
        }
        return sorted({*self._recorder.unseen, *ways, *earlier})


@contextmanager
def recorded_reads(modules: Iterable[str] = (), texts: Iterable[str] = ()) -> Iterator[StageReads]:
    """Record the reads of this context and of the user's threads while the block runs.

    Reads from outside of Python are recorded as well if they are below the folders of `modules`, which are the user's,
    or in files and folders that the `texts` of these modules name.
    """
    modules, recorder = tuple(modules), ReadRecorder()
    token = _recorder.set(recorder)
    with _lock:
        _active.append(recorder)
    try:
        texts = frozenset(texts)
        with ExitStack() as watching:
            with _unrecorded():
                folders = [*map(Path, _users_roots(modules).values()), *existing_places(texts)]
                touched = watching.enter_context(watched(folders))
            with status.recorded(_looked_at):
                reads = StageReads(modules, recorder)
                try:
                    yield reads
                except BaseException:
                    with _unrecorded():
                        reads.remember()  # for the next try
                    raise
        with _unrecorded():
            for path in touched:
                if recorder.has_met(path) or may_name(texts, path):
                    recorder.touched(path)
    finally:
        with _lock:
            _active.remove(recorder)
        _recorder.reset(token)


@contextmanager
def recorded_import(module: str) -> Iterator[None]:
    """Record what a module that settings name reads while the block imports it, also from outside of Python."""
    claim(module)
    root = None if module in sys.modules or (spec := find_module(module)) is None else import_root(spec)
    if root is None:
        yield
        return
    folders = [root] if is_users(str(root / "module.py")) else []
    with status.recorded(_looked_at), watched(folders) as touched:
        yield
    with _unrecorded():
        _modules.setdefault(module, _ModuleReads()).add(lambda recorder: [*map(recorder.touched, touched)])


def _users_roots(modules: Iterable[str]) -> dict[str, str]:
    """Folders of these modules, without folders of installed packages."""
    return {top: root for top, root in roots_of(modules).items() if is_users(f"{root}/module.py")}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook. It must not raise, because the error would reach the user's `open`."""
    if not _EVENTS or event not in _EVENTS or getattr(_own, "busy", False):
        return  # if _EVENTS is gone, the interpreter is ending and has begun to clear this module
    if event == "open" and is_installed_code(arguments[0]):
        return
    if event in _LISTINGS and is_import_system(sys._getframe(1)):
        return
    with _unrecorded():
        try:
            who = _reader()
            if event in _THREADS:
                if who.is_user:
                    _mark(arguments[0])
            elif event in _EVERY or who.is_user:
                _add(who, lambda recorder: note(recorder, event, arguments))
        except Exception as error:  # noqa: BLE001 - see above, it is reported with what cannot be seen
            for recorder in tuple(_active):
                recorder.unseen.add(f"{event}, which could not be recorded ({error})")


def _read_variable(name: str, value: str | None) -> None:
    _add_where_user(lambda recorder: recorder.variable(name, value))


def _looked_at(path: str, whole: bool) -> None:
    _add_where_user(lambda recorder: recorder.looked_at(path, whole=whole))


def _add_where_user(record: Callable[[ReadRecorder], object]) -> None:
    """Record a read that has no audit event, if the user's code makes it."""
    if not getattr(_own, "busy", False):
        with _unrecorded():
            if (who := _reader()).is_user:
                _add(who, record)


def _add(who: Reader, record: Callable[[ReadRecorder], object]) -> None:
    """Add a read to the recorder of the context, or of all stages, and to the modules that are being imported.

    If a thread of the user's has no context, the stage that it works for is unknown, so the read counts for all of
    them. One read too many costs a computation, but one too few causes a wrong result.
    """
    own = _recorder.get()
    for recorder in (own,) if own is not None else tuple(_active) if who.is_user else ():
        record(recorder)
        for module in who.callers:
            record(recorder.by_module.setdefault(module, ReadRecorder()))
    for module in who.modules:
        _modules.setdefault(module, _ModuleReads()).add(record)


def _reader() -> Reader:
    """Reader of the present stack, see `frames.reader`.

    In a recorded context and in a marked thread, it also counts as the user if no frame of this project is in the
    stack.
    """
    who = reader()
    if not (who.is_user or who.in_project) and (getattr(_own, "users", False) or _recorder.get() is not None):
        return Reader(True, who.modules, who.in_project)
    return who


def _mark(function: Any) -> None:
    """Mark a thread that the user's code starts, also through a pool."""
    thread = getattr(function, "__self__", None)
    if isinstance(thread, threading.Thread):
        run = thread.run

        def marked() -> None:
            _own.users = True
            run()

        thread.run = marked  # type: ignore[method-assign]


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Record nothing while the block runs, because this module reads files itself."""
    before = getattr(_own, "busy", False)
    _own.busy = True
    try:
        yield
    finally:
        _own.busy = before


sys.addaudithook(_hook)  # it cannot be removed
environment.install(_read_variable)
