"""The page's static files and Plotly, held in memory; their URLs change with their content, so browsers may cache them for ever."""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
PLOTLY = "plotly.min.js"


@dataclass(frozen=True)
class Asset:
    plain: bytes
    packed: bytes  # gzip
    media_type: str
    etag: str


@dataclass(frozen=True)
class Assets:
    version: str  # of the page and all files together
    page: str
    files: dict[str, Asset]


@functools.cache
def load() -> Assets:
    """Reads static/, page.html and plotly.min.js from the installed plotly package: about 0.3 s, once per process."""
    paths = {path.name: path for path in sorted((HERE / "static").iterdir()) if path.suffix in TYPES}
    files = {name: _asset(path) for name, path in {**paths, PLOTLY: plotly_path()}.items()}
    page = (HERE / "page.html").read_text(encoding="utf-8")
    version = hashlib.sha256("".join([page, *(asset.etag for asset in files.values())]).encode()).hexdigest()[:12]
    return Assets(version, page.replace("{{version}}", version), files)


def plotly_path() -> Path:
    """plotly.min.js in the installed package, found without importing it, which would take a second."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("The package plotly is not installed; install it with `pip install plotly`.")
    return Path(spec.origin).parent / "package_data" / PLOTLY


def _asset(path: Path) -> Asset:
    plain = path.read_bytes()
    etag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
    return Asset(plain, gzip.compress(plain, 5, mtime=0), TYPES[path.suffix], etag)
