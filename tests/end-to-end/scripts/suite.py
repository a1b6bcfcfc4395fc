"""Runs one module of CPython's own tests and writes down what became of every single test.

Usage: suite.py MODULE RESULTS [LEAVE_OUT | +ONLY]

RESULTS gets a line `began ID` and a line `OUTCOME ID` for each test, at once, and `end` as the last
one: what is missing after a crash or a hang is known. LEAVE_OUT is a file with the ids of tests not
to run, one a line, ONLY one with those to run.
"""

import faulthandler
import importlib
import os
import sys
import unittest


class Outcomes(unittest.TestResult):
    """Writes outcomes to a file; what the program's forked children do is not written."""

    def __init__(self, path):
        super().__init__()
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.pid = os.getpid()
        self.outcome = None

    def write(self, word, test=""):
        if os.getpid() == self.pid:
            os.write(self.descriptor, f"{word} {test}\n".encode(errors="replace"))

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"
        self.write("began", test_name(test))

    def stopTest(self, test):
        super().stopTest(test)
        self.write(self.outcome, test_name(test))
        self.outcome = None

    def set_outcome(self, outcome, test, error=None):
        if error is not None:
            print(f"-- {outcome}: {test_name(test)}\n{self._exc_info_to_string(error, test)}", file=sys.stderr, flush=True)
        if self.outcome is None:
            # A fixture of a class or of the module.
            self.write(outcome, test_name(test))
        elif self.outcome == "passed" or outcome in ("failed", "error"):
            self.outcome = outcome

    def addError(self, test, err):
        self.set_outcome("error", test, err)

    def addFailure(self, test, err):
        self.set_outcome("failed", test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.set_outcome("failed", test, err)

    def addSkip(self, test, reason):
        print(f"-- skipped: {test_name(test)}: {reason}", file=sys.stderr, flush=True)
        self.set_outcome("skipped", test)

    def addExpectedFailure(self, test, err):
        self.set_outcome("expected", test)

    def addUnexpectedSuccess(self, test):
        self.set_outcome("unexpected", test)


def test_name(test):
    return test.id().replace("\n", " ")


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


def main():
    module, results = sys.argv[1:3]
    selection = sys.argv[3] if len(sys.argv) > 3 else None
    faulthandler.enable(all_threads=True)

    from test import support

    if "SUITE_HOST" in os.environ:
        # Where modules let servers listen that do not name an address.
        from test.support import socket_helper

        socket_helper.HOST = socket_helper.HOSTv4 = os.environ["SUITE_HOST"]
        # It was taken when the function was defined.
        socket_helper.bind_port.__defaults__ = (socket_helper.HOST,)
    support.verbose = False
    # Without "network": other tests would leave the loopback interface.
    support.use_resources = ["subprocess"] + (["network"] if module == "test_socketserver" else [])
    outcomes = Outcomes(results)
    try:
        loaded = unittest.TestLoader().loadTestsFromModule(importlib.import_module("test." + module))
        tests = list(flatten(loaded))
    except unittest.SkipTest as reason:
        print(f"-- skipped: {module}: {reason}", file=sys.stderr)
        outcomes.write("skipped", module)
        tests = []
    if selection:
        with open(selection.lstrip("+"), encoding="utf-8") as file:
            ids = set(file.read().split("\n"))
        tests = [test for test in tests if (test_name(test) in ids) == selection.startswith("+")]
    unittest.TestSuite(tests).run(outcomes)
    outcomes.write("end")
    # Threads that a failed test left behind must not hold up the end.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    # Children that multiprocessing spawns import this file under another name.
    main()
