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
