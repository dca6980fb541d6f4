"""The other ranks as rank 0 sees them: child processes that are told what to do, and noticed when they are lost."""

import itertools
import os
import pickle
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from torch import Tensor

from runtime.errors import InvalidSetting, RankLost
from runtime.exits import how_it_ended
from runtime.parallel import messages as told
from runtime.parallel.collective import Collective, PeerLost, device_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS_TO_END = 5.0  # a child ends at once when its pipe closes; one that does not is killed
SECONDS_TO_NOTICE = 5.0  # in which a child that made a sum fail is found out


class Team:
    """All ranks of one model. Used by one thread at a time; any may close it."""

    def __init__(self, job: told.Job) -> None:
        """Start the ranks of `job` but the first, which is this process, and meet them; then they load. Raises
        `InvalidSetting` on Windows, `RankLost`."""
        if os.name != "posix":
            raise InvalidSetting("gpus", job.n_ranks, "1 on this system")
        self.n_ranks = job.n_ranks
        self.device = device_of(job.backend, 0)
        self.lost: RankLost | None = None
        self._keys = itertools.count()
        self._known: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._waiting: deque[told.Message] = deque()  # told with the next pass: nothing comes of them before
        self._mail: queue.SimpleQueue[told.Reply | None] = queue.SimpleQueue()
        self._noticed = threading.Event()
        self._lock = threading.Lock()
        self._is_closed = False
        self._collective: Collective | None = None
        self._children: list[_Child] = []
        self._folder = Path(tempfile.mkdtemp(prefix="fullread-ranks-"))  # for this user alone
        try:
            meeting = self._folder / "meeting"
            for rank in range(1, job.n_ranks):
                self._children.append(_Child(rank))
                threading.Thread(target=self._listen, args=(self._children[-1],), daemon=True).start()
            for child in self._children:
                self._send(child, replace(job, rank=child.rank, meeting=meeting))
            self._await(told.Started)
            self._collective = Collective(job.backend, 0, job.n_ranks, meeting)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes of the ranks from 1 on."""
        return tuple(child.process.pid for child in self._children)

    def wait_until_loaded(self) -> None:
        """Raises `RankLost` where a rank could not load its part."""
        self._await(told.Loaded)
        shutil.rmtree(self._folder, ignore_errors=True)  # not before all have met

    def key(self, thing: object) -> int | None:
        """What the other ranks know a thing by; None where they do not."""
        return self._known.get(thing)

    def new_key(self, thing: object) -> int:
        """For a new thing, until there is nothing left that refers to it."""
        key = self._known[thing] = next(self._keys)
        weakref.finalize(thing, self._waiting.append, told.Forget(key)).atexit = False
        return key

    def note(self, message: told.Message) -> None:
        """Let the others know before they are told of a pass."""
        self._waiting.append(message)

    @contextmanager
    def together(self, message: told.Message) -> Iterator[None]:
        """All ranks do what `message` says; rank 0 inside the block. Raises `RankLost`, and ends all ranks on any
        error: those that wait for a sum would wait for ever."""
        try:
            if self.lost is not None:
                raise self.lost
            while self._waiting:
                self._tell(self._waiting.popleft())
            self._tell(message)
            yield
        except RankLost:
            self.close()
            raise
        except (PeerLost, OSError) as error:  # OSError: of a pipe that is closed at the other end
            self._noticed.wait(SECONDS_TO_NOTICE)
            lost = self._lose(RankLost(0, self.n_ranks, f"{type(error).__name__}: {error}"))
            self.close()
            raise lost from error
        except BaseException as error:
            self._lose(RankLost(0, self.n_ranks, f"{type(error).__name__}: {error}"))
            self.close()
            raise

    def total(self, tensor: Tensor) -> None:
        """As `Collective.total`."""
        if self._collective is None:
            raise self.lost or RankLost(0, self.n_ranks, "it was closed")
        self._collective.total(tensor)

    def close(self) -> None:
        """End all other ranks."""
        with self._lock:
            self._is_closed = True
            for child in self._children:
                child.let_go()
            for child in self._children:
                child.end()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._lose(RankLost(0, self.n_ranks, "it was closed"))

    def _lose(self, lost: RankLost) -> RankLost:
        """Note what was lost first, and give that."""
        self.lost = self.lost or lost
        return self.lost

    def _tell(self, message: told.Message) -> None:
        for child in self._children:
            self._send(child, message)

    def _send(self, child: "_Child", message: told.Job | told.Message) -> None:
        child.pipe.send_bytes(pickle.dumps(message))

    def _await(self, kind: type[told.Reply]) -> None:
        for _ in self._children:
            reply = self._mail.get()
            if self.lost is not None:
                raise self.lost
            if not isinstance(reply, kind):
                raise TypeError(reply)

    def _listen(self, child: "_Child") -> None:
        """To one child, until it ends."""
        reason = None
        with suppress(EOFError, OSError):
            while True:
                reply = pickle.loads(child.pipe.recv_bytes())
                if isinstance(reply, told.Failed):
                    reason = reply.reason
                    break
                self._mail.put(reply)
        if self._is_closed:
            return
        self._lose(RankLost(child.rank, self.n_ranks, reason or child.how_it_ended()))
        self._noticed.set()
        self._mail.put(None)
        if self._collective is not None:
            self._collective.abort()


class _Child:
    """One process and our end of its pipe."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        self.pipe: Connection[bytes, bytes] = Connection(ours.detach())
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runtime.parallel.worker", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C in a terminal is for rank 0, which ends the others
            )

    def how_it_ended(self) -> str:
        try:
            status = self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"it {how_it_ended(status)}"

    def let_go(self) -> None:
        # Another thread reads from it: shut down, that one sees the end of it; the child does, too.
        with suppress(OSError), socket.socket(fileno=os.dup(self.pipe.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
