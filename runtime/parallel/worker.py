"""What a child process runs: one rank's part of a model, which does as rank 0 tells it and ends when rank 0 is gone.

`python -m runtime.parallel.worker DESCRIPTOR`, the descriptor that of its end of the pipe.
"""

import os
import pickle
import queue
import sys
import threading
import time
from multiprocessing.connection import Connection

DONE = 0  # exit status when rank 0 let go of the pipe, however it ended
FAILED = 1
SECONDS_FOR_OTHERS = 10.0


def main(descriptor: int) -> None:
    pipe: Connection[bytes, bytes] = Connection(descriptor)
    mail: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Before all else: whatever this process is at when rank 0 ends, it ends.
    threading.Thread(target=_receive, args=(pipe, mail), daemon=True).start()
    from runtime.parallel.following import follow  # imports torch, which takes seconds

    try:
        follow(lambda: pickle.loads(mail.get()), lambda reply: pipe.send_bytes(pickle.dumps(reply)))
    except BaseException as error:  # the outermost boundary of this process: rank 0 makes words of it
        from runtime.parallel.collective import PeerLost
        from runtime.parallel.messages import Failed

        if isinstance(error, PeerLost):
            time.sleep(SECONDS_FOR_OTHERS)  # rank 0 shall hear first of the rank that is gone, and ends this one
        pipe.send_bytes(pickle.dumps(Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")))
        os._exit(FAILED)


def _receive(pipe: "Connection[bytes, bytes]", mail: "queue.SimpleQueue[bytes]") -> None:
    while True:
        try:
            mail.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(DONE)


if __name__ == "__main__":
    main(int(sys.argv[1]))
