"""Alertmanager's messages in, a line for each alert out: an example of a receiver, to be replaced by a pager, a chat or a mail.

    python receive.py [PORT]

Only the standard library, so that it runs in any image with Python. Nothing that arrives is trusted: size and waiting are bounded,
and control characters never reach the terminal.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 9095
MOST_BYTES = 1_000_000
MOST_LETTERS = 500


def lines(message: dict[str, Any]) -> Iterator[str]:
    """One for each alert of a message in Alertmanager's webhook format, version 4. Raises ValueError for something else."""
    alerts = message.get("alerts")
    if not isinstance(alerts, list) or not all(isinstance(alert, dict) for alert in alerts):
        raise ValueError("a message without a list of alerts")
    for alert in alerts:
        labels, notes = alert.get("labels") or {}, alert.get("annotations") or {}
        status = str(alert.get("status", "unknown")).upper()
        where = f" {labels['instance']}" if "instance" in labels else ""
        what = f"{status:8} {labels.get('severity', '-')} {labels.get('alertname', 'an alert without a name')}{where}"
        says = "" if status == "RESOLVED" else f": {notes.get('description') or notes.get('summary') or 'says nothing'}"
        yield clean(what + says)


def clean(text: str) -> str:
    """On one line, without control characters, and not for ever."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= MOST_LETTERS else shown[: MOST_LETTERS - 1] + "…"


class Receiver(BaseHTTPRequestHandler):
    timeout = 10  # seconds that a client may be silent

    def handle(self) -> None:
        """A client that hangs up is not worth a traceback."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        """A health check."""
        self._answer(200, "ok")

    def do_POST(self) -> None:
        written = self.headers.get("content-length", "")
        if not (written.isascii() and written.isdecimal()):
            return self._answer(411, "content-length is missing or no number")
        if len(written) > len(str(MOST_BYTES)) or int(written) > MOST_BYTES:
            return self._answer(413, f"at most {MOST_BYTES:,} bytes are taken")
        try:
            message = json.loads(self.rfile.read(int(written)))
            shown = list(lines(message)) if isinstance(message, dict) else None
        except (ValueError, AttributeError, TypeError, RecursionError):
            shown = None
        if shown is None:
            return self._answer(400, "this is no message of Alertmanager")
        for line in shown:
            print(line, flush=True)
        return self._answer(200, "ok")

    def _answer(self, status: int, sentence: str) -> None:
        body = f"{sentence}\n".encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Requests are not worth a line; alerts are."""


if __name__ == "__main__":
    # Every address: it stands in a container, behind a network of its own.
    server = ThreadingHTTPServer(("", int(sys.argv[1]) if len(sys.argv) > 1 else PORT), Receiver)
    print(f"waits for alerts on port {server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
