"""`python -m ssd_core`: see `cli`."""

import sys

if __name__ == "__main__":
    try:
        from .cli import main  # inside the try: importing torch takes a second or two, in which Ctrl-C must work too

        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
