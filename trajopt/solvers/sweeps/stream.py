"""Calls of one function over an executor, whose answers come as they are ready; each call is made at most twice."""

import dataclasses
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any

from trajopt.errors import TrajoptError

ATTEMPTS = 2
AHEAD = 1000  # calls that wait in the executor, at most: more would only cost memory


class BrokenSweepError(TrajoptError):
    """The executor of a sweep broke; what was finished is kept."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What became of a call: its place in the list, its value or else the error of the last attempt."""

    index: int
    value: Any = None
    error: Exception | None = None
    attempts: int = 1


def stream(
    function: Callable[[Any], Any],
    arguments: Sequence[Any],
    executor: Executor | None,
    pack: Callable[[Any], Any] | None = None,
) -> Iterator[Answer]:
    """`function(argument)` of every argument, as they are ready; without an executor here, one after the other.

    pack: makes of an argument what is sent, just before it is.

    A call that raises is made once more, but for errors of trajopt's own, which would come again. Raises `BrokenSweepError` where
    the executor itself breaks. What has not begun when the iteration is left is cancelled.
    """
    if executor is None:
        for index, argument in enumerate(arguments):
            yield _here(function, index, argument if pack is None else pack(argument))
        return
    ready: queue.SimpleQueue[tuple[int, int, Future]] = queue.SimpleQueue()
    under_way: dict[int, Future] = {}

    def send(index: int, attempt: int) -> None:
        try:
            future = executor.submit(function, arguments[index] if pack is None else pack(arguments[index]))
        except (BrokenExecutor, RuntimeError) as error:
            raise _broken(executor, error) from error
        under_way[index] = future
        future.add_done_callback(lambda done: ready.put((index, attempt, done)))

    waiting = iter(range(len(arguments)))
    try:
        for _, index in zip(range(AHEAD), waiting, strict=False):  # in this order: nothing is taken and dropped
            send(index, 1)
        while under_way:
            index, attempt, future = ready.get()
            del under_way[index]
            answer = _answer(executor, index, attempt, future)
            if answer is None:
                send(index, attempt + 1)
                continue
            following = next(waiting, None)
            if following is not None:
                send(following, 1)
            yield answer
    finally:
        for future in under_way.values():
            future.cancel()


def _here(function: Callable[[Any], Any], index: int, argument: Any) -> Answer:
    """The answer of a call in this process."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return Answer(index, function(argument), None, attempt)
        except Exception as error:
            found = Answer(index, None, error, attempt)
            if isinstance(error, TrajoptError):
                break
    return found


def _answer(executor: Executor, index: int, attempt: int, future: Future) -> Answer | None:
    """What a finished call says; None when it is to be made again."""
    try:
        return Answer(index, future.result(), None, attempt)
    except (BrokenExecutor, CancelledError) as error:
        raise _broken(executor, error) from error
    except Exception as error:
        again = attempt < ATTEMPTS and not isinstance(error, TrajoptError)
        return None if again else Answer(index, None, error, attempt)


def _broken(executor: Executor, error: BaseException) -> BrokenSweepError:
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return BrokenSweepError(
        f"the executor {type(executor).__name__} takes no more tasks ({reason}); start it anew and give the same folder: the "
        "sweep goes on with what is missing"
    )
