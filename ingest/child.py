"""The child process: one job in on standard input, messages out on standard output, nothing else.

Run as `python -m ingest.child` by `ingest.worker` only.
"""

import logging
import os
import sys
from collections.abc import Iterator
from typing import Final

from ingest.errors import Damaged, IngestError
from ingest.limits import confine
from ingest.messages import End, Job, Message, Refusal, decode_job, encode

OUT_OF_MEMORY: Final = 77


def messages(job: Job) -> Iterator[Message]:
    """Reads the job with the reader of its kind."""
    match job.kind:
        case "pdf":
            from ingest.readers.pdf import read_pdf

            yield from read_pdf(job)
        case "text":
            from ingest.readers.text import read_text

            yield from read_text(job)
        case "tree":
            from ingest.tree import read_tree

            yield from read_tree(job)
    yield End()


def main() -> int:
    """Answers one job; the exit status is `OUT_OF_MEMORY` when there was too little of it."""
    job = decode_job(sys.stdin.buffer.readline())
    # Whatever a library prints must not end up between the messages.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as channel:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        logging.disable(logging.CRITICAL)
        confine(job.limits)
        try:
            for message in messages(job):
                channel.write(encode(message))
                channel.flush()
        except IngestError as error:
            channel.write(encode(Refusal.of(error)))
        except MemoryError:
            return OUT_OF_MEMORY
        except Exception as error:  # The outermost boundary: a parser's surprise is a property of the file.
            channel.write(encode(Refusal.of(Damaged(job.name, f"the reader met {type(error).__name__}"))))
    return 0


if __name__ == "__main__":
    # Interpreter shutdown would free every page of a document for nothing.
    sys.stdout.flush()
    os._exit(main())
