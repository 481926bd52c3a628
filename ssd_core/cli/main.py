"""From arguments to an exit code: 0 done, 2 bad input, 130 stopped by Ctrl-C."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import torch

from ..errors import SSDError
from .arguments import ConvertOptions, DownloadOptions, InspectOptions, Options, WordsOptions, parse
from .bench import bench
from .bench_options import BenchOptions
from .compare import compare
from .convert import convert
from .distill import distill
from .distill_options import CollectOptions, EvaluateOptions, TrainOptions
from .download import download_model
from .draw import draw
from .inspect import inspect_model
from .words import list_words

BAD_INPUT = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command (`arguments`: None for sys.argv). What the user can mend becomes one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal or pipe without × shows ? instead of failing
    options: Options | None = None
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of `words | head` has left; without this Python complains once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SSDError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"error: {_describe(error)}", file=sys.stderr)
        return BAD_INPUT
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        print(f"error: out of memory; {_smaller(options)}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _run(options: Options) -> None:
    if isinstance(options, WordsOptions):
        list_words(options)
    elif isinstance(options, ConvertOptions):
        convert(options)
    elif isinstance(options, InspectOptions):
        inspect_model(options)
    elif isinstance(options, DownloadOptions):
        download_model(options)
    elif isinstance(options, CollectOptions | TrainOptions | EvaluateOptions):
        distill(options)
    elif isinstance(options, BenchOptions):
        bench(options)
    elif options.compare:
        compare(options)
    else:
        draw(options)


def _smaller(options: Options | None) -> str:
    """What takes less memory."""
    if isinstance(options, TrainOptions):
        return "see --estimate; take --micro-batch 1, fewer heads (--horizontal, --vertical) or --dtype bfloat16"
    return "draw fewer pictures at once (--batch) or smaller ones (--size)"


def _describe(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """torch has an exception of its own on GPUs only; on a CPU the allocator's name is all there is to go by."""
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
