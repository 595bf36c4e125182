"""Starts the command line. `./cluster` runs this file by its path, with Python's option -S."""

import _signal  # type: ignore[import-not-found]  # `signal` takes a while to import

# Until main() handles Ctrl-C, it ends the process without a traceback. So `site` is imported after this line.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os
import site
import sys

site.main()
project = os.environ["SLURM_STACKS_PROJECT"]
sys.path.insert(0, project)
# How messages name this command (cli/hints.py): in another folder, `./cluster` would be another program.
is_here = os.path.samefile(project, ".")  # noqa: PTH121 (pathlib takes a while to import)
os.environ["SLURM_STACKS_COMMAND"] = "./cluster" if is_here else f"{project}/cluster"
try:
    from cli.main import main
except ModuleNotFoundError as error:
    sys.exit(
        f"{error}: {sys.prefix} is not whole. Remove it (rm -r {sys.prefix!r}) and run the command again."
    )
main()
