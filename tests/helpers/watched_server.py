"""serve.py, which says on stderr what is imported or opened on the event loop's thread."""

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def watch(event: str, arguments: tuple) -> None:
    if event in ("import", "open") and "serve_http" in threading.current_thread().name:
        os.write(2, f"on the event loop: {event} {arguments[0]}\n".encode())


if __name__ == "__main__":
    import serve

    sys.addaudithook(watch)
    serve.cli.run(serve.main)
