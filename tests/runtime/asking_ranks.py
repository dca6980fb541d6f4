"""A process of its own that answers with a shared model: `python -m tests.runtime.asking_ranks FOLDER RANKS`, for
tests that end it from outside. It prints the ids of the other ranks' processes, then a line for each token, then how it
ended.
"""

import signal
import sys
import threading
from pathlib import Path

from runtime.config import EngineConfig, Request, Sampling
from runtime.engine import assemble
from runtime.errors import EngineError
from runtime.events import Emission
from runtime.parallel.led import LedStores
from tests.runtime.sessions import prompt


def main(folder: Path, gpus: int) -> None:
    config = EngineConfig(folder / "cache", str(folder / "model"), context=4096, dtype="float32", threads=1, gpus=gpus)
    engine = assemble(config, lambda _: None, backend="gloo")
    try:
        stores = engine._loaded.stores
        assert isinstance(stores, LedStores)
        print(*stores.team.pids, flush=True)
        request = Request(Sampling(temperature=0), 3000)
        for event in engine.answer(prompt(100), request, threading.Event()):
            if isinstance(event, Emission):
                print("token", flush=True)
        print("finished", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except EngineError as error:
        print("lost", *error.args, flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    # As in a terminal: what is started in the background of a script ignores it, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(Path(sys.argv[1]), int(sys.argv[2]))
