"""Sets Fullread up on a machine that has only Python, then hands over to it.

python launch.py                            set up once, then open the page in the browser
python launch.py ask FILE... -q QUESTION    answer in the terminal
python launch.py --serve                    the page, without opening a browser
python launch.py bench                      measure this machine
python launch.py models                     list models, with what fits this machine
python launch.py plan                       show where a model would run here, and why
python launch.py verify                     check that drafting does not change what the model says
python launch.py setup [--extra NAME...]    set up, or repair the set-up, and stop there
python launch.py test [PYTEST ARGUMENTS]    set up for testing and run the whole suite

--no-setup, anywhere, starts with what is there and sets nothing up. Once Fullread is set up,
python launch.py --help shows its own options.
"""

# The standard library alone (as in `app.setup`), and in this file no syntax newer than Python 3.6: an old
# Python must get as far as this sentence.
import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        f"Fullread needs Python 3.11 or newer, and {sys.executable} is Python {sys.version.split()[0]}. "
        "Install a newer one from python.org and start launch.py with it."
    )

import argparse
import os
import re
import subprocess
from pathlib import Path

from app.setup.environment import Environment
from app.setup.failure import SetupFailed
from app.setup.process import run, say, step

ROOT = Path(__file__).resolve().parent


def main(arguments: "list[str]") -> int:
    """Set up what is missing and hand over; the exit status where control comes back."""
    switched_off = os.environ.get("FULLREAD_NO_SETUP", "").lower() in ("1", "true", "yes", "on")
    sets_up = not (switched_off or "--no-setup" in arguments)
    arguments = [argument for argument in arguments if argument != "--no-setup"]
    environment = Environment(ROOT)
    command = arguments[0] if arguments else ""
    try:
        if command == "setup":
            return set_up(environment, arguments[1:])
        if command == "test":
            return test(environment, arguments[1:], sets_up)
        if command in ("-h", "--help") and not environment.is_set_up():
            print((__doc__ or "").strip())
            return 0
        python = environment.make_ready() if sets_up else environment.present()
        return hand_over(python, ["-P", "-m", "app.cli", *arguments])
    except SetupFailed as failure:
        say(failure.in_full)
        return 1
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from there.")
        return 130


def set_up(environment: Environment, arguments: "list[str]") -> int:
    """`setup`: every step is looked at again, whatever was noted before."""
    parser = argparse.ArgumentParser(prog="launch.py setup", description="Set Fullread up, or repair the set-up.")
    offered = sorted(environment.project.extras)
    parser.add_argument(
        "--extra",
        nargs="+",
        action="extend",
        default=[],
        choices=offered,
        metavar="NAME",
        help="also what an extra asks for: " + ", ".join(offered),
    )
    extras = frozenset(parser.parse_args(arguments).extra)
    python = environment.make_ready(extras, again=True)
    say(f"Fullread is set up; its Python is {python}")
    return 0


def test(environment: Environment, arguments: "list[str]", sets_up: bool) -> int:
    """`test`: also fetches the starter model, since no test touches the network."""
    if not sets_up:
        return hand_over(environment.present(), ["-m", "pytest", *arguments], ROOT)
    python = environment.make_ready(frozenset(["test"]), n_steps=4)
    with step(4, 4, "the starter model"):
        run([python, "-m", "runtime.models.sources", "starter"], ROOT, echo=re.compile(r"\s*downloaded .*"))
    return hand_over(python, ["-m", "pytest", *arguments], ROOT)


def hand_over(python: str, arguments: "list[str]", folder: "Path | None" = None) -> int:
    """Become `python ARGUMENTS`, with this checkout importable wherever the person stands."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if folder is not None:
        os.chdir(folder)
    if os.name == "posix":
        sys.stderr.flush()
        os.execve(python, [python, *arguments], environment)
    # Windows has no exec that keeps the console: wait, and let Ctrl-C reach the child alone.
    child = subprocess.Popen([python, *arguments], env=environment)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
