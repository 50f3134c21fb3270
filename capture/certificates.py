"""TLS: the listeners' certificate, and what the command line trusts.

One certificate serves both listeners (`--tls-cert`, `--tls-key`); TLS 1.2 is the least that is spoken. A proxy in front
does as well, and then no certificate is given here.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from capture.errors import UsageError
from capture.settings import Settings, is_loopback

_READ = "name a PEM file that you may read: --tls-cert, --tls-key"
_REWRITE = "it must be PEM: the certificate, then those that vouch for it; and the key, unencrypted"


def serving(settings: Settings) -> ssl.SSLContext | None:
    """Return what the listeners speak TLS with, None if they don't. Raises `UsageError` for files of no use."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # HTTP/1.1 is all that is spoken here.
    context.set_alpn_protocols(["http/1.1"])

    def no_password() -> str:
        # Without it OpenSSL asks on the terminal, and the start hangs.
        raise UsageError("--tls-key: the key is encrypted", hint="decrypt it into a file that you alone can read")

    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=no_password)
    except ssl.SSLError as error:
        raise UsageError(
            f"--tls-cert, --tls-key: these can't be used ({error.reason or error})", hint=_REWRITE
        ) from None
    except OSError as error:
        raise UsageError(f"can't read {error.filename or settings.tls_cert}: {error.strerror}", hint=_READ) from None
    return context


def trusting(settings: Settings, host: str) -> ssl.SSLContext:
    """Return what the command line trusts when it speaks to a control plane at `host`.

    What the system trusts, and the certificate of these settings itself, which is often one that vouches for itself.
    On loopback that certificate alone is trusted, by whatever name: it names the machine as others call it. Raises
    `UsageError`.
    """
    if settings.tls_cert is None:
        return ssl.create_default_context()
    local = is_loopback(host)
    context = ssl.create_default_context() if not local else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = not local
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(Path(settings.tls_cert))
    except ssl.SSLError as error:
        raise UsageError(f"--tls-cert can't be used ({error.reason or error})", hint=_REWRITE) from None
    except OSError as error:
        raise UsageError(f"can't read {settings.tls_cert}: {error.strerror}", hint=_READ) from None
    return context
