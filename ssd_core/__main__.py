"""`python -m ssd_core`: see `cli`."""

import os
import signal
import sys

if __name__ == "__main__":
    stoppable = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if stoppable:  # importing torch takes seconds, in which nothing is written yet
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from .cli import main

    if stoppable:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
