"""A sweep over sizes is one test: the loop is here, and a failure names the case it came from."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any


def sweep(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[..., Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but all cases are one test."""
    single = isinstance(names, str)
    keys = [names] if single else list(names)
    rows = [dict(zip(keys, [case] if single else case, strict=True)) for case in cases]
    assert rows, "a sweep over nothing tests nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def swept(*args: Any, **fixtures: Any) -> None:
            for row in rows:
                try:
                    test(*args, **fixtures, **row)
                except BaseException as error:
                    error.add_note(f"in the case {row}")
                    raise

        signature = inspect.signature(test)
        left = [item for name, item in signature.parameters.items() if name not in keys]
        swept.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return swept

    return decorate
