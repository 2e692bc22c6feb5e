"""Calls over an executor: all of them answered, twice tried at most, nothing lost when the executor breaks."""

import threading
from collections import Counter
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import pytest

from trajopt.errors import OptionError
from trajopt.solvers.sweeps import BrokenSweepError
from trajopt.solvers.sweeps.stream import AHEAD, stream

pytestmark = pytest.mark.check


class Breaking(Executor):
    """Answers so many calls and is broken then."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.calls -= 1
        if self.calls < 0:
            future.set_exception(BrokenExecutor("a worker is gone"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.parametrize("threads", [0, 3])
def test_every_call_is_answered(threads):
    """Also where there are more than wait in the executor at a time."""
    count = AHEAD + 7
    if threads:
        with ThreadPoolExecutor(threads) as executor:
            answers = list(stream(lambda x: 2 * x, range(count), executor, pack=lambda x: x + 1))
    else:
        answers = list(stream(lambda x: 2 * x, range(count), None, pack=lambda x: x + 1))
    assert {answer.index: answer.value for answer in answers} == {k: 2 * (k + 1) for k in range(count)}
    assert len(answers) == count and all(answer.attempts == 1 and answer.error is None for answer in answers)


@pytest.mark.parametrize("threads", [0, 2])
def test_what_fails_is_tried_once_more_and_bad_input_is_not(threads):
    calls: Counter[str] = Counter()

    def call(what):
        calls[what] += 1
        if what == "always" or (what == "once" and calls[what] == 1):
            raise RuntimeError(what)
        if what == "refused":
            raise OptionError(what)
        return what

    names = ["always", "fine", "once", "refused"]
    executor = ThreadPoolExecutor(threads) if threads else None
    answers = {names[answer.index]: answer for answer in stream(call, names, executor)}
    if executor is not None:
        executor.shutdown()
    assert calls == {"always": 2, "fine": 1, "once": 2, "refused": 1}
    assert {name: answer.attempts for name, answer in answers.items()} == calls
    assert answers["once"].value == "once" and isinstance(answers["refused"].error, OptionError)
    assert str(answers["always"].error) == "always" and answers["always"].value is None


def test_a_broken_executor_ends_the_run_after_what_was_answered():
    answers = []
    with pytest.raises(BrokenSweepError, match="BrokenExecutor: a worker is gone.*goes on with what is missing"):
        for answer in stream(lambda x: x, range(5), Breaking(3)):
            answers.append(answer.value)
    assert answers == [0, 1, 2]


def test_leaving_the_iteration_cancels_what_has_not_begun():
    begun, left = [], threading.Event()

    def work(k):
        begun.append(k)
        return k == 0 or left.wait()

    with ThreadPoolExecutor(1) as executor:
        answers = stream(work, range(500), executor)
        next(answers)
        answers.close()
        left.set()
    assert len(begun) <= 2
