"""What the contract suite shares: one thread, and a word at the end on which combinations it covered."""

from collections.abc import Iterator

import pytest
import torch

from tests.contracts.combinations import combinations


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are so small that more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("fusion combinations")
    for line in combinations().summary():
        terminalreporter.write_line(line)
