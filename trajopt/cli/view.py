"""`trajopt view`: finished runs in the web browser, or in one HTML file."""

import argparse
from collections.abc import Callable

from trajopt.cli.model_options import model_arguments
from trajopt.models.registry import load_model
from trajopt.viz import recording, viewer


def command(args: argparse.Namespace, terminated: Callable[[], bool]) -> int:
    """Run the command; returns the exit status."""
    try:
        viewer.check_extra()
        model = None if args.model is None else load_model(args.model, **model_arguments(args))
        recordings = [recording.read_run(folder, model) for folder in args.folders]
        if args.export is not None:
            path = viewer.export(recordings, args.export, overlay=args.overlay)
            print(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)")
        else:
            viewer.view(recordings, port=args.port, browser=not args.no_browser, overlay=args.overlay)
    except KeyboardInterrupt:
        print()
    return 0
