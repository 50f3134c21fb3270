from collections.abc import Callable

class Lane:
    def __init__(
        self,
        lead: bytes,
        before: bytes,
        behind: bytes,
        keep: Callable[[str], list[str]],
        ids: list[bytes],
        logprobs: list[bytes],
        tell: Callable[[bytes, bytes, str], bytes | None] | None,
    ) -> None: ...
    @property
    def event(self) -> Callable[[bytes], bytes | None]: ...
    def chunk(self, data: bytes, /) -> tuple[bytes, bytes] | None: ...

class Rush:
    lane: Lane | None
    since: float
    due: float
    def __init__(
        self,
        send: Callable[[bytes], None],
        is_closing: Callable[[], bool],
        protocol: object,
        said: object,
        pieces: list[bytes],
        monotonic: Callable[[], float],
        attend: Callable[[float], float],
        failed: Callable[[Exception], None],
    ) -> None: ...
    def take(self, chunk: bytes, /) -> bool: ...
    def settle(self) -> None: ...
