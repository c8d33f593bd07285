"""Run one test for many cases; a failure names its case."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any


def sweep(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[..., Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but all cases run in one test."""
    single = isinstance(names, str)
    keys = [names] if single else list(names)
    rows = [dict(zip(keys, [case] if single else case, strict=True)) for case in cases]
    assert rows, "an empty sweep tests nothing"

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
        remaining = [item for name, item in signature.parameters.items() if name not in keys]
        swept.__signature__ = signature.replace(parameters=remaining)  # type: ignore[attr-defined]
        return swept

    return decorate
