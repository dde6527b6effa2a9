"""A hub of one model on a port of this machine, which counts what it is asked for."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves the files of `folder` as the model `repo`. `requests` counts `METHOD path`, the model's name left out."""

    def __init__(self, repo: str, folder: Path) -> None:
        self.repo, self.folder = repo, folder
        self.requests: Counter[str] = Counter()
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[None]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer()

            def do_GET(self) -> None:
                self._answer()

            def _answer(self) -> None:
                path = self.path.partition("?")[0].replace(f"/{hub.repo}", "", 1)
                hub.requests[f"{self.command} {path}"] += 1
                status, body, headers = hub.response(path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def response(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers, as the hub's client expects them."""
        for prefix in ("/resolve/main/", f"/resolve/{COMMIT}/"):
            file = self.folder / path.removeprefix(prefix)
            if path.startswith(prefix):
                if not file.is_file():
                    return 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
                body = file.read_bytes()
                return 200, body, {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if path.startswith("/api/models/tree/"):
            return 404, b"{}", {"X-Error-Code": "EntryNotFound"}
        files = [{"rfilename": file.name} for file in sorted(self.folder.iterdir())]
        body = json.dumps({"id": self.repo, "modelId": self.repo, "sha": COMMIT, "tags": [], "siblings": files})
        return 200, body.encode(), {"Content-Type": "application/json"}
