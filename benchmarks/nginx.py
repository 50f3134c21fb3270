"""nginx, twice: as a proxy beside the others, and as the upstream that has its replies in files.

As a proxy it has one worker and holds nothing back. As the upstream it serves what was recorded before the clock
started: the header `x-bench` (`wire.Ask`) is the name of the file. What has no such header, an appliance's probe at its
start, goes to the engine in the benchmark's own process. nginx writes a stream as fast as it can, in pieces as large as
they come, so this upstream says what a proxy does with bytes; what it does with single events is asked of the engine
that writes one at a time (`upstream.py`).

Debian's `nginx-light` will do. Everything lies in a folder of the run; nothing of the system's own nginx is read.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import systems
from benchmarks.systems import System
from benchmarks.wire import Ask, Wire

MISSING = "nginx is not on the PATH (apt-get install nginx-light): its rows are left out"

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of the run's own is made in it


def missing() -> str | None:
    """Return what a person must do to have nginx, None where there is one."""
    return None if shutil.which("nginx") else MISSING


def start_proxy(upstream: str, folder: Path) -> System:
    """Start nginx with one worker, as a proxy that holds nothing back. Raises RuntimeError."""
    port = _free_port()
    server = _PROXY % {"port": port}
    process = _start("nginx", folder, upstream, server, port, workers=1)
    return System("nginx", process, f"http://127.0.0.1:{port}")


class Static:
    """The upstream whose replies are files."""

    def __init__(self, engine: str, folder: Path) -> None:
        """`engine` answers what asks for no file. Raises RuntimeError."""
        # In memory, where a reply of 4 MB costs no disk.
        place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else folder
        self._files = Path(tempfile.mkdtemp(prefix="treering-replies-", dir=place))
        # The worker of a master that is root is another user.
        self._files.chmod(0o755)
        port = _free_port()
        server = _STATIC % {"port": port, "files": self._files}
        try:
            self._process = _start("nginx-static", folder, engine, server, port, workers=1)
        except RuntimeError:
            shutil.rmtree(self._files)
            raise
        self.url = f"http://127.0.0.1:{port}"
        self._n = 0

    def __repr__(self) -> str:
        return f"<Static {self.url}>"

    def record(self, wire: Wire, asks: Iterable[Ask]) -> None:
        """Have these replies ready, and no others."""
        for file in self._files.iterdir():
            file.unlink()
        for ask in asks:
            reply_id = b"%016x" % self._n
            self._n += 1
            pieces = wire.events(ask, reply_id) if ask.streamed else wire.whole(ask, reply_id)
            (self._files / ask.header()).write_bytes(b"".join(pieces))

    def stop(self) -> None:
        """Stop nginx and remove the files."""
        systems.stop(self._process)
        shutil.rmtree(self._files, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _start(name: str, folder: Path, upstream: str, server: str, port: int, *, workers: int) -> subprocess.Popen[bytes]:
    program = shutil.which("nginx")
    if program is None:
        raise RuntimeError(MISSING)
    home = folder / name
    home.mkdir()
    config = home / "nginx.conf"
    told = {"folder": home, "upstream": upstream.removeprefix("http://"), "server": server, "workers": workers}
    config.write_text(_CONFIG % told)
    process = systems.start(name, [program, "-p", str(home), "-c", str(config)], folder)
    end = time.monotonic() + systems.START_LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > end:
                systems.stop(process)
                raise RuntimeError(f"nginx did not start: {(folder / f'{name}.log').read_text()}") from error
            time.sleep(0.05)
        else:
            return process


# A master that is root gives its worker another user, who may not enter the run's folder.
_CONFIG = """
daemon off; worker_processes %(workers)s; pid %(folder)s/nginx.pid; error_log stderr crit; user root;
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
  access_log off; client_max_body_size 0; client_body_buffer_size 4m; keepalive_requests 1000000;
  client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy; fastcgi_temp_path %(folder)s/fastcgi;
  uwsgi_temp_path %(folder)s/uwsgi; scgi_temp_path %(folder)s/scgi;
  sendfile on; tcp_nopush off; tcp_nodelay on; default_type application/json;
  upstream engine { server %(upstream)s; keepalive 600; keepalive_requests 1000000; }
  %(server)s
}
"""
_PROXY = """
  server {
    listen 127.0.0.1:%(port)s backlog=1024;
    location / {
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 1h;
    }
  }
"""
# A file is only ever answered to a GET: the redirect of an error page makes one. The third number of a name says
# whether it is a stream.
_STATIC = """
  map $http_x_bench $kind { default whole; ~^[0-9]+,[0-9]+,1, stream; }
  server {
    listen 127.0.0.1:%(port)s backlog=1024;
    location /whole/ { internal; alias %(files)s/; types {} default_type application/json; }
    location /stream/ { internal; alias %(files)s/; types {} default_type text/event-stream; }
    location / {
      error_page 418 =200 /$kind/$http_x_bench;
      if ($http_x_bench) { return 418; }
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }
  }
"""
