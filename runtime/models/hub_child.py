"""The part of a hub download that runs in a process of its own; imports nothing of this project.

A process of its own so that it can be ended at any moment, and so that telemetry is off before the library is
first imported. Prints one line of JSON: `{"bytes": n}` or `{"path": p}`, or
`{"failure": kind, "reason": words}`.
"""

import argparse
import errno
import json
import sys

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

# The weights in transformers' own naming only: some models also ship the same weights in another layout.
WANTED = [
    *("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *(
        "tokenizer*",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template*",
    ),
]
UNWANTED = ["*/*"]


def main() -> int:
    """Plan or do one download; exit status 0 where the line printed is not a failure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("plan", "download"))
    parser.add_argument("name")
    parser.add_argument("cache_dir")
    asked = parser.parse_args()
    try:
        if asked.step == "plan":
            files = snapshot_download(
                asked.name,
                cache_dir=asked.cache_dir,
                allow_patterns=WANTED,
                ignore_patterns=UNWANTED,
                dry_run=True,
            )
            print(json.dumps({"bytes": sum(file.file_size for file in files if file.will_download)}))
        else:
            path = snapshot_download(
                asked.name, cache_dir=asked.cache_dir, allow_patterns=WANTED, ignore_patterns=UNWANTED
            )
            print(json.dumps({"path": path}))
    except Exception as error:  # the outermost boundary of this process: whatever stops it is told to the parent
        print(json.dumps(failure(error)))
        return 1
    return 0


def failure(error: BaseException) -> dict[str, str]:
    """The kind and the words of a failed download; the library wraps the real cause more than once."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:
        chain.append(link)
        link = link.__cause__
    for link in chain:
        if isinstance(link, GatedRepoError):
            return {
                "failure": "missing",
                "reason": "its authors ask for a licence to be accepted on the hub, then hf auth login",
            }
        if isinstance(link, RepositoryNotFoundError):
            return {"failure": "missing", "reason": "the hub has no such model, or it is private"}
        if isinstance(link, OSError) and link.errno == errno.ENOSPC:
            return {"failure": "disk", "reason": str(link)}
    words = " ".join(str(chain[-1]).split()) or type(chain[-1]).__name__
    unreachable = any(_is_network(link) for link in chain)
    return {"failure": "other", "reason": f"the hub cannot be reached ({words})" if unreachable else words}


def _is_network(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "TimeoutError"})


if __name__ == "__main__":
    sys.exit(main())
