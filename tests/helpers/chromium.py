"""A page in a real browser: Chromium without a window, spoken to in the DevTools protocol through two pipes."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WAIT = 60  # seconds
# Chromium reads the file 3 and writes the file 4.
AS_3_AND_4 = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(high[0], 3), os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """A page that is open at `url`."""

    def __init__(self, url: str, folder: Path, width: int = 1100, height: int = 800):
        """folder: for the browser's own files."""
        assert PROGRAM
        ours, theirs = os.pipe(), os.pipe()
        options = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run"
        self._browser = subprocess.Popen(
            [
                *(sys.executable, "-c", AS_3_AND_4, str(ours[0]), str(theirs[1])),
                *(PROGRAM, *options.split(), f"--user-data-dir={folder}"),
            ],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0]), os.close(theirs[1])
        self._out, self._in = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb")
        self._numbers, self._waiting, self._session = itertools.count(1), b"", None
        self.errors: list[str] = []  # of the page's script
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Runtime.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=url)
        self.wait("location.href != 'about:blank' && document.readyState == 'complete'")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_) -> None:
        self._browser.kill()
        self._browser.wait()
        self._out.close(), self._in.close()

    def call(self, method: str, **parameters) -> dict[str, Any]:
        """The result of a method of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._read()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"]))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            part = os.read(self._in.fileno(), 1 << 16)
            assert part, "the browser has gone"
            self._waiting += part
        message, _, self._waiting = self._waiting.partition(b"\0")
        return json.loads(message)

    def value(self, expression: str) -> Any:
        """What JavaScript makes of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + WAIT
        while not self.value(expression):
            assert time.monotonic() < end, f"{expression} is not true after {WAIT} seconds"
            time.sleep(0.05)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """modifiers: 2 control, 8 shift."""
        event = dict(key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers)
        if key == "Enter":
            event["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def theme(self, name: str) -> None:
        """light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))
