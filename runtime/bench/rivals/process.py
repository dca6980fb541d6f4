"""A rival's process, seen from the bench."""

import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runtime.bench.plan import Rival
from runtime.bench.rivals.rival import Answer, Done, Failed, Job, Load, Order, Prefill
from runtime.bench.runner import Timed
from runtime.config import Sampling
from runtime.errors import ExtraMissing, RivalFailed
from runtime.exits import how_it_ended

EXTRA = "bench"
COMMAND = ["-m", "runtime.bench.rivals.child"]
ROOT = Path(__file__).resolve().parents[3]


_LLAMA_CPP = ("llama_cpp", "llama-cpp-python")
_NEEDED = {"llama.cpp": _LLAMA_CPP, "llama.cpp-no-fa": _LLAMA_CPP, "transformers": ("accelerate", "accelerate")}


def require(rival: Rival) -> None:
    """Raises `ExtraMissing` where a package that `rival` needs (transformers for GGUF files) is not installed."""
    module, package = _NEEDED[rival]
    if importlib.util.find_spec(module) is None:
        raise ExtraMissing(rival, package, EXTRA)


OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


class RivalProcess:
    """Runs one rival; a `Runner`. Raises `RivalFailed`, after which it is of no further use."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        self.systems = (name,)
        self._peak_bytes = 0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        self._child = subprocess.Popen(
            [sys.executable, *COMMAND],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        try:
            self._do(Load(name, job))
        except BaseException:
            self.close()
            raise

    def prefill(self, ids: Sequence[int]) -> float:
        return self._do(Prefill(ids)).seconds

    def answer(self, system: str, ids: Sequence[int], sampling: Sampling, n_tokens: int) -> Timed:
        done = self._do(Answer(ids, sampling, n_tokens))
        return Timed(done.ids, done.seconds)

    def peak_bytes(self) -> int:
        return self._peak_bytes

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()
        self._said.close()

    def _do(self, order: Order) -> Done:
        stdin, stdout = self._child.stdin, self._child.stdout
        if stdin is None or stdout is None:
            raise ValueError("the child was started without pipes")
        try:
            pickle.dump(order, stdin)
            stdin.flush()
            reply: Done | Failed = pickle.load(stdout)
        except (EOFError, OSError) as error:
            raise RivalFailed(self.name, self._last_words()) from error
        if isinstance(reply, Failed):
            raise RivalFailed(self.name, reply.reason)
        self._peak_bytes = reply.peak_bytes
        return reply

    def _last_words(self) -> str:
        status = self._child.wait()
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), f"its process {how_it_ended(status)}")


def environment() -> dict[str, str]:
    """This process's, without what Fullread sets for its own libraries: rivals run as their users run them."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))}
